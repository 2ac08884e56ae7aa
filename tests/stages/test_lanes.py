"""Work spread over several (replayed) machines: nothing is lost, done twice, or compared across
machines.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from replayed import Machine, context_of, job, table

from autotune.executors.base import NODE, Executor, FixedRun, LiveSession, SessionFailed
from autotune.job.configs import key_of
from autotune.stages.context import RunContext
from autotune.stages.measuring.lanes import MOST_LOST, spread
from autotune.stages.measuring.pair_figures import node_of
from autotune.stages.measuring.pairs import Pairs, Seed
from autotune.stages.observe import observe
from autotune.stages.search import search
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Record

SPACE = "{num_workers: [1, 2, 4], amp_dtype: [bfloat16], optimizer_impl: [fused, foreach]}"
BLOCK_S = 0.01


class Lane(Machine):
    """One of several machines. ``breaks``: the measurement at which it is lost."""

    def __init__(self, node: str, breaks: Callable[[Config], bool] = lambda config: False) -> None:
        super().__init__(table(), seed=len(node))
        self.node, self.breaks, self.gone, self.at_once, self.most_at_once = (
            node,
            breaks,
            False,
            0,
            0,
        )
        self.reports: list[Config] = []

    def report(self, block: Block, config: Config) -> BlockReport:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        time.sleep(BLOCK_S)
        self.at_once -= 1
        self.reports.append(config)
        self._check(config)
        return super().report(block, config)

    def run_fixed(self, request: FixedRun) -> Record:
        self._check(request.config)
        record = super().run_fixed(request)
        time.sleep(BLOCK_S)
        return replace(record, notes={**record.notes, NODE: self.node})

    def open_live(self) -> LiveSession:
        self._check({})
        return super().open_live()

    def _check(self, config: Config) -> None:
        self.gone = self.gone or self.breaks(config)
        if self.gone:
            raise SessionFailed("lost", f"slot {self.node} is lost")


class Several(Machine):
    """``come``: the machines; ``at_first`` of them exist from the start, the others appear when
    these are lost.
    """

    def __init__(self, *come: Lane, at_first: int | None = None) -> None:
        super().__init__(table())
        self.all, self.shown = list(come), len(come) if at_first is None else at_first

    def lanes(self) -> Sequence[Executor]:
        here = [lane for lane in self.all[: self.shown] if not lane.gone]
        if not here:
            self.shown += 1
        return here

    def lane(self, node: str) -> Executor | None:
        return next((lane for lane in self.lanes() if lane.node == node), None)


@contextmanager
def bench_of(
    folder: Path, executor: Executor, trials: int = 12, kind: str = "tpe"
) -> Iterator[RunContext]:
    spec = job(folder, SPACE, f"budget: {{trials: {trials}, minutes: 5}}\nsearch: {kind}\n")
    with context_of(folder, executor, spec) as context:
        yield context


def trials_of(folder: Path, executor: Executor, trials: int = 12, kind: str = "tpe"):
    with bench_of(folder, executor, trials, kind) as context:
        return search(context, observe(context)).trials


def test_one_lane_searches_as_no_lanes_do(tmp_path: Path) -> None:
    alone = trials_of(tmp_path / "alone", Machine(table()))
    one = trials_of(tmp_path / "one", Several(Lane("a")))
    assert [(t.number, t.config, t.origin) for t in one] == [
        (t.number, t.config, t.origin) for t in alone
    ]
    assert {t.node for t in one} == {"a"} and {t.node for t in alone} == {""}


def test_every_lane_has_trials_and_none_has_two_at_once(tmp_path: Path) -> None:
    lanes = [Lane("a"), Lane("bb"), Lane("ccc")]
    trials = trials_of(tmp_path, Several(*lanes))
    assert {t.node for t in trials} == {"a", "bb", "ccc"}
    assert [lane.most_at_once for lane in lanes] == [1, 1, 1]
    keys = [key_of(t.config) for t in trials]
    assert len(set(keys)) == len(keys) == len({t.number for t in trials})
    assert max(t.number for t in trials) == len(trials) - 1
    best = min(trials, key=lambda t: t.log_ratio or 0.0)
    assert best.config["amp_dtype"] == "bfloat16" and best.config["num_workers"] == 2


def test_the_budget_counts_trials_in_flight(tmp_path: Path) -> None:
    assert len(trials_of(tmp_path, Several(Lane("a"), Lane("bb"), Lane("ccc")), trials=4)) == 4


def test_the_trial_of_a_lost_machine_is_measured_on_another(tmp_path: Path) -> None:
    broken = Lane("broken")
    broken.breaks = lambda config: bool(config) and len(broken.reports) > 8
    several = Several(broken, Lane("a"))
    trials = trials_of(tmp_path, several)
    alone = trials_of(tmp_path / "alone", Machine(table()))
    assert broken.gone
    assert len(trials) == len(alone)
    assert all(t.state in ("complete", "pruned") for t in trials)
    keys = [key_of(t.config) for t in trials]
    assert len(set(keys)) == len(keys)


def test_when_all_are_lost_the_search_waits_for_the_next_machine(tmp_path: Path) -> None:
    first, later = Lane("first"), Lane("later")
    several = Several(first, later, at_first=1)
    with bench_of(tmp_path, several) as context:
        observation = observe(context)
        first.breaks = lambda config: bool(config)
        trials = search(context, observation).trials
    assert {t.node for t in trials} == {"later"} and all(
        t.state in ("complete", "pruned") for t in trials
    )


def test_a_configuration_that_takes_machine_after_machine_with_it_is_given_up(
    tmp_path: Path,
) -> None:
    def deadly(config: Config) -> bool:
        return config.get("num_workers") == 4

    lanes = [Lane(f"{n}", deadly) for n in range(12)]
    trials = trials_of(tmp_path, Several(*lanes, at_first=1))
    fatal = [t for t in trials if t.config == {"num_workers": 4}]
    assert len(fatal) == 1 and fatal[0].state == "failed"
    assert f"its machine was lost {MOST_LOST} times" in fatal[0].reason
    assert any(t.state == "complete" for t in trials)


def test_both_runs_of_a_pair_are_of_one_machine(tmp_path: Path) -> None:
    broken = Lane("broken")
    several = Several(broken, Lane("a"), Lane("bb"))
    with bench_of(tmp_path, several) as context:
        pairs = Pairs(context, {"num_workers": 2}, {}, "confirm1")
        pairs.ensure(3)
        # in mid-pair: its baseline run cannot be used on another machine
        broken.breaks = lambda config: bool(config)
        pairs.ensure(9)
        nodes = [(node_of(pairs.reference[s]), node_of(pairs.candidate[s])) for s in range(9)]
        assert all(one == other for one, other in nodes) and {"a", "bb"} <= {
            one for one, _ in nodes
        }
        # like a resumed run: nothing is measured again
        again = Pairs(context, {"num_workers": 2}, {}, "confirm1")
        before = [len(lane.sessions) for lane in several.all]
        again.ensure(9)
        assert [len(lane.sessions) for lane in several.all] == before
        assert again.figures.log_speedups() == pairs.figures.log_speedups()


def test_an_error_ends_all_lanes_and_is_raised_once(tmp_path: Path) -> None:
    begun: list[int] = []

    def serve(context: RunContext, pieces: Iterator[int]) -> None:
        for piece in pieces:
            begun.append(piece)
            if piece == 3:
                raise ValueError("planned")
            time.sleep(0.05)

    numbers = iter(range(1, 100))
    with (
        bench_of(tmp_path, Several(Lane("a"), Lane("bb"))) as context,
        pytest.raises(ValueError, match="planned"),
    ):
        spread(context, lambda: next(numbers, None), serve, lambda piece, failure: None)
    assert len(begun) < 10


def test_what_is_run_beside_a_pair_is_run_elsewhere_if_its_machine_is_lost_meanwhile(
    tmp_path: Path,
) -> None:
    lane = Lane("a")
    with bench_of(tmp_path, Several(lane)) as context:
        pairs = Pairs(context, {"num_workers": 2}, {}, "confirm1")
        pairs.ensure(1)
        assert node_of(pairs.reference[0]) == "a"
        lane.breaks = lambda config: True
        again = pairs.repeat_reference(0)
    assert (
        lane.gone and node_of(again) == "" and again.losses[:10] == pairs.reference[0].losses[:10]
    )


def test_no_machine_is_waited_for_where_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss check requests pairs that the confirmation has already made; by then, all machines
    may be gone.
    """
    several = Several(Lane("a"))
    with bench_of(tmp_path, several) as context:
        pairs = Pairs(context, {"num_workers": 2}, {}, "confirm1")
        pairs.ensure(2)
        monkeypatch.setattr(several, "lanes", lambda: pytest.fail("a machine is asked for"))
        pairs.ensure(2)
        pairs.ensure(1)
    assert len(pairs.figures.log_speedups()) == 2


def test_machines_lost_with_one_piece_are_not_held_against_another(tmp_path: Path) -> None:
    pieces, begun, given_up = 12, Counter[int](), []
    numbers = iter(range(pieces))

    def take() -> Seed | None:
        # no other reference to it, so the next one may get the same address
        return next((Seed(n) for n in numbers), None)

    def serve(lane: RunContext, mine: Iterator[Seed]) -> None:
        for piece in mine:
            begun[piece.seed] += 1
            if begun[piece.seed] < MOST_LOST:
                lane.executor.gone = True
                raise SessionFailed("lost", "the power is out")

    with bench_of(tmp_path, Several(*(Lane(f"{n}") for n in range(MOST_LOST * pieces)))) as context:
        spread(context, take, serve, lambda piece, failure: given_up.append(piece.seed))
    assert not given_up and begun == dict.fromkeys(range(pieces), MOST_LOST)


def test_lanes_feed_one_model(tmp_path: Path) -> None:
    lanes = [Lane("a"), Lane("bb"), Lane("ccc")]
    trials = trials_of(tmp_path, Several(*lanes), trials=1000, kind="model")
    assert [lane.most_at_once for lane in lanes] == [1, 1, 1]
    best = min(trials, key=lambda t: t.log_ratio or 0.0)
    assert best.config["amp_dtype"] == "bfloat16" and best.config["num_workers"] == 2
    assert [t.number for t in trials] == list(range(len(trials)))


def test_a_plot_that_takes_machine_after_machine_with_it_is_given_up(tmp_path: Path) -> None:
    lanes = [Lane(f"{n}", lambda config: config.get("num_workers") == 4) for n in range(12)]
    trials = trials_of(tmp_path, Several(*lanes, at_first=1), trials=1000, kind="model")
    fatal = [t for t in trials if t.config.get("num_workers") == 4]
    assert fatal and all(
        t.state == "failed" and f"its machine was lost {MOST_LOST} times" in t.reason for t in fatal
    )
    assert any(t.state == "complete" for t in trials)
