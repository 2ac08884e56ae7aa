"""autotune: finds the fastest runtime settings for a PyTorch training job, its loss unchanged.

Inside a job, :func:`step` and :func:`metric` mark what no hook can see; outside a session they do
nothing. The other functions do what the command line does (:mod:`autotune.library`,
docs/python.md).
"""

from typing import TYPE_CHECKING, Any

from autotune_trials.api import metric, step

if TYPE_CHECKING:
    from autotune.library import export_settings, judge, load_result, profile, tune

__version__ = "0.1.0"

_LIBRARY = ("export_settings", "judge", "load_result", "profile", "tune")
__all__ = [
    "__version__",
    "export_settings",
    "judge",
    "load_result",
    "metric",
    "profile",
    "step",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Load the tuner's functions on first use: a job that marks its steps needs none of them."""
    if name in _LIBRARY:
        from autotune import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
