"""How much scratch memory a convolution may use."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, Numerics, Scope, Value
from autotune_spaces.domains import need_convolutions, need_cuda
from autotune_spaces.facts import JobFacts, Machine

VARIABLE = "CUDNN_CONV_WSCAP_DBG"
SIZES_MIB = (256, 512, 1024, 2048, 4096)
LARGEST_SHARE = 0.25  # of the device's memory: scratch space beyond that starves the model


class CudnnWorkspaceMib(Knob):
    name = "cudnn_workspace_mib"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    ordered = False
    range = "unset, 256 … 4096 (CUDA)"
    card = Card(
        what="The most scratch memory, in MiB, that one cuDNN convolution may ask for. Unset leaves the choice to cuDNN.",
        when_it_helps="Networks of large convolutions: a higher limit admits faster algorithms, a lower one leaves memory "
        "for a larger batch.",
        when_it_does_not="Models without convolutions; when cuDNN's choice is already the fastest; CPUs.",
        changes_loss="Another algorithm may be picked, which rounds differently. It is checked.",
        source="https://docs.pytorch.org/docs/stable/cuda_environment_variables.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return int(text) if (text := job.own_settings.get(VARIABLE, "")).isdigit() else "unset"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        need_convolutions(job)
        most = machine.device_memory_gib * 1024 * LARGEST_SHARE
        return ["unset", *(size for size in SIZES_MIB if size <= most)]

    def check_value(self, value: Value) -> str | None:
        if value == "unset" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            return None
        return f"{value!r} is neither 'unset' nor a whole number of MiB from 1 up"

    def environment(self, value: Value) -> dict[str, str]:
        return {} if value == "unset" else {VARIABLE: str(value)}

    def snippet(self, value: Value) -> str:
        if value == "unset":
            return ""
        return f'os.environ["{VARIABLE}"] = "{value}"  # before the first convolution'
