"""`ray`, for nodes that listen on 127.0.0.1 only; called where RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER is
0, which keeps a head there.

A worker is refused under that setting, on Linux without need: the check is answered, the address
kept. The two names are internals of Ray 2.60 (`ray/scripts/scripts.py`,
`ray/_private/services.py`); the service's tests see to it that nothing listens elsewhere.
"""

import sys

import ray._private.ray_constants as constants
import ray._private.services as services
from ray.scripts.scripts import main

services.get_node_ip_address = lambda address=None: "127.0.0.1"
constants.ENABLE_RAY_CLUSTER = True
sys.exit(main())
