"""Live sessions: plans of blocks, one configuration after another in the running job.

WARMUP ── Hello ─▶ wait for Plan ─▶ block, block, … ─▶ PlanDone ─▶ wait for Plan ─▶ …

block   apply knobs │ SETTLING … │ MEASURING … │ report       counted in iterations
"""

from __future__ import annotations

import enum
import math
import sys
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.compiled_forward import compile_notes
from autotune_trials.agent.core.mode import Mode, hello
from autotune_trials.agent.core.settling import (
    AFTER_DRAIN,
    DRAIN_SHARE,
    SETTLE_SHARE,
    LockstepSettling,
    Settling,
)
from autotune_trials.agent.core.window_recorder import WindowRecorder
from autotune_trials.agent.facts.job_facts import in_force, startup_s
from autotune_trials.agent.facts.ranks import rank, world_size
from autotune_trials.agent.patches import scheduler
from autotune_trials.protocol.messages import (
    ROUNDS,
    Block,
    BlockReport,
    Hello,
    Plan,
    PlanDone,
    Progress,
    Window,
)

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.core.iteration import Iteration

MOST_RECOMPILES = 64  # of the job's own compiled functions, with all that knobs set
MOST_CACHED = 20  # times the planned iterations that a block with cached batches may get


class Stage(enum.Enum):
    """The stage of a live session."""

    WARMUP = "the tuner has not been told of the job yet"
    SETTLING = "a block's knobs are set, its times have not levelled off"
    MEASURING = "the iterations of a block's window"
    LOST = "the job ran out of memory in a block, and goes on"


@dataclass
class Run:
    """The block that is running."""

    block: Block
    settling: Settling | None = None  # None until its knobs are set
    began_s: float = field(default_factory=perf_counter)
    settle_s: float = 0.0
    opened: WindowRecorder | None = None  # becomes ``window`` once times have levelled off
    window: WindowRecorder | None = None
    pass_over: int = 0  # iterations still to be left out of the window
    # number of compiled graphs when measuring began; None: we compile nothing
    graphs: int | None = None
    # it has failed on this rank, and runs on with the job's own settings: all ranks have to take as
    # many steps
    error: str = ""

    @property
    def spent_s(self) -> float:
        return perf_counter() - self.began_s


class LiveMode(Mode):
    """Runs the tuner's plans."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.stage = Stage.WARMUP
        self._hello: Hello | None = None
        self._plan_id = 0
        self._blocks: list[Block] = []  # still to run
        self._run: Run | None = None
        # the last block failed and the job is back at its own settings: the next block, planned to
        # follow another configuration, cannot be a cheap switch
        self._fallen_back = False
        self._alone = True
        # the first epoch must end before Hello is sent
        self._waits_for_epoch_end = agent.config.first_epoch_s > 0
        self._waiting_since_s = 0.0

    def iteration_ended(self, iteration: Iteration) -> None:
        agent = self.agent
        if self._run is not None:
            self.report_progress()
            self._go_on(self._run, iteration)
        elif self.stage is Stage.LOST:
            # the job survived: back to its own settings, then on with the plan
            with agent.timer.own_time():
                self._give_all_back()
                self._advance()
        elif self.stage is Stage.WARMUP:
            agent.loss.drop_current()
            if iteration.index == 0:
                self.startup_s = startup_s()
                self.register_end_of_child()
            self._look_for_epoch_end(iteration)
            if (
                not self._waits_for_epoch_end
                and agent.state.iterations >= agent.config.warmup_steps
            ):
                with agent.timer.own_time():
                    self._send_hello()

    def started_over(self) -> None:
        self.startup_s = startup_s()

    def _look_for_epoch_end(self, iteration: Iteration) -> None:
        """Let the first epoch end normally: what its evaluation leaves behind (the heap, caches) is
        part of the job.

        After that the loader's epochs are stretched; until then they must end, or no evaluation
        would run.
        """
        agent = self.agent
        if self._waits_for_epoch_end:
            if not self._waiting_since_s:
                # all ranks must send Hello at the same step
                self._waiting_since_s = perf_counter()
                self._waits_for_epoch_end = world_size(agent.torch) == 1
            over = perf_counter() - self._waiting_since_s > agent.config.first_epoch_s
            self._waits_for_epoch_end = self._waits_for_epoch_end and not (
                iteration.turnovers or over
            )
            self.report_progress()
        # a loader iterated together with others must end where it normally does: zip(…,
        # strict=True) checks that
        agent.loaders.serving.set_stretch(
            agent.config.stretch
            and not self._waits_for_epoch_end
            and not agent.consumption.walks_together
        )

    def evaluated(self, entry: Entry, args: tuple[Any, ...]) -> None:
        if self._run is not None and self._alive_s:
            self.report_progress()

    def on_crash(self) -> None:
        run = self._run
        if run is not None and run.settling is not None:
            done = run.settling.count + (len(run.window) if run.window is not None else 0)
            self.agent.channel.send(
                Progress(
                    rank(self.agent.torch),
                    self.agent.state.iterations,
                    self._slowest_s,
                    in_block=done,
                )
            )

    def on_out_of_memory(self, text: str) -> None:
        if self._run is not None:
            self._report(self._run, error=f"oom: {text}")  # at once: the job usually dies of it
            self._run, self.stage = None, Stage.LOST

    # ------------------------------------------------------------------ plans

    def _send_hello(self) -> None:
        self._hello = hello(self.agent)
        self._alone = world_size(self.agent.torch) == 1
        scheduler.freeze(self.agent.patches, self.agent.torch)
        if self.agent.channel.send(self._hello):
            self._next_plan()
        else:
            self.agent.stop()

    def _next_plan(self) -> None:
        """Wait for the tuner while the job is paused. If it is gone, leave the job as it was."""
        while True:
            plan = self.agent.channel.receive()
            if not isinstance(plan, Plan):
                self.agent.stop()
                return
            self._plan_id, self._blocks = plan.id, list(plan.blocks)
            if self._start_block():
                return

    def _start_block(self) -> bool:
        """Begin the next block that can be configured. False if the plan is done and the next one
        must be awaited."""
        while self._blocks:
            run = Run(self._blocks.pop(0))
            if self._configure(run):
                self._run, self.stage = run, Stage.SETTLING
                return True
        self.agent.channel.send(PlanDone(self._plan_id, rank(self.agent.torch)))
        return False

    # ------------------------------------------------------------------ one block

    def _configure(self, run: Run) -> bool:
        """Switch the job to the block's configuration; a knob that raises ends the block."""
        if self._fallen_back and self._alone:
            settle = max(run.block.min_settle, Block.min_settle)
            run.block = replace(run.block, level=True, min_settle=settle)
        self._fallen_back = False
        agent, block = self.agent, run.block
        self.stood_still(slowest_too=True)
        agent.knobs.take_failures()
        agent.loaders.serving.last_rebuild_s = 0.0
        agent.loaders.serving.cancel_drain()
        assert self._hello is not None
        if why := self._not_from_memory(block):  # on all ranks
            self._fail_block(run, f"knob: {why}")
            return False
        try:
            agent.loaders.serving.serve_cached(block.cached_batches)
            if block.knobs and self._hello.job.own_compile:
                self._allow_recompiles()
            agent.knobs.switch(block.knobs, self._hello)
            if agent.live.cuda is not None:
                # only now: memory that the last block held (a graph's pool) has just been freed
                agent.torch.cuda.empty_cache()
        except Exception as error:
            if not self._failed(run, f"knob: {type(error).__name__}: {error}"):
                return False
        # since the last iteration ended; the workers did not pause
        paused_s = perf_counter() - agent.timer.clock.last_s
        run.settling = (Settling if self._alone else LockstepSettling)(
            block, agent.loaders.training_source.queue_depth(), paused_s
        )
        return True

    def _not_from_memory(self, block: Block) -> str:
        """Why the job cannot be served batches from memory; "" if it can, or is not to be."""
        if block.cached_batches and self.agent.consumption.walks_together:
            return (
                "the job iterates over several DataLoaders together: serving only one of them from"
                " memory would make it endless"
            )
        if block.cached_batches and self.agent.loaders.choice.cycled:
            return "the job keeps every batch of its DataLoader in memory itself"
        return ""

    def _allow_recompiles(self) -> None:
        """The job's own torch.compile compiles anew for every dtype and layout that knobs set, and
        gives up after eight times: it would then run eagerly, or raise."""
        dynamo: Any = sys.modules.get("torch._dynamo.config")
        own = getattr(dynamo, "recompile_limit", MOST_RECOMPILES)
        if own < MOST_RECOMPILES:
            dynamo.recompile_limit = MOST_RECOMPILES
            self.agent.patches.on_restore(lambda: setattr(dynamo, "recompile_limit", own))

    def _failed(self, run: Run, error: str) -> bool:
        """A knob failed. Whether the block runs on all the same, for the sake of other ranks."""
        if self._alone:
            self._fail_block(run, error)
            return False
        self._give_all_back()
        run.error = run.error or error
        return True

    def _fail_block(self, run: Run, error: str) -> None:
        """Report the failure and go back to the job's own settings."""
        self._give_all_back()
        self._report(run, error=error)

    def _give_all_back(self) -> None:
        """Restore the job's own settings. If that fails, the agent fails: see Agent.fail."""
        assert self._hello is not None
        self.agent.knobs.switch((), self._hello)
        self.agent.loaders.serving.serve_cached(False)
        self._fallen_back = True

    def _go_on(self, run: Run, iteration: Iteration) -> None:
        agent = self.agent
        if agent.knobs.failures:
            with agent.timer.own_time():
                runs_on = self._failed(run, f"knob: {'; '.join(agent.knobs.take_failures())}")
                if not runs_on:
                    self._advance()
                    return
        if run.graphs is not None and self._compiled_meanwhile(run):
            # e.g. for an epoch's smaller last batch: back to settling
            run.window, self.stage = None, Stage.SETTLING
        if run.window is None:
            agent.loss.drop_current()
            self._settle(run, iteration)
        else:
            self._measure(run, run.window, iteration)

    def _measure(self, run: Run, window: WindowRecorder, iteration: Iteration) -> None:
        agent, block = self.agent, run.block
        if run.pass_over:
            run.pass_over -= 1
            agent.loss.drop_current()
        else:
            agent.loss.end_step()
            window.add(iteration)
        if self._alone and iteration.interrupted and agent.loaders.training_source.queue_depth():
            self._drain(block)  # an evaluation has filled the queue
            run.pass_over = 1 + AFTER_DRAIN
        count = len(window.iterations)
        late = self._alone and agent.timer.clock.last_s - run.began_s > block.max_seconds
        full = count >= block.iterations and not self._rounds_are_missing(run, window)
        if full or (late and count):
            with agent.timer.own_time():
                self._finish_block(run, window)
                self._advance()

    def _rounds_are_missing(self, run: Run, window: WindowRecorder) -> bool:
        """Whether the window has too few batches of each worker and there is time for more.

        With cached batches the job may run many times faster than the block was planned for: it
        then gets more iterations.
        """
        block = run.block
        settings = (
            self.agent.loaders.training_source.settings_in_force()
            if self._alone and block.rounds_seconds
            else None
        )
        if settings is None:
            return False
        wanted = (
            MOST_CACHED * block.iterations
            if block.cached_batches
            else ROUNDS * settings.num_workers
        )
        seconds = block.rounds_seconds / 2 if block.cached_batches else block.rounds_seconds
        return len(window) < wanted and run.spent_s - run.settle_s < seconds

    def _settle(self, run: Run, iteration: Iteration) -> None:
        settling, loaders = run.settling, self.agent.loaders
        assert settling is not None
        interrupted = self._alone and iteration.interrupted
        if interrupted:
            settling.pause()
        else:
            if self.agent.live.cuda is not None:
                # the CPU may be many iterations ahead: its time for one iteration means little
                self.agent.timer.finish()
            settling.add(iteration.time_s)
        # the queue of a rebuilt loader is known only after its first batch
        settling.queue = loaders.training_source.queue_depth()
        if settling.drain_due():
            with self.agent.timer.own_time():
                # before the drain, because batches pile up while the window is opened
                run.opened = self.open_window(keep_interrupted=not self._alone)
            self._drain(run.block)
            settling.drained()
        elif not interrupted and settling.done(run.spent_s):
            run.settle_s = run.spent_s
            loaders.serving.cancel_drain()
            if run.opened is None:
                with self.agent.timer.own_time():
                    run.opened = self.open_window(keep_interrupted=not self._alone)
            run.window, run.opened, self.stage = run.opened, None, Stage.MEASURING
            if self.agent.live.cuda is not None:
                run.pass_over = 1  # it begins with an empty queue, which hides nothing
            run.graphs = (
                self._compiled_graphs()
                if any(e.compiled for e in self.agent.live.entries)
                else None
            )
            self.agent.loss.restart()

    def _drain(self, block: Block) -> None:
        """Have the loader's queue discarded at the next batch."""
        # all ranks must discard the same
        limit_s = DRAIN_SHARE * block.max_seconds if self._alone else math.inf
        self.agent.loaders.serving.drain(limit_s)

    def _compiled_graphs(self) -> int:
        return sum(entry.compiled_graphs() for entry in self.agent.live.entries)

    def _compiled_meanwhile(self, run: Run) -> bool:
        """Whether a graph was compiled inside the window and there is time to measure another."""
        in_time = run.spent_s < SETTLE_SHARE * run.block.max_seconds
        return (
            run.window is not None
            and self._alone
            and in_time
            and self._compiled_graphs() != run.graphs
        )

    def _finish_block(self, run: Run, window: WindowRecorder) -> None:
        agent = self.agent
        if run.error:
            self._report(run, error=run.error)
            return
        if run.block.cached_batches and agent.loaders.serving.withheld:
            self._fail_block(
                run,
                "the job steps only after a pass over its data: serving batches from memory would"
                " make the pass endless",
            )
            return
        measured = window.close()
        losses = [x for x in agent.loss.values() if x is not None]
        notes: dict[str, Any] = {**compile_notes(agent.live.entries), "in_force": in_force(agent)}
        if losses:
            finite = [x for x in losses if math.isfinite(x)]
            notes["non_finite_losses"] = len(losses) - len(finite)
            notes["loss"] = sum(finite) / len(finite) if finite else None
        no_effect = agent.knobs.without_effect(run.block.knobs)
        self._report(run, measured, no_effect=no_effect, notes=notes)

    def _report(
        self,
        run: Run,
        window: Window | None = None,
        error: str = "",
        no_effect: dict[str, str] | None = None,
        notes: dict[str, Any] | None = None,
    ) -> None:
        settling = run.settling
        self.agent.channel.send(
            BlockReport(
                id=run.block.id,
                rank=rank(self.agent.torch),
                window=window,
                settle_iterations=settling.count if settling is not None else 0,
                settle_s=run.settle_s,
                rebuild_s=self.agent.loaders.serving.last_rebuild_s,
                no_effect=no_effect or {},
                error=error,
                settled=settling.settled if settling is not None else False,
                notes=notes or {},
            )
        )

    def _advance(self) -> None:
        self._run = None
        if self.agent.channel.closed:
            self.agent.stop()
        elif not self._start_block():
            self._next_plan()
