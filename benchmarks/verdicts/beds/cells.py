"""The table of cells: which change is planted into which bed, how it is declared, and which bar it
counts for.

A change is declared the way the corresponding knob declares itself: knobs of the tool by their own
``numerics``; planted words as rounding, unless the word changes a random number stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune_spaces import knobs as knob_registry
from autotune_spaces.base import Numerics, Value

BEDS = ("mlp", "cnn", "transformer", "gru", "density")
BATCH = {"mlp": 32, "cnn": 24, "transformer": 16, "gru": 24, "density": 32}
STEPS = 240
LATE = "late=40"  # well after the steps whose norms are probed
DROPOUT, AUGMENTED = ("transformer", "gru"), ("cnn", "density")

# Loss scales, by the share of gradient entries that become zero in the first step.
# strong: about 90 %; healthy: below 0.5 %, where a GradScaler settles;
# mild: the first power of two whose loss visibly differs from the baseline's (46 to 72 %);
# faint: twice that scale
FLOAT16_SCALES = {
    "mlp": {"strong": 2.0**-8, "mild": 2.0**-5, "faint": 2.0**-4, "healthy": 2.0**12},
    "cnn": {"strong": 2.0**-6, "mild": 2.0**-3, "faint": 2.0**-2, "healthy": 2.0**12},
    "transformer": {"strong": 2.0**-5, "mild": 2.0**-1, "faint": 2.0**0, "healthy": 2.0**13},
    "gru": {"strong": 2.0**-8, "mild": 2.0**-5, "faint": 2.0**-4, "healthy": 2.0**10},
    "density": {"strong": 2.0**-10, "mild": 2.0**-8, "faint": 2.0**-7, "healthy": 2.0**10},
}


@dataclass(frozen=True)
class Cell:
    """One change of one bed.

    ``kind``: breaker, mild-float16, batch, fingerprint (none of these may be accepted); rounding,
    stream, exact (harmless). ``plant``: words for the bed; ``knobs``: held by the agent.
    """

    bed: str
    change: str
    kind: str
    numerics: str
    plant: tuple[str, ...] = ()
    knobs: Mapping[str, Value] = field(default_factory=dict)

    @property
    def harmless(self) -> bool:
        return self.kind in ("rounding", "stream", "exact")

    @property
    def float16(self) -> bool:
        return (
            any(word.startswith("fp16=") for word in self.plant)
            or self.knobs.get("amp_dtype") == "float16"
        )

    @property
    def declared(self) -> set[str]:
        """Settings that the knobs declare to change."""
        return {path for name in self.knobs for path in knob_registry.get(name).declares}

    @property
    def steps(self) -> int:
        """Steps of a candidate's run. With larger batches it has seen the baseline's samples sooner
        (half as many steps again make sure that it covers the baseline's window).
        """
        batch = self.knobs.get("batch_size")
        return STEPS if not isinstance(batch, int) else round(1.5 * STEPS * BATCH[self.bed] / batch)

    def __hash__(self) -> int:
        return hash((self.bed, self.change, self.numerics))

    def key(self) -> str:
        """Equal for equal candidates, however they are declared."""
        return json.dumps([self.bed, self.plant, dict(sorted(self.knobs.items()))])


def table() -> tuple[Cell, ...]:
    """All cells, bed by bed."""
    return tuple(cell for bed in BEDS for cell in _of_bed(bed))


def find(bed: str, change: str) -> Cell:
    """The cell with that name.

    Raises:
        KeyError
    """
    return {(c.bed, c.change): c for c in _of_bed(bed)}[bed, change]


def _of_bed(bed: str) -> Iterator[Cell]:
    scales = FLOAT16_SCALES[bed]
    stream = (
        ("dropout-stream",)
        if bed in DROPOUT
        else ("augmentation-stream",)
        if bed in AUGMENTED
        else ()
    )

    # breakers, declared as rounding
    for word in (
        "lr-x2",
        "lr-half",
        "head-dropped",
        "stale",
        "sorted",
        "momentum-0",
        "skip-fourth",
        "quarter",
        "nan-50",
    ):
        yield Cell(bed, word, "breaker", "rounding", (word,))
    yield Cell(bed, "fp16 strong", "breaker", "rounding", (f"fp16={scales['strong']:g}",))
    for strength in ("mild", "faint"):
        yield Cell(
            bed, f"fp16 {strength}", "mild-float16", "rounding", (f"fp16={scales[strength]:g}",)
        )
    for word in ("lr-x2", "lr-half", "stale"):  # visible in the loss or not at all
        yield Cell(bed, f"{word} late", "breaker", "rounding", (word, LATE))
    # breakers that also change the random stream
    for word in ("stale", "lr-half", "lr-x2", "quarter"):
        yield Cell(bed, f"{word} + other stream", "breaker", "random-stream", (word, *stream))
    for word in ("lr-x2", "lr-half"):
        yield Cell(
            bed, f"{word} late + other stream", "breaker", "random-stream", (word, LATE, *stream)
        )
    if bed in DROPOUT:
        yield Cell(bed, "dropout does nothing", "breaker", "random-stream", ("dropout-hidden",))
    for factor in (4, 8):
        yield Cell(
            bed,
            f"batch x{factor}",
            "batch",
            numerics_of("batch_size"),
            (),
            {"batch_size": factor * BATCH[bed]},
        )
    # what the fingerprint must detect
    for word in (
        "wd-x10",
        "frozen-head",
        "bf16-weights",
        *(("dropout-off", "dropout-x3") if bed in DROPOUT else ()),
    ):
        yield Cell(bed, word, "fingerprint", "rounding", (word,))

    # harmless
    for word in ("jitter-weights", "tf32", *(("jitter-inputs",) if bed != "transformer" else ())):
        yield Cell(bed, word, "rounding", "rounding", (word,))
    yield Cell(bed, "fp16 healthy", "rounding", "rounding", (f"fp16={scales['healthy']:g}",))
    yield _knob(bed, "bf16", "rounding", amp_dtype="bfloat16")
    yield _knob(bed, "foreach", "rounding", optimizer_impl="foreach")
    if bed == "cnn":
        yield _knob(bed, "channels_last", "rounding", channels_last=True)
    if bed == "transformer":
        yield _knob(bed, "compile", "rounding", compile_mode="default")
    if stream:
        yield Cell(bed, stream[0], "stream", "random-stream", stream)
        yield Cell(
            bed, f"bf16 + {stream[0]}", "stream", "random-stream", stream, {"amp_dtype": "bfloat16"}
        )
    # density's dataset draws from its own stream, which every worker would copy: autotune refuses
    for workers in (1, 2) if bed != "density" else ():
        yield _knob(bed, f"{workers} worker{'s' * (workers > 1)}", "exact", num_workers=workers)
    if bed in ("mlp", "cnn"):
        yield _knob(bed, "pin_memory", "exact", pin_memory=True)


def numerics_of(*knobs: str) -> str:
    """The worst ``numerics`` class among ``knobs``, as they declare themselves."""
    return max(
        (knob_registry.get(k).numerics for k in knobs),
        key=lambda n: n.severity,
        default=Numerics.EXACT,
    ).value


def _knob(bed: str, change: str, kind: str, **knobs: Value) -> Cell:
    return Cell(bed, change, kind, numerics_of(*knobs), (), knobs)
