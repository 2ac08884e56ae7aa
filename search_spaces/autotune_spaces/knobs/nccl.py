"""Which algorithm and protocol NCCL uses between GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import need_cuda, ranks_here
from autotune_spaces.facts import JobFacts, Machine

VARIABLES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE")
SETTINGS = {
    "default": {},
    "ring": {"NCCL_ALGO": "Ring"},
    "ring-simple": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
    "no-nvls": {"NCCL_NVLS_ENABLE": "0"},
    "tree": {"NCCL_ALGO": "allreduce:tree"},  # the only collective with a tree algorithm
}
NVLS_CAPABILITY = (9, 0)  # Hopper: the first GPUs whose NVSwitch can compute sums
BY_COLLECTIVE = (2, 24)  # first NCCL that accepts an algorithm for a single collective


class Nccl(Knob):
    name = "nccl"
    scope = Scope.PROCESS
    numerics = Numerics.ROUNDING
    example = "ring"
    allowed = tuple(SETTINGS)
    range = "default, ring, ring-simple, no-nvls, tree (several GPUs)"
    card = Card(
        what=(
            "How NCCL exchanges data between GPUs, set by its variables: ring"
            " (NCCL_ALGO=Ring), ring-simple (NCCL_PROTO=Simple as well), no-nvls"
            " (NCCL_NVLS_ENABLE=0, no sums in the NVSwitch) or tree for all-reduces"
            " (since NCCL 2.24). default lets NCCL choose for each size, using its model"
            " of the machine."
        ),
        when_it_helps=(
            "Exchanging gradients takes a visible part of an iteration and NCCL's model"
            " is wrong for this machine: unusual topologies, virtual machines, slow"
            " networks. no-nvls frees the memory of the NVLS buffers. tree is tried only"
            " on several machines."
        ),
        when_it_does_not=(
            "One process, backends other than nccl, an exchange hidden behind backward. Variables"
            " that the job sets itself are kept. NVIDIA calls them debugging aids: check the"
            " setting again after an update of NCCL."
        ),
        changes_loss=(
            "Sums over ranks are formed in a different order, which rounds differently."
            " The loss check covers it."
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "default"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        need_cuda(job)
        if not job.backend:
            raise NotApplicable("the job trains in one process")
        if "nccl" not in job.backend:
            raise NotApplicable(f"the job's ranks do not communicate through nccl ({job.backend})")
        if own := [name for name in VARIABLES if job.own_settings.get(name)]:
            raise NotApplicable(f"the job sets {own[0]}={job.own_settings[own[0]]} itself")
        one_machine = ranks_here(machine, job) == job.world_size
        tried = [v for v in SETTINGS if v != "tree" or not one_machine]
        return [v for v in tried if self.unusable(v, machine, job) is None]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if value == "no-nvls" and machine.compute_capability < NVLS_CAPABILITY:
            return f"NCCL has no NVLS on {machine.device_name} (compute capability below 9.0)"
        # unknown where a tuned job is launched
        if value == "tree" and () < machine.nccl_version < BY_COLLECTIVE:
            known = ".".join(map(str, machine.nccl_version))
            return f"tree needs NCCL 2.24 or newer, and this one is {known}"
        return None

    def environment(self, value: Value) -> dict[str, str]:
        return dict(SETTINGS[str(value)])

    def effect(self, live: LiveJob, value: Value) -> str | None:
        for name, text in SETTINGS[str(value)].items():
            if os.environ.get(name) != text:
                return f"{name} is {os.environ.get(name, 'unset')} in the job, not {text}"
        return None

    def snippet(self, value: Value) -> str:
        lines = [f'os.environ["{name}"] = "{text}"' for name, text in SETTINGS[str(value)].items()]
        return "\n".join(f"{line}  # before init_process_group" for line in lines)
