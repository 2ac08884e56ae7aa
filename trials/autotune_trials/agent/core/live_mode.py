"""Live sessions: plans of blocks, one configuration after another in the running job.

    Hello ─▶ wait for Plan ─▶ ┌ apply knobs │ settle … │ measure … │ report ┐ ─▶ next block … ─▶ PlanDone ─▶ wait for Plan
                              └──────────── counted in iterations ──────────┘
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.controls.entry_modules import compile_notes
from autotune_trials.agent.core.modes import Mode, hello
from autotune_trials.agent.core.settling import AFTER_DRAIN, DRAIN_SHARE, SETTLE_SHARE, LockstepSettling, Settling
from autotune_trials.agent.facts.applied_settings import in_force
from autotune_trials.agent.facts.job_facts import rank, startup_s, world_size
from autotune_trials.agent.patches import scheduler
from autotune_trials.measure.memory import MemoryMeter
from autotune_trials.measure.window import WindowRecorder
from autotune_trials.protocol.messages import ROUNDS, Block, BlockReport, Plan, PlanDone, Progress

if TYPE_CHECKING:
    from autotune_trials.agent.core.agent import Agent
    from autotune_trials.agent.core.iteration import Iteration

MOST_CACHED = 20  # times as many iterations as planned


class LiveMode(Mode):
    """Runs plans."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._machine: Any = None
        self._job: Any = None
        self._blocks: list[Block] = []
        self._plan: Plan | None = None
        self._block: Block | None = None
        self._set: dict[str, tuple[Any, Any]] = {}  # knob name -> (knob, value) not at the job's own value
        self._settling: Settling | None = None
        self._opened: WindowRecorder | None = None  # what the window will be, once times have levelled off
        self._window: WindowRecorder | None = None
        self._pass_over = 0  # iterations that are left out of the window
        self._began = 0.0
        self._settle_s = 0.0
        self._skipped: list[Any] = []  # Iteration.skipped of each
        self._alone = True
        self._lost = False  # the running block ended in out-of-memory
        self._first_epoch = agent.config.first_epoch_s > 0  # it is to end before the tuner is told of the job
        self._first_epoch_began_s = 0.0
        self._graphs: int | None = None  # compiled when the window was opened; None: nothing is compiled by us

    def on_iteration(self, iteration: Iteration) -> None:
        agent = self.agent
        if iteration.index == 0:
            self.startup_s = startup_s()
        if self._plan is None:
            self._look_for_epoch_end(iteration)
        if self._lost:
            with agent.own_time():  # the job has survived it: back to its own settings, and on with the plan
                self._lost = False
                self._give_all_back()
                self._advance()
        elif self._block is not None:
            self.show_life()
            self._go_on(iteration)
        elif self._plan is None and not self._first_epoch and agent.iterations >= agent.config.warmup_steps:
            with agent.own_time():
                self._greet()

    def start_over(self) -> None:
        self.startup_s = startup_s()

    def _look_for_epoch_end(self, iteration: Iteration) -> None:
        """Let the first epoch end as the job has it: what its evaluation leaves behind (the heap, caches) is part of the job.

        From then on the loader's epochs are stretched; until then they must end, or there is no evaluation.
        """
        agent = self.agent
        if self._first_epoch:
            if not self._first_epoch_began_s:
                self._first_epoch_began_s, self._first_epoch = perf_counter(), world_size(agent.torch) == 1  # ranks greet at the same step
            over = perf_counter() - self._first_epoch_began_s > agent.config.first_epoch_s
            self._first_epoch = self._first_epoch and not (iteration.turnovers or over)
            self.show_life()
        # a loader that others are walked beside must end when it does: zip(…, strict=True) checks that
        agent.loader_hooks.set_stretch(not self._first_epoch and not agent.consumption.walks_together)

    def on_evaluation(self) -> None:
        if self._block is not None and self._alive_s:
            self.show_life()

    def on_crash(self) -> None:
        if self._block is not None and self._settling is not None:
            done = self._settling.count + (len(self._window) if self._window is not None else 0)
            self.agent.channel.send(Progress(rank(self.agent.torch), self.agent.iterations, self._slowest_s, in_block=done))

    def on_out_of_memory(self, text: str) -> None:
        if self._block is not None:
            self._report(None, error=f"oom: {text}")  # now: mostly the job dies of it
            self._block, self._lost = None, True

    # ------------------------------------------------------------------ plans

    def _greet(self) -> None:
        message = hello(self.agent)
        self._machine, self._job = message.machine, message.job
        self._alone = world_size(self.agent.torch) == 1
        scheduler.freeze(self.agent.patches, self.agent.torch)
        if self.agent.channel.send(message):
            self._next_plan()
        else:
            self.agent.stop()

    def _next_plan(self) -> None:
        """Wait for the tuner, job paused. A tuner that has gone leaves the job as it was."""
        while True:
            plan = self.agent.channel.receive()
            if not isinstance(plan, Plan):
                self.agent.stop()
                return
            self._plan, self._blocks = plan, list(plan.blocks)
            if self._start_block():
                return

    def _start_block(self) -> bool:
        """Begin the next block that can be begun. False when the plan is done and the next has to be waited for."""
        while self._blocks:
            self._block = block = self._blocks.pop(0)
            if self._configure(block):
                return True
            self._block = None
        assert self._plan is not None
        self.agent.channel.send(PlanDone(self._plan.id, rank(self.agent.torch)))
        return False

    # ------------------------------------------------------------------ one block

    def _configure(self, block: Block) -> bool:
        """Bring the job to the block's configuration; a knob that raises ends the block."""
        agent = self.agent
        self._window, self._settling, self._skipped, self._settle_s = None, None, [], 0.0
        self._opened, self._pass_over = None, 0
        self._began = perf_counter()
        self.stood_still(slowest_too=True)
        agent.knobs.failure = ""
        agent.loader_hooks.last_rebuild_s = 0.0
        agent.loader_hooks.cancel_drain()
        wanted = {c.name: (agent.knobs.get(c.name, c.options), c.value) for c in block.knobs}
        try:
            if block.cached_batches and agent.consumption.walks_together:
                raise RuntimeError("of several loaders walked together one alone cannot be served from memory: it would never end")
            agent.loader_hooks.serve_cached(block.cached_batches)
            for name in [n for n in self._set if n not in wanted]:
                self._give_back(name)
            for name, (knob, value) in wanted.items():
                if self._set.get(name) != (knob, value):
                    self._set[name] = (knob, value)  # noted first: a half-applied knob has to be given back too
                    agent.knobs.apply(knob, value)
            MemoryMeter(agent.torch, agent.live.cuda).start()  # not before: what the last block held (a graph's pool) is free only now
        except Exception as error:
            self._fail_block(f"knob: {type(error).__name__}: {error}")
            return False
        paused_s = perf_counter() - agent.clock.last_s  # since the last iteration ended: workers did not pause
        self._settling = (Settling if self._alone else LockstepSettling)(block, agent.loader_hooks.queue_depth(), paused_s)
        return True

    def _give_back(self, name: str) -> None:
        knob, _ = self._set[name]
        self.agent.knobs.apply(knob, knob.current(self._machine, self._job))
        del self._set[name]

    def _fail_block(self, error: str) -> None:
        """Report the failure and go back to the job's own settings."""
        self._give_all_back()
        self._report(None, error=error)

    def _give_all_back(self) -> None:
        """A setting that cannot be given back is the agent's failure: see Agent.fail."""
        for name in list(self._set):
            self._give_back(name)
        self.agent.loader_hooks.serve_cached(False)

    def _go_on(self, iteration: Iteration) -> None:
        agent, block = self.agent, self._block
        assert block is not None and self._settling is not None
        if agent.knobs.failure:
            with agent.own_time():
                failure, agent.knobs.failure = agent.knobs.failure, ""
                self._fail_block(f"knob: {failure}")
                self._advance()
            return
        if self._window is None:
            agent.loss.end_step(keep=False)
            self._settle(iteration)
            return
        if self._compiled_meanwhile():
            self._window = None  # an epoch's smaller last batch, say: back to settling
            agent.loss.end_step(keep=False)
            self._settle(iteration)
            return
        if self._pass_over:
            self._pass_over -= 1
            agent.loss.end_step(keep=False)
        else:
            agent.loss.end_step()
            self._skipped.append(iteration.skipped)
            self._window.add(iteration)
        if self._alone and iteration.interrupted and agent.loader_hooks.queue_depth():
            self._drain()  # an evaluation has filled the queue
            self._pass_over = 1 + AFTER_DRAIN
        late = self._alone and perf_counter() - self._began > block.max_seconds
        full = len(self._window) >= block.iterations and not self._rounds_are_missing(block)
        if full or (late and len(self._window) > 0):
            with agent.own_time():
                self._finish_block()
                self._advance()

    def _rounds_are_missing(self, block: Block) -> bool:
        """Too few batches of each worker are in the window, and there is time for more.

        Cached batches may make the job many times as fast as what the block was planned for: it then gets more iterations.
        """
        settings = self.agent.loader_hooks.settings_in_force() if self._alone and block.rounds_seconds else None
        if settings is None:
            return False
        wanted = MOST_CACHED * block.iterations if block.cached_batches else ROUNDS * settings.num_workers
        seconds = block.rounds_seconds / 2 if block.cached_batches else block.rounds_seconds
        return len(self._window or ()) < wanted and perf_counter() - self._began - self._settle_s < seconds

    def _settle(self, iteration: Iteration) -> None:
        settling, hooks = self._settling, self.agent.loader_hooks
        assert settling is not None
        if self._alone and iteration.interrupted:
            settling.pause()
        else:
            settling.add(iteration.wall_s)
        settling.queue = hooks.queue_depth()  # a rebuilt source is known only after its first batch
        if settling.drain_due():
            with self.agent.own_time():
                self._open()  # before the drain, because opening takes time of its own in which batches pile up
            self._drain()
            settling.drained()
        elif not (self._alone and iteration.interrupted) and settling.done(perf_counter() - self._began):
            self._settle_s = perf_counter() - self._began
            hooks.cancel_drain()
            if self._opened is None:
                with self.agent.own_time():
                    self._open()
            self._window, self._opened = self._opened, None
            self._graphs = self._compiled_graphs() if any(e.compiled for e in self.agent.live.entries) else None
            self.agent.loss.restart()

    def _open(self) -> None:
        self._opened = WindowRecorder(self.agent, keep_interrupted=not self._alone)
        self._opened.open()

    def _drain(self) -> None:
        """Have the loader's queue thrown away at the next batch."""
        assert self._block is not None
        limit_s = DRAIN_SHARE * self._block.max_seconds if self._alone else math.inf  # ranks throw away alike
        self.agent.loader_hooks.drain(limit_s)

    def _compiled_graphs(self) -> int:
        return sum(entry.compiled_graphs() for entry in self.agent.live.entries)

    def _compiled_meanwhile(self) -> bool:
        """A graph was compiled inside the window, and there is time to measure another one."""
        if self._graphs is None:
            return False
        assert self._block is not None
        in_time = perf_counter() - self._began < SETTLE_SHARE * self._block.max_seconds
        return self._alone and in_time and self._compiled_graphs() != self._graphs

    def _finish_block(self) -> None:
        assert self._window is not None and self._block is not None
        window = self._window.close()
        no_effect = {}
        for choice in self._block.knobs:
            reason = self.agent.knobs.get(choice.name, choice.options).effect(self.agent.live, choice.value)
            if reason:
                no_effect[choice.name] = reason
        losses = [x for x in self.agent.loss.values() if x is not None]
        notes: dict[str, Any] = {**compile_notes(self.agent.live.entries), "in_force": in_force(self.agent)}
        if losses:
            finite = [x for x in losses if math.isfinite(x)]
            notes["non_finite_losses"] = len(losses) - len(finite)
            notes["loss"] = sum(finite) / len(finite) if finite else None
        self._report(window, no_effect=no_effect, notes=notes)

    def _report(self, window: Any, error: str = "", no_effect: Any = None, notes: Any = None) -> None:
        assert self._block is not None
        settling = self._settling
        self.agent.channel.send(
            BlockReport(
                id=self._block.id,
                rank=rank(self.agent.torch),
                window=window,
                settle_iterations=settling.count if settling is not None else 0,
                settle_s=self._settle_s,
                rebuild_s=self.agent.loader_hooks.last_rebuild_s,
                no_effect=no_effect or {},
                error=error,
                settled=settling.settled if settling is not None else False,
                skipped_steps=sum(map(bool, self._skipped)),
                notes=notes or {},
            )
        )

    def _advance(self) -> None:
        self._block = None
        if self.agent.channel.closed:
            self.agent.stop()
        elif not self._start_block():
            self._next_plan()
