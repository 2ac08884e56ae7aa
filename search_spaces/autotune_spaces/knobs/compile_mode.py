"""Whether the model is compiled, and how hard the compiler tries."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, Numerics, Scope, Value, Withdrawn
from autotune_spaces.domains import off_word, one_of
from autotune_spaces.facts import JobFacts, Machine

WORDS = ("off", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes that replay the model as CUDA graphs


class CompileMode(Knob):
    name = "compile_mode"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    start_up_cost = True
    ordered = False
    range = "off, default, reduce-overhead (CUDA), max-autotune-no-cudagraphs (CUDA), max-autotune"
    card = Card(
        what="Compiles the model with torch.compile: neighbouring operations are fused into one kernel. reduce-overhead "
        "also replays them as CUDA graphs, max-autotune-no-cudagraphs times variants of the matrix products, and "
        "max-autotune does both.",
        when_it_helps="Many small operations between the large ones, and runs long enough to earn back the compilation "
        "(half a minute or more).",
        when_it_does_not="Small models, which often get slower; inputs of ever new shapes, each compiled again; code the "
        "compiler cannot follow (graph breaks). Short runs never earn it back. CUDA graphs are out for jobs that accumulate "
        "gradients: each replay overwrites the gradients of the one before.",
        changes_loss="Fused kernels round differently, and dropout draws other random numbers. It is checked.",
        source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "off"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if job.own_compile:
            raise Withdrawn("the job calls torch.compile itself")
        if job.double_backward:
            raise Withdrawn(
                "the job differentiates twice (backward with create_graph=True), which compiled graphs cannot do"
            )
        if not job.models:
            raise Withdrawn("the job calls no torch.nn.Module while training, so there is nothing to compile")
        if job.device == "cpu" and not machine.cxx_compiler:
            raise Withdrawn(
                "torch.compile on a CPU needs a C++ compiler (g++, or CXX) and Python's header files, and they were not found"
            )
        return [word for word in WORDS if self.unusable(word, machine, job) is None]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if value == "reduce-overhead" and job.device != "cuda":
            return "reduce-overhead is the same as default without CUDA graphs"
        if value == "max-autotune-no-cudagraphs" and job.device != "cuda":
            return f"on {job.device} max-autotune uses no CUDA graphs either"
        if value not in CUDA_GRAPHS or job.device != "cuda":
            return None
        if job.backwards_per_step > 1:
            return (
                f"{value} replays CUDA graphs, which overwrite gradients that are still being accumulated "
                f"(the job goes backward {job.backwards_per_step:g} times a step)"
            )
        if any("cudaMallocAsync" in text for text in job.own_settings.values()):
            return (
                f"{value} replays CUDA graphs, for which torch needs its own allocator, "
                "and the job has chosen cudaMallocAsync"
            )
        return None

    def parse(self, value: Value) -> Value:
        return off_word(value)

    def check_value(self, value: Value) -> str | None:
        return one_of(value, WORDS)

    def apply(self, live: LiveJob, value: Value) -> None:
        for entry in live.entries:
            entry.set_compiled(None if value == "off" else str(value))

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if value == "off":
            return None
        if not live.entries:
            return "no module is called from the training loop"
        if sum(entry.compiled_graphs() for entry in live.entries):
            return None
        from torch._dynamo.utils import counters

        breaks = [str(reason).splitlines()[0] for reason in counters["graph_break"]]
        return "torch.compile made no graph of the model" + (f"; first graph break: {breaks[0]}" if breaks else "")

    def snippet(self, value: Value) -> str:
        if value == "off":
            return ""
        return "model = torch.compile(model)" if value == "default" else f'model = torch.compile(model, mode="{value}")'
