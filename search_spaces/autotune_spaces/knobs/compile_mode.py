"""Whether and how the model is compiled with torch.compile."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.facts import JobFacts, Machine

REGIONAL = "regional"
DYNAMIC = {"static": False, "dynamic": True}  # torch.compile's argument ``dynamic``
MODES = ("reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
WORDS = ("off", "default", REGIONAL, *DYNAMIC, *MODES)
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes that replay the model as CUDA graphs


def arguments(value: Value) -> dict[str, Value]:
    """Arguments of torch.compile for ``value``, which is not "off"."""
    if value in DYNAMIC:
        return {"dynamic": DYNAMIC[str(value)]}
    return {"mode": value} if value in MODES else {}


class CompileMode(Knob):
    name = "compile_mode"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    start_up_cost = True
    example = "default"
    allowed = WORDS
    range = (
        "off, default, regional, static, dynamic, reduce-overhead (CUDA),"
        " max-autotune-no-cudagraphs (CUDA), max-autotune"
    )
    card = Card(
        what=(
            "Compiles the model with torch.compile: adjacent operations are fused into"
            " one kernel. regional compiles the repeated blocks of the model (such as"
            " transformer layers) instead of the whole: identical blocks are compiled"
            " once. default compiles for the first batch's shapes, and for any size once"
            " another shape appears; static compiles for each new shape, dynamic for any"
            " size from the start. reduce-overhead replays the model as CUDA graphs,"
            " max-autotune-no-cudagraphs benchmarks variants of the matrix products, and"
            " max-autotune does both."
        ),
        when_it_helps=(
            "Many small operations between the large ones, and runs long enough to make up for the"
            " compilation (half a minute or more). regional: models of many identical blocks;"
            " eight transformer layers compiled in about half the time. static: epochs that end"
            " with a smaller batch, after which default runs code for any size (a third slower in"
            " a transformer on a CPU, no slower in a convolutional network). dynamic: texts padded"
            " to the longest in their batch, for which default compiles at least twice. regional,"
            " static and dynamic are only tried where the job shows that pattern."
        ),
        when_it_does_not=(
            "Small models, which often get slower; code the compiler cannot follow (graph"
            " breaks); runs too short to make up for the compilation. After eight shapes,"
            " or eight blocks that each use a different constant (stochastic depth),"
            " torch stops compiling and runs the rest uncompiled. CUDA graphs are ruled"
            " out for jobs that accumulate gradients, or keep them between steps"
            " (set_to_none=False): each replay overwrites the previous gradients, and outputs that"
            " the job keeps beyond the next step without clone(). Forward hooks"
            " that the job adds to submodules later in the training are not called: torch.compile"
            " does not look for them."
        ),
        changes_loss=(
            "Fused kernels round differently, and dropout draws different random numbers."
            " The loss check covers it."
        ),
        source=(
            "https://docs.pytorch.org/docs/stable/generated/torch.compile.html; "
            "https://docs.pytorch.org/tutorials/recipes/regional_compilation.html"
        ),
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "off"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if job.own_compile:
            raise NotApplicable("the job calls torch.compile itself")
        if job.double_backward:
            raise NotApplicable(
                "the job differentiates twice (backward with create_graph=True), which"
                " compiled graphs do not support"
            )
        if not job.models:
            raise NotApplicable(
                "the job calls no torch.nn.Module while training (TorchScript ones do not count),"
                " so there is nothing to compile"
            )
        if job.device == "cpu" and not machine.cxx_compiler:
            raise NotApplicable(
                "torch.compile on a CPU needs a C++ compiler (g++, or CXX) and Python's"
                " header files, which were not found"
            )
        if job.device == "cuda" and not machine.c_compiler:
            raise NotApplicable(
                "torch.compile on a GPU needs a C compiler (gcc or clang, or CC) and Python's"
                " header files, which were not found"
            )
        return [word for word in WORDS if self.unusable(word, machine, job) is None]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if value == REGIONAL and not any(model.repeated_blocks for model in job.models):
            return (
                "the model has no repeated blocks (identical modules next to each other"
                " in a ModuleList or Sequential)"
            )
        if value == "dynamic" and not any(model.input_shapes > 1 for model in job.models):
            return (
                "the first batches all had the same shape, so dynamic has no advantage over default"
            )
        if value == "static" and job.models and all(model.input_shapes > 1 for model in job.models):
            return "the inputs vary in shape, and static would compile each shape"
        if value == "static" and not ends_short(job):
            return (
                "no epoch was seen to end with a smaller batch; without one, static is"
                " the same as default"
            )
        if value == "reduce-overhead" and job.device != "cuda":
            return "reduce-overhead is the same as default without CUDA graphs"
        if value == "max-autotune-no-cudagraphs" and job.device != "cuda":
            return f"on {job.device} max-autotune uses no CUDA graphs either"
        if value not in CUDA_GRAPHS or job.device != "cuda":
            return None
        # a step that a GradScaler skips leaves two backwards to the next one
        if round(job.backwards_per_step) > 1:
            return (
                f"{value} replays CUDA graphs, which overwrite gradients that are still"
                f" being accumulated (the job runs backward {job.backwards_per_step:g}"
                " times per step)"
            )
        if job.keeps_outputs:
            return (
                f"{value} replays CUDA graphs, which overwrite the model's outputs, and the job"
                " keeps them beyond the next step, or may keep them"
            )
        if job.keeps_gradients:
            return (
                f"{value} replays CUDA graphs, which overwrite gradients that the job"
                " keeps between steps (zero_grad(set_to_none=False))"
            )
        if any("cudaMallocAsync" in text for text in job.own_settings.values()):
            return (
                f"{value} replays CUDA graphs, which need torch's own allocator, but the"
                " job uses cudaMallocAsync"
            )
        return None

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
        return "torch.compile produced no graph of the model" + (
            f"; first graph break: {breaks[0]}" if breaks else ""
        )

    def snippet(self, value: Value) -> str:
        if value == "off":
            return ""
        if value == REGIONAL:
            return (
                "for block in model.blocks:  # your ModuleList or Sequential of repeated blocks\n  "
                "  block.compile()  # does nothing to torch.nn's own classes, such as"
                " TransformerEncoderLayer"
            )
        words = "".join(f", {name}={word!r}" for name, word in arguments(value).items())
        return f"model = torch.compile(model{words})".replace("'", '"')


def ends_short(job: JobFacts) -> bool:
    """Whether the last batch of an epoch is smaller than the others; False if unknown."""
    loader = job.loader
    if loader is None or loader.drop_last or not loader.batch_size:
        return False
    return any(n % loader.batch_size for n in loader.rank_samples or (loader.samples or 0,))
