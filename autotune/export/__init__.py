"""What a run hands back, and the forms it can take."""

from autotune.export.load import find_tuned, load_tuned
from autotune.export.tuned import TunedConfig, TunedKnob, build_tuned, to_yaml, write_tuned

__all__ = [
    "TunedConfig",
    "TunedKnob",
    "build_tuned",
    "find_tuned",
    "load_tuned",
    "to_yaml",
    "write_tuned",
]
