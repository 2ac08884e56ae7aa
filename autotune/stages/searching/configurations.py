"""The configurations that a search has measured, and what came of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autotune.job.configs import key_of
from autotune.results import Trial, TrialState
from autotune.stages.searching.block_record import BlockRecord
from autotune.words import no_effect_words
from autotune_spaces.base import Config

NOT_MEASURED = "not measured: a part of it failed, or other load disturbed it"


class Figure(NamedTuple):
    """What the models say of a configuration, over the unchanged job."""

    gain: float  # log speed-up
    sd: float
    second_gain: float | None  # by the second objective


@dataclass
class Configuration:
    """A configuration that was measured."""

    number: int
    first: BlockRecord
    blocks: int = 0  # with a cost
    failures: int = 0
    wall_s: float = 0.0
    state: TrialState = TrialState.PRUNED
    reason: str = NOT_MEASURED
    no_effect: dict[str, str] = field(default_factory=dict)
    figure: Figure | None = None  # once the blocks that say so are forgotten

    @property
    def config(self) -> Config:
        return self.first.config

    @property
    def complete(self) -> bool:
        return self.state is TrialState.COMPLETE

    @property
    def works(self) -> bool:
        """Whether nothing speaks against it."""
        return self.complete or self.reason == NOT_MEASURED

    def trial(self, figure: Figure | None) -> Trial:
        """``figure``: None if it is not known."""
        second = None if figure is None else figure.second_gain
        return Trial(
            number=self.number,
            config=self.first.config,
            state=self.state,
            log_ratio=None if figure is None else -figure.gain,
            standard_error=None if figure is None else figure.sd,
            pairs=self.blocks,
            reason=self.reason,
            origin=self.first.purpose,
            no_effect=self.no_effect,
            anatomy=self.first.parts,
            wall_s=round(self.wall_s, 3),
            settle_s=self.first.settle_s,
            node=self.first.node,
            second_log_ratio=None if second is None else -second,
        )


class Configurations:
    """All of them, by configuration, in the order of their first blocks. The unchanged job is none
    of them."""

    def __init__(self) -> None:
        self._all: dict[str, Configuration] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Configuration]:
        return iter(self._all.values())

    def __contains__(self, config: Config) -> bool:
        return key_of(config) in self._all

    @property
    def keys(self) -> set[str]:
        return set(self._all)

    def note(self, block: BlockRecord) -> Configuration | None:
        """Note a block before its outcome; returns its configuration if it is the first of it."""
        key = key_of(block.config)
        if not block.config or key in self._all:
            return None
        self._all[key] = Configuration(len(self._all), block)
        return self._all[key]

    def measured(self, block: BlockRecord, no_effect: Mapping[str, str]) -> None:
        """The block was measured; ``no_effect``: knobs without effect, with the reason."""
        it = self._all.get(key_of(block.config))
        if it is None:
            return
        it.wall_s += block.wall_s
        if block.log_cost is not None:
            it.blocks += 1
            if it.works:
                it.state, it.reason = TrialState.COMPLETE, ""
        if no_effect and it.works:
            it.state, it.no_effect = TrialState.FAILED, dict(no_effect)
            it.reason = no_effect_words(no_effect)

    def failed(self, config: Config, kind: str, reason: str) -> bool:
        """A block failed. Returns whether the configuration is to blame: one that has worked may
        fail once because of the machine."""
        it = self._all[key_of(config)]
        it.failures += 1
        if kind == "failed" and it.blocks and it.failures == 1:
            return False
        if it.works:
            it.state, it.reason = TrialState(kind), reason
        return True
