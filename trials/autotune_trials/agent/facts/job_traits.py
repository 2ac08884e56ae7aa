"""What the job was seen doing by itself; knobs for the same thing must know about it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class JobTraits:
    """Filled in by the patches and by the code that inspects the loss; read by
    :mod:`.job_facts`.
    """

    autocast: str = ""  # the dtype of its own autocast regions
    scaler: bool = False  # it has a GradScaler
    compiles: bool = False
    double_backward: bool = False  # create_graph=True
    keeps_gradients: bool = False  # gradients exist when an iteration's first backward begins
    # how its loss compares the samples of a batch: see loop.sample_comparison
    compares_samples: str = ""
    unsafe_to_autocast: str = ""  # what its loss computes that autocast refuses on CUDA
    settings: dict[str, str] = field(default_factory=dict)  # name -> where it makes that setting
    loss_modules: set[str] = field(default_factory=set)
