"""autotune: finds the runtime settings with which a PyTorch training job runs fastest, its loss unchanged.

Inside a job only :func:`step` and :func:`metric` are of use; outside a session they do nothing.
"""

from autotune_trials.api import metric, step

__version__ = "0.1.0"

__all__ = ["__version__", "metric", "step"]
