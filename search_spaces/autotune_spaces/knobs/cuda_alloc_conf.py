"""How torch's allocator gets memory from the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autotune_spaces.base import Card, Config, Knob, LiveJob, Numerics, Scope, Start, Value
from autotune_spaces.domains import need_cuda
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.knobs.compile_mode import CUDA_GRAPHS

# the second is the older name; torch reads the first that is set
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
TRIED = ("expandable_segments:True", "backend:cudaMallocAsync")
# a list in brackets may hold commas
SETTING = re.compile(r"[A-Za-z_]\w*:(?:\[[^\[\]]*\]|[^,:\[\]\s]+)")


class CudaAllocConf(Knob):
    """A value is the variable's whole text: the job's own settings plus one more."""

    name = "cuda_alloc_conf"
    scope = Scope.PROCESS
    numerics = Numerics.EXACT
    variables = VARIABLES
    example = "expandable_segments:True"
    range = "unset, expandable_segments:True, backend:cudaMallocAsync (CUDA)"
    card = Card(
        what=(
            "How torch's allocator gets memory from the GPU (PYTORCH_ALLOC_CONF): in"
            " segments that can grow, or from CUDA's own pool. The job's own settings"
            " there are kept."
        ),
        when_it_helps=(
            "Batches of varying size, whose blocks do not fit into each other's gaps:"
            " memory is allocated and returned in every iteration, or runs out although"
            " enough is free."
        ),
        when_it_does_not=(
            "Shapes that never change (after the first iteration nothing more is"
            " allocated) and CPUs. garbage_collection_threshold does nothing unless the"
            " job sets a limit (torch.cuda.set_per_process_memory_fraction)."
        ),
        changes_loss=(
            "Not by itself. cuDNN chooses among the algorithms whose scratch memory fits,"
            " so its choice may change. The loss check covers it."
        ),
        source="https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return own_text(job.own_settings) or "unset"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        own = own_text(job.own_settings)
        mine = dict(_settings(own))
        more = [setting for setting in TRIED if setting.partition(":")[0] not in mine]
        return [own or "unset", *(merged(own, setting) for setting in more)]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if "cudaMallocAsync" in str(value) and not machine.cuda_version:
            return (
                "backend:cudaMallocAsync is CUDA's own pool, and this torch is not built for CUDA"
            )
        own = own_text(job.own_settings)
        if value != "unset" and merged(own, str(value)) == merged(own, ""):
            return f"{value} is among the job's own settings ({own})"
        return None

    def active(self, config: Config, defaults: Config) -> bool:
        """CUDA graphs need memory pools whose state can be saved (getCheckpointState), which only
        torch's own allocator has.
        """
        graphs = config.get("compile_mode", defaults.get("compile_mode")) in CUDA_GRAPHS
        return not (graphs and "cudaMallocAsync" in str(config.get(self.name, "")))

    def check_value(self, value: Value) -> str | None:
        if value == "unset" or (
            isinstance(value, str)
            and SETTING.sub("", value).replace(",", "") == ""
            and _settings(value)
        ):
            return None
        return (
            f"{value!r} is neither unset nor comma-separated settings such as"
            " expandable_segments:True"
        )

    def environment(self, value: Value) -> dict[str, str]:
        return {} if value == "unset" else dict.fromkeys(VARIABLES, str(value))

    def prepare(self, start: Start, value: Value) -> Start:
        whole = value if value == "unset" else merged(own_text(start.env), str(value))
        return super().prepare(start, whole)

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if live.device != "cuda":
            return f"only for CUDA, and the job trains on {live.device}"
        wanted, cuda = dict(_settings(str(value))), live.torch.cuda
        if "backend" in wanted and (now := cuda.get_allocator_backend()) != wanted["backend"]:
            return f"torch's allocator is {now}"
        if wanted.get("expandable_segments") == "True" and cuda.get_allocator_backend() == "native":
            if not any(segment.get("is_expandable") for segment in cuda.memory_snapshot()):
                return (
                    "no segment of the allocator can grow: this driver or platform does"
                    " not support it"
                )
        return None

    def snippet(self, value: Value) -> str:
        if value == "unset":
            return ""
        return "\n".join(
            f'os.environ["{name}"] = "{value}"  # before torch is imported' for name in VARIABLES
        )


def own_text(variables: Mapping[str, str]) -> str:
    """The job's own settings, "" if it has none."""
    return next((variables[name] for name in VARIABLES if variables.get(name)), "")


def merged(own: str, more: str) -> str:
    """``own`` with the settings of ``more`` added; these win where both set the same name."""
    settings = {**dict(_settings(own)), **dict(_settings(more))}
    return ",".join(f"{name}:{value}" for name, value in settings.items())


def _settings(text: str) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, _, value in (setting.partition(":") for setting in SETTING.findall(text))
    ]
