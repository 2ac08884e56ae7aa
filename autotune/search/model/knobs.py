"""What the model searches over, what it proposes and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from autotune_spaces.base import Config, Value, same

FIRST_LOOK = "first look"
RECALLED = "recalled"  # what earlier runs of similar jobs found best


@dataclass(frozen=True)
class SearchKnob:
    """One knob as the model sees it."""

    name: str
    values: tuple[Value, ...]  # all candidates, from least to most, including the default
    default: Value  # the job's own
    costly: bool = False  # takes seconds to switch: changed only between series
    compiled: bool = False  # torch.compile: bought, not sampled
    in_graph: bool = False  # compiled graphs depend on it: switched with compile off
    loader: bool = False  # acts on the loader, not on compute
    price: float = 0.005  # log gain that a change must exceed to be kept
    guess: Value = None  # the value most likely to pay, tried first

    def __post_init__(self) -> None:
        if not any(same(self.default, v) for v in self.values):
            raise ValueError(f"{self.name}: {self.values} lacks the default {self.default!r}")

    @property
    def default_index(self) -> int:
        return self.index(self.default)

    def index(self, value: Value) -> int:
        """Raises:
        ValueError: not one of the candidates.
        """
        for i, candidate in enumerate(self.values):
            if same(candidate, value):
                return i
        raise ValueError(f"{self.name}: {value!r} is not one of {self.values}")

    @property
    def ladder(self) -> bool:
        """Whether the values are numbers with similar neighbors, too expensive to try them all."""
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in self.values)
        return self.costly and numbers and len(self.values) >= 4


@dataclass(frozen=True)
class Series:
    """Configurations to measure one after another in the running job, in this order.

    They agree in all costly knobs and in the compiled graph, so that only the first switch takes
    seconds (but for a series that compares numbers of workers: stages/more_workers.py).
    """

    blocks: tuple[Config, ...]  # only values that differ from the job's own; ``{}``: the baseline
    purpose: str  # FIRST_LOOK, RECALLED, "sampled", "compile", "leader"


@dataclass(frozen=True)
class KnobVerdict:
    """What one knob of the leader is worth, given the rest of the answer at that point."""

    name: str
    value: Value
    gain: float  # log(cost without / cost with), posterior mean of the regression
    sd: float  # of that, without the live error
    expected: float  # gain under spike-and-slab, live error included: compared with the price
    price: float
    kept: bool

    @property
    def reason(self) -> str:
        """Why it is not kept, as text; "" if it is."""
        if self.kept:
            return ""
        measured = f"expected gain {self.expected:.1%} (measured {self.gain:+.1%} ± {self.sd:.1%})"
        if self.expected > self.price:
            return f"{measured}, but all changes together are not worth confirming"
        return f"{measured}, below the {self.price:.1%} needed to keep it"


@dataclass(frozen=True)
class Answer:
    """The leader without the knobs that are not worth their price."""

    config: Config
    gain: float  # log(baseline cost / cost)
    knobs: tuple[KnobVerdict, ...]  # every knob of the leader, dropped ones first
