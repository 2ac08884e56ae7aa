"""The command line with shorter measurements: ``python shorter.py run job.yaml``. A timed run may
end after 0.3 s of training instead of 4, and no pairs are made only to narrow the interval (see
stages/test_sharpened.py for that). For jobs whose gain is far above the noise of such windows.
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
