"""How much scratch memory a convolution may use."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import need_convolutions, need_cuda, neither_unset_nor_mib
from autotune_spaces.facts import JobFacts, Machine

VARIABLE = "CUDNN_CONV_WSCAP_DBG"
SIZES_MIB = (64, 256, 1024)
# share of device memory reserved from which saving convolution scratch memory is worthwhile
SHORT = 0.8


class CudnnWorkspaceMib(Knob):
    name = "cudnn_workspace_mib"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    variables = (VARIABLE,)
    ordered = False
    example = 1024
    range = "unset, 64, 256, 1024 (CUDA)"
    card = Card(
        what=(
            "The most scratch memory, in MiB, that one cuDNN convolution may use. Unset:"
            " as much as the fastest algorithm needs."
        ),
        when_it_helps=(
            "Large convolutions, especially 3-D ones, on a device that is nearly full: it"
            f" is tried where the job reserves {SHORT:.0%} of the memory or more. The"
            " memory it frees may allow a larger batch."
        ),
        when_it_does_not=(
            "There is enough free memory: a cap allows no algorithm that unset does not. torch's"
            " documentation names the variable (CUDNN_CONV_WSCAP_DBG), NVIDIA's does not. cuDNN 9"
            " reads it at load time (observed with 9.19); whether it respects the limit has not"
            " been verified yet. To check on your GPU, run one large Conv3d in two processes, one"
            " with 64 and one unset, and compare torch.cuda.max_memory_reserved()."
        ),
        changes_loss=(
            "It may use a different algorithm, which rounds differently. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/cuda_environment_variables.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return int(text) if (text := job.own_settings.get(VARIABLE, "")).isdigit() else "unset"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        need_convolutions(job, flat=True)
        if self.values is None and job.device_memory_share < SHORT:
            raise NotApplicable(
                "a cap only saves memory, and the job reserves"
                f" {job.device_memory_share:.0%} of the device's"
            )
        return ["unset", *SIZES_MIB]

    def check_value(self, value: Value) -> str | None:
        return neither_unset_nor_mib(value)

    def environment(self, value: Value) -> dict[str, str]:
        return {} if value == "unset" else {VARIABLE: str(value)}

    def snippet(self, value: Value) -> str:
        if value == "unset":
            return ""
        return f'os.environ["{VARIABLE}"] = "{value}"  # before the first convolution'
