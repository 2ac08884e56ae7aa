"""The command line as it is, but in a hurry: ``python shorter.py run job.yaml``. A timed run may end
after 0.3 s of training, not after 4, and no pairs are made for the sake of a narrower interval (how
that is done: stages/test_sharpened.py). For jobs whose gain is far above the noise of such windows.
"""

from __future__ import annotations

import math

from autotune.cli import main
from autotune.stages import confirm
from autotune.stages.measuring import fresh

if __name__ == "__main__":
    fresh.MIN_SECONDS = 0.3
    confirm.SHARP = math.inf
    raise SystemExit(main())
