"""A job that ends while it is measured: the search continues in the next session, and nothing is
lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from replay import Loss, ReplayTable
from replayed import Machine, context_of, job, run, table
from tiers import slow

from autotune.errors import BaselineError
from autotune.executors.base import FixedRun, LiveSession, SessionFailed
from autotune.results import TrialState
from autotune.stages.context import KILLS
from autotune.stages.measuring.kept_session import BlockFailed
from autotune.stages.measuring.own_blocks import OwnBlocks
from autotune.stages.measuring.series import LiveSeries, Measured
from autotune_spaces.base import Config
from autotune_trials.protocol.messages import Block, BlockReport, Record

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture(autouse=True)
def _no_signal_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.stages.context.ON_ITS_WAY_S", 0.0)


FASTER = {"num_workers": 2}


class ShortJob(Machine):
    """Sessions end after ``steps`` iterations."""

    def __init__(self, table: ReplayTable, steps: int, how: str = "ended") -> None:
        super().__init__(table)
        self.steps, self.how = steps, how

    def open_live(self) -> LiveSession:
        live = super().open_live()
        return live if self.how == "table" and not self.stretches else _ShortSession(live, self)


class _ShortSession(LiveSession):
    def __init__(self, inner: LiveSession, machine: ShortJob) -> None:
        self._inner, self._machine, self._left = inner, machine, machine.steps
        self.hello = inner.hello

    def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
        reports: list[BlockReport] = []
        for block in blocks:
            self._left -= block.iterations + block.min_settle
            try:
                if self._left < 0:
                    how = self._machine.how
                    raise SessionFailed(
                        "crash" if how == "table" else how,
                        "the command finished by itself",
                        log_tail="Traceback of the job",
                        where="train.py:7",
                    )
                reports += self._inner.measure([block])
            except SessionFailed as failure:
                failure.partial = tuple(reports)
                raise
        return reports

    def close(self) -> None:
        self._inner.close()


@contextmanager
def own_blocks_of(folder: Path, machine: Machine) -> Iterator[OwnBlocks]:
    with context_of(folder, machine) as context, OwnBlocks(context) as live:
        yield live


@contextmanager
def series_of(folder: Path, machine: Machine, room: int = 0) -> Iterator[LiveSeries]:
    with context_of(folder, machine) as context, LiveSeries(context, 0.016, room) as live:
        yield live


def gain_of(blocks: Sequence[Measured]) -> float:
    """log(cost with FASTER / cost of the unchanged job)."""
    assert all(block.log_cost is not None for block in blocks)
    faster, own = (
        [block.log_cost for block in blocks if block.config == config] for config in (FASTER, {})
    )
    return fmean(faster) - fmean(own)


@pytest.mark.parametrize("how", ["ended", "crash", "killed"])
@pytest.mark.parametrize("steps", [200, slow(30), 20])
def test_a_series_is_measured_in_as_many_sessions_as_it_takes(
    tmp_path: Path, steps: int, how: str
) -> None:
    """Beyond its planned steps, a job may also fail (its learning rates end), or be killed. Four
    blocks of 16 iterations are requested; the job may have 20.
    """
    machine = ShortJob(table(), steps=steps, how=how)
    if how == "killed":  # is no reason for shorter blocks
        machine.steps = 200
    with series_of(tmp_path, machine, room=12) as live:
        found = [live.measure([{}, FASTER, FASTER, {}]) for _ in range(4)]
    assert all(gain_of(blocks) == pytest.approx(-0.3567, abs=0.1) for blocks in found)  # log 0.7
    assert len(machine.sessions) >= 2


class _Residue(LiveSession):
    """The unchanged job runs out of memory in a process that has run something else."""

    def __init__(self, inner: LiveSession) -> None:
        self._inner, self._changed = inner, False
        self.hello = inner.hello

    def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
        reports = []
        for block in blocks:
            [report] = self._inner.measure([block])
            self._changed |= bool(block.knobs)
            failed = self._changed and not block.knobs
            reports.append(
                replace(report, window=None, error="oom: none left") if failed else report
            )
        return reports

    def close(self) -> None:
        self._inner.close()


class ResidueJob(Machine):
    def open_live(self) -> LiveSession:
        return _Residue(super().open_live())


def test_an_unchanged_job_that_fails_after_another_configuration_is_tried_in_a_new_process(
    tmp_path: Path,
) -> None:
    with series_of(tmp_path, ResidueJob(table())) as live:
        measured = live.measure([{}, FASTER, {}, FASTER])
        assert [block.failure for block in measured] == [None] * 4
        assert live.restarts == 1


def test_a_job_too_short_for_any_block_says_so(tmp_path: Path) -> None:
    with (
        own_blocks_of(tmp_path, ShortJob(table(), steps=9)) as live,
        pytest.raises(BaselineError, match="ended before one block"),
    ):
        live.size()


def test_a_job_that_raises_early_every_time_is_not_called_short_but_told_its_error(
    tmp_path: Path,
) -> None:
    """The first blocks succeed, so the error may come from the job's end; after three sessions this
    is no longer plausible.
    """
    machine = ShortJob(table(cost_s=2e-5), steps=30, how="crash")
    with own_blocks_of(tmp_path, machine) as live:
        live.size()
        with pytest.raises(BaselineError, match="the job failed before one block") as caught:
            live.block()
    assert str(caught.value).startswith("train.py:7: "), "where it fails, not the command"
    assert "Traceback of the job" in str(caught.value)
    assert "by itself" in caught.value.remedy


def test_a_candidate_that_outlasts_the_job_costs_the_trial_and_not_the_run(tmp_path: Path) -> None:
    class Longer(ShortJob):
        def report(self, block: Block, config: Config) -> BlockReport:
            if config:
                raise SessionFailed("ended", "the command finished by itself")
            return super().report(block, config)

    machine = Longer(table(), steps=10_000)
    with series_of(tmp_path, machine) as live:
        _, candidate, after = live.measure([{}, FASTER, {}])
    assert candidate.failure is not None
    assert "ended before one block" in candidate.failure.reason
    assert after.log_cost is not None


def test_a_candidate_that_crashes_is_tried_once_in_a_fresh_session(tmp_path: Path) -> None:
    class Crashing(ShortJob):
        def report(self, block: Block, config: Config) -> BlockReport:
            if config:
                raise SessionFailed("crash", "exit code 1")
            return super().report(block, config)

    machine = Crashing(table(), steps=10_000)
    with series_of(tmp_path, machine, room=100) as live:
        _, candidate = live.measure([{}, FASTER])
    assert candidate.failure is not None and "crash" in candidate.failure.reason
    assert len(machine.sessions) == 2


def test_a_candidate_that_crashes_at_once_is_not_tried_again(tmp_path: Path) -> None:
    """Its very first iteration raises, so this is not the job's end."""

    class Crashing(ShortJob):
        def report(self, block: Block, config: Config) -> BlockReport:
            if not config:
                return super().report(block, config)
            failure = SessionFailed("crash", "exit code 1")
            failure.in_block = 0
            raise failure

    machine = Crashing(table(), steps=10_000)
    with series_of(tmp_path, machine, room=100) as live:
        _, candidate = live.measure([{}, FASTER])
    assert candidate.failure is not None and "crash" in candidate.failure.reason
    assert len(machine.sessions) == 1


def test_a_job_that_fails_only_with_batches_from_memory_is_not_broken(tmp_path: Path) -> None:
    class WantsItsOwn(ShortJob):
        def open_live(self) -> LiveSession:
            return _WithoutCeiling(super().open_live(), self)

    class _WithoutCeiling(_ShortSession):
        def measure(self, blocks: Sequence[Block]) -> list[BlockReport]:
            if blocks[0].cached_batches:
                raise SessionFailed("crash", "exit code 1")
            return super().measure(blocks)

    with own_blocks_of(tmp_path, WantsItsOwn(table(), steps=10_000)) as live:
        live.size()
        with pytest.raises(BlockFailed):
            live.block_from_memory()
        assert live.time_cost(live.block()) > 0


class Killed(ShortJob):
    """The job, or a worker of its DataLoader, is killed ``times`` times when a candidate's block
    begins.

    The job survives the loss of a worker.
    """

    def __init__(self, times: int, *, only_worker: bool = False) -> None:
        super().__init__(table(), steps=10_000)
        self.times, self.only_worker = times, only_worker

    def report(self, block: Block, config: Config) -> BlockReport:
        if not config or not self.times:
            return super().report(block, config)
        self.times -= 1
        if self.only_worker:
            return BlockReport(
                block.id,
                0,
                None,
                error=(
                    "knob: loader settings: DataLoader worker (pid 7) is killed by signal: Killed."
                ),
            )
        raise SessionFailed("killed", "killed (SIGKILL)")


@pytest.mark.parametrize("only_worker", [False, True])
def test_who_is_killed_twice_in_a_candidates_block_is_measured_all_the_same(
    only_worker: bool, tmp_path: Path
) -> None:
    machine = Killed(KILLS - 1, only_worker=only_worker)
    with series_of(tmp_path, machine) as live:
        for _ in range(KILLS):  # as a search does
            blocks = live.measure([{}, FASTER])
        assert gain_of(blocks) == pytest.approx(-0.3567, abs=0.1)
    assert machine.times == 0


@pytest.mark.parametrize(
    ("only_worker", "said"),
    [(False, "killed 3 times"), (True, "workers of its DataLoader were killed 3 times in a row")],
)
def test_a_candidate_with_which_they_are_killed_each_time_is_infeasible(
    only_worker: bool, said: str, tmp_path: Path
) -> None:
    """For example by a memory guard other than the kernel's: larger sizes are not tried, either."""
    with series_of(tmp_path, Killed(100, only_worker=only_worker)) as live:
        blocks = live.measure([FASTER] * KILLS + [{}])
    failure = next(block.failure for block in blocks if block.failure is not None)
    assert failure.kind == "infeasible" and said in failure.reason
    assert blocks[-1].log_cost is not None


class Planned(Machine):
    """Its third block kills the job. Records the requested blocks."""

    def __init__(self) -> None:
        super().__init__(table())
        self.asked: list[Block] = []

    def report(self, block: Block, config: Config) -> BlockReport:
        self.asked.append(block)
        if len(self.asked) == 3:
            raise SessionFailed("killed", "killed (SIGKILL)")
        return super().report(block, config)


def test_in_a_new_process_the_rest_of_a_plot_settles_first(tmp_path: Path) -> None:
    """Its blocks were planned as cheap switches between configurations."""
    machine = Planned()
    with series_of(tmp_path, machine) as live:
        measured = live.measure([{}, {"amp_dtype": "bfloat16"}] * 3)
    assert len(measured) == 6 and len(machine.sessions) == 2
    assert [b.level for b in machine.asked] == [True, False, False, True, False, False, False]
    assert machine.asked[3].min_settle == Block.min_settle


class RunsOutOfMemory(Machine):
    """bfloat16 runs out of memory: the agent reports that, then the job dies of it."""

    dies = False

    def report(self, block: Block, config: Config) -> BlockReport:
        if self.dies:
            self.dies = False
            raise SessionFailed("oom", "CUDA out of memory")
        report = super().report(block, config)
        if "amp_dtype" not in config:
            return report
        self.dies = True
        return replace(report, window=None, error="oom: CUDA out of memory")


@pytest.mark.parametrize("following", [{}, FASTER])
def test_running_out_of_memory_is_not_blamed_on_the_next_block(
    tmp_path: Path, following: Config
) -> None:
    machine = RunsOutOfMemory(table())
    with series_of(tmp_path, machine) as live:
        before, failed, after = live.measure([{}, {"amp_dtype": "bfloat16"}, following])
    assert failed.failure is not None and failed.failure.kind == "infeasible"
    assert before.failure is None and after.failure is None
    assert after.config == following and after.log_cost is not None


class Hangs(Machine):
    """bfloat16 hangs in its third block, and in ``times`` - 1 later ones."""

    def __init__(self, times: int) -> None:
        super().__init__(table(Loss()))
        self.times, self.seen = times, 0

    def report(self, block: Block, config: Config) -> BlockReport:
        self.seen += "amp_dtype" in config
        if "amp_dtype" in config and self.seen >= 3 and self.times:
            self.times -= 1
            raise SessionFailed("hang", "no sign of progress for 15 s")
        return super().report(block, config)


@pytest.mark.parametrize(("times", "kept"), [(1, True), (20, False)])
def test_a_configuration_that_has_worked_may_fail_once(
    tmp_path: Path, times: int, kept: bool
) -> None:
    result = run(tmp_path, Hangs(times), job(tmp_path, "{amp_dtype: [bfloat16]}"))
    assert ("amp_dtype" in result.knobs) is kept


@pytest.mark.parametrize(("kind", "allowed"), [slow("killed", KILLS), ("crash", 1), ("hang", 1)])
def test_how_often_a_fresh_run_may_fail(tmp_path: Path, kind: str, allowed: int) -> None:
    """The last of ``allowed`` attempts counts."""
    failures = iter([SessionFailed(kind, "as planted")] * (allowed - 1))

    def fails_first(request: FixedRun, record: Record) -> Record:
        if request.config and (failure := next(failures, None)):
            raise failure
        return record

    assert run(tmp_path, Machine(table(), fails_first)).verdict == "tuned"
    always = Machine(
        table(),
        lambda request, record: (
            record if not request.config else _raise(SessionFailed(kind, "always"))
        ),
    )
    assert run(tmp_path / "other", always).verdict == "keep-baseline"
    first = next(r.config for r in always.confirmed() if r.config)
    assert [r.config for r in always.confirmed()].count(first) == allowed


def _raise(failure: SessionFailed) -> Record:
    raise failure


class FailsOnce(Machine):
    """Only the first block of the unchanged job in the search fails."""

    def report(self, block: Block, config: Config) -> BlockReport:
        if config or not block.id.startswith("p"):
            return super().report(block, config)
        self.report = super().report  # type: ignore[method-assign]
        return BlockReport(block.id, 0, None, error="no iteration finished")


def test_after_a_failed_block_of_the_unchanged_job_the_same_command_goes_on(tmp_path: Path) -> None:
    machine = FailsOnce(table())
    with pytest.raises(BaselineError, match="the unchanged job could not be measured"):
        run(tmp_path, machine)
    assert run(tmp_path, machine).verdict == "tuned"


class TooLarge(Machine):
    """The job dies with more than one worker, by default because it runs out of memory."""

    def __init__(self, kind: str = "oom", detail: str = "MemoryError: no room") -> None:
        self.failure = SessionFailed(kind, detail)
        self.failure.in_block = 0
        speeds = {"num_workers": {"2": 0.7}, "amp_dtype": {"bfloat16": 0.6}}
        super().__init__(table(Loss(), factors=speeds))
        self.died: list[Config] = []

    def report(self, block: Block, config: Config) -> BlockReport:
        if config.get("num_workers") == 2:
            self.died.append(dict(config))
            raise self.failure
        return super().report(block, config)


def test_what_ran_out_of_memory_costs_one_start(tmp_path: Path) -> None:
    """Whatever else the series would have tried with it."""
    machine = TooLarge()
    result = run(tmp_path, machine, job(tmp_path, "{num_workers: [2], amp_dtype: [bfloat16]}"))
    assert machine.died == [{"num_workers": 2}]
    assert dict(result.knobs) == {"amp_dtype": "bfloat16"}
    states = {trial.state for trial in result.trials if "num_workers" in trial.config}
    assert states == {TrialState.INFEASIBLE}


def measure_a_large_one_twice(folder: Path, machine: TooLarge) -> tuple[list[Measured], list[bool]]:
    """The blocks of a series with a larger configuration in between, and which of them worked."""
    large, larger = {"num_workers": 2}, {"num_workers": 2, "amp_dtype": "bfloat16"}
    with series_of(folder, machine) as live:
        blocks = live.measure([{}, large, larger, large, {}])
    assert machine.died == [large]
    return blocks, [block.failure is None for block in blocks]


def test_what_crashed_costs_one_start_of_its_series(tmp_path: Path) -> None:
    """Nothing more is blamed for it."""
    machine = TooLarge("crash", "a fixed batch size")
    blocks, worked = measure_a_large_one_twice(tmp_path, machine)
    assert worked == [True, False, True, True, True]
    assert [block.log_cost is None for block in blocks] == [False, True, True, True, False]


def test_a_session_that_cannot_start_is_no_candidates_fault(tmp_path: Path) -> None:
    """After a crash the job fails to start once: its port is still in use, say."""
    compiled: Config = {"amp_dtype": "bfloat16"}

    class Restarting(Machine):
        def open_live(self) -> LiveSession:
            self.starts = getattr(self, "starts", 0) + 1
            if self.starts == 3:  # it is tried twice itself
                raise SessionFailed("crash", "address already in use")
            return super().open_live()

        def report(self, block: Block, config: Config) -> BlockReport:
            if config == FASTER:
                raise SessionFailed("crash", "exit code 1")
            return super().report(block, config)

    machine = Restarting(table())
    with series_of(tmp_path, machine) as live:
        blocks = live.measure([{}, FASTER, compiled, {}])
    assert [block.failure is None for block in blocks] == [True, False, True, True]
    assert blocks[2].log_cost is not None and machine.starts == 4


def test_the_rest_of_a_series_that_contains_it_is_not_started(tmp_path: Path) -> None:
    blocks, worked = measure_a_large_one_twice(tmp_path, TooLarge())
    assert worked == [True, False, False, False, True]
    reasons = [block.failure.reason for block in blocks if block.failure is not None]
    assert reasons[0] == reasons[2] and reasons[1].startswith("not tried, because a part of it")


def test_a_job_with_a_table_of_an_epochs_length_is_measured_in_epochs_that_end(
    tmp_path: Path,
) -> None:
    """Its epoch of 16 iterations is not made to go on: it would raise IndexError."""
    machine = ShortJob(table(Loss()), 16, "table")
    result = run(tmp_path, machine)
    assert result.verdict == "tuned" and not machine.stretches
