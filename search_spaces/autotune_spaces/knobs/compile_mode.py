"""Whether the model is compiled, and how hard the compiler tries."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.domains import off_word, one_of
from autotune_spaces.facts import JobFacts, Machine

REGIONAL = "regional"
DYNAMIC = {"static": False, "dynamic": True}  # torch.compile's argument of that name
MODES = ("reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
WORDS = ("off", "default", REGIONAL, *DYNAMIC, *MODES)
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes that replay the model as CUDA graphs


def arguments(value: Value) -> dict[str, Value]:
    """What torch.compile is called with for ``value``, which is not "off"."""
    if value in DYNAMIC:
        return {"dynamic": DYNAMIC[str(value)]}
    return {"mode": value} if value in MODES else {}


class CompileMode(Knob):
    name = "compile_mode"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    start_up_cost = True
    ordered = False
    example = "default"
    range = (
        "off, default, regional, static, dynamic, reduce-overhead (CUDA),"
        " max-autotune-no-cudagraphs (CUDA), max-autotune"
    )
    card = Card(
        what=(
            "Compiles the model with torch.compile: neighbouring operations are fused into one"
            " kernel. regional compiles the repeated blocks of the model (the layers of a"
            " transformer) instead of the whole: alike ones are compiled once. default compiles for"
            " the shapes of the first batch, and for any size once another comes; static compiles"
            " for each shape that comes, dynamic for any size from the start. reduce-overhead"
            " replays the model as CUDA graphs, max-autotune-no-cudagraphs times variants of the"
            " matrix products, and max-autotune does both."
        ),
        when_it_helps=(
            "Many small operations between the large ones, and runs long enough to earn back the"
            " compilation (half a minute or more). regional: models of many alike blocks; eight"
            " layers of a transformer were compiled in about half the time. static: an epoch ends"
            " with a smaller batch, after which default runs code for any size (slower by a third"
            " in a transformer on a CPU, not at all in a convolutional network). dynamic: texts"
            " padded to the longest of their batch, for which default compiles twice or more often."
            " Each is tried where the job is seen to be of that kind."
        ),
        when_it_does_not=(
            "Small models, which often get slower; code the compiler cannot follow (graph breaks)."
            " Short runs never earn it back. After eight shapes, or eight blocks that each compute"
            " with a number of their own (stochastic depth), torch compiles no more and runs the"
            " rest as it is. CUDA graphs are out for jobs that accumulate gradients, or keep them"
            " from one step to the next (set_to_none=False): each replay overwrites the gradients"
            " of the one before."
        ),
        changes_loss=(
            "Fused kernels round differently, and dropout draws other random numbers. It is"
            " checked."
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
                "the job differentiates twice (backward with create_graph=True), which compiled"
                " graphs cannot do"
            )
        if not job.models:
            raise NotApplicable(
                "the job calls no torch.nn.Module while training, so there is nothing to compile"
            )
        if job.device == "cpu" and not machine.cxx_compiler:
            raise NotApplicable(
                "torch.compile on a CPU needs a C++ compiler (g++, or CXX) and Python's header"
                " files, and they were not found"
            )
        return [word for word in WORDS if self.unusable(word, machine, job) is None]

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if value == REGIONAL and not any(model.repeated_blocks for model in job.models):
            return (
                "the model has no repeated blocks: no alike modules beside each other in a"
                " ModuleList or Sequential"
            )
        if value == "dynamic" and not any(model.input_shapes > 1 for model in job.models):
            return "the first batches were all of one shape, for which default compiles as well"
        if value == "static" and job.models and all(model.input_shapes > 1 for model in job.models):
            return "the inputs vary in shape, and each shape would be compiled"
        if value == "static" and not ends_short(job):
            return (
                "no epoch was seen to end with a smaller batch, and without one static is the same"
                " as default"
            )
        if value == "reduce-overhead" and job.device != "cuda":
            return "reduce-overhead is the same as default without CUDA graphs"
        if value == "max-autotune-no-cudagraphs" and job.device != "cuda":
            return f"on {job.device} max-autotune uses no CUDA graphs either"
        if value not in CUDA_GRAPHS or job.device != "cuda":
            return None
        if job.backwards_per_step > 1:
            return (
                f"{value} replays CUDA graphs, which overwrite gradients that are still being"
                f" accumulated (the job goes backward {job.backwards_per_step:g} times a step)"
            )
        if job.keeps_gradients:
            return (
                f"{value} replays CUDA graphs, which overwrite gradients that the job keeps from"
                " one step to the next (zero_grad(set_to_none=False) does)"
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
        return "torch.compile made no graph of the model" + (
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
    """Whether the last batch of an epoch is smaller than the others; False where that is not known."""
    loader = job.loader
    if loader is None or loader.drop_last or not loader.batch_size:
        return False
    return any(n % loader.batch_size for n in loader.rank_samples or (loader.samples or 0,))
