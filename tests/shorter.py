"""The command line as it is, except that a timed run may end after 0.3 s of training, not after 4:
``python shorter.py run job.yaml``. For jobs whose gain is far larger than the noise of so short a
window.
"""

from __future__ import annotations

from autotune.cli import main
from autotune.stages.measuring import fresh

if __name__ == "__main__":
    fresh.MIN_SECONDS = 0.3
    raise SystemExit(main())
