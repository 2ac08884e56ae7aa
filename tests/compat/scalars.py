"""Values of one tag in a folder of TensorBoard's files, as JSON; run by the programs' Python."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps([event.value for event in events.Scalars(sys.argv[2])]))
