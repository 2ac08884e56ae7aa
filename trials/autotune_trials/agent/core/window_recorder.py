"""Combines consecutive iterations into a :class:`~autotune_trials.protocol.messages.Window`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from autotune_trials.measure import throttling
from autotune_trials.measure.clock import TURNOVER
from autotune_trials.measure.machine_load import Snapshot, between, snapshot
from autotune_trials.measure.memory import forget_peak, peak_gib
from autotune_trials.protocol.messages import PHASES, Window

if TYPE_CHECKING:
    from autotune_trials.agent.core.iteration import Iteration
    from autotune_trials.agent.dataloader.reader_meter import Spent
    from autotune_trials.agent.dataloader.training_source import TrainingSource
    from autotune_trials.measure.energy import EnergyMeter


class WindowRecorder:
    """Collects iterations between :meth:`open` and :meth:`close`.

    Args:
        device: the torch.device used for training if it is a GPU, else None.
        finish: waits for the device, so that the times of all iterations are final.
        keep_interrupted: True for a record, which keeps every iteration minus the time spent
            elsewhere; False for a block, which drops interrupted ones, since an iteration after an
            evaluation is not the steady state.
        energy: reads the energy counters, if requested.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        source: TrainingSource,
        finish: Callable[[], None],
        keep_interrupted: bool,
        energy: EnergyMeter | None = None,
    ) -> None:
        self._torch = torch
        self._device = device
        self._source = source
        self._finish = finish
        self._keep = keep_interrupted
        self._energy = energy
        self._joules: list[float] = []  # one per iteration, as far as known
        self.iterations: list[Iteration] = []
        self._turnovers: list[float] = []  # in CPU time
        # on a device: phase times of every iteration, final once the device has been waited for
        self._spent: list[Sequence[float]] = []
        self._turnovers_at: list[int] = []
        # one per iteration: batches drawn in this epoch, and how many workers are behind
        self._drawn: list[tuple[int, int]] = []
        self._interruptions = 0
        self._start: Snapshot | None = None
        # completed stretches between stops of the job; the current one began at _start
        self._stretches: list[tuple[Snapshot, Snapshot]] = []
        self._limits: throttling.Limits | None = None
        self._read: Spent | None = None  # cost of reading data up to the start of the window

    def __len__(self) -> int:
        return len(self.iterations)

    def open(self) -> None:
        """Begin the window. Takes a few milliseconds: call :meth:`PhaseClock.resume` afterwards."""
        if self._energy is not None:
            self._finish()  # what the device still has to do belongs to no iteration of the window
        forget_peak(self._torch, self._device)
        self._start, self._limits = snapshot(), throttling.read(self._device)
        self._read = self._source.reader_spent()
        if self._energy is not None:
            self._energy.restart()

    def stand_still(self) -> None:
        """The job waits: exclude the machine's load from here on."""
        if self._start is not None:
            self._stretches.append((self._start, snapshot()))
            self._start = None
            if self._energy is not None and self._device is not None:
                self._finish()
                self._energy.pause(len(self.iterations))

    def go_on(self) -> None:
        self._start = snapshot()
        if self._energy is not None and self._device is not None:
            self._energy.resume()

    def add(self, iteration: Iteration) -> bool:
        """Add one iteration. False if it was left out as interrupted."""
        if iteration.turnovers:
            self._turnovers += iteration.turnovers
            self._turnovers_at += [len(self.iterations)] * len(iteration.turnovers)
        if self._device is not None:
            self._spent.append(iteration.spent)
        left_out = False
        if iteration.interrupted:
            self._interruptions += 1
            left_out = not self._keep
        if self._energy is not None and self._device is None:
            told = self._energy.iteration(iteration.wall_s, read=left_out)
            self._joules += told[:-1] if left_out else told
        if left_out:
            return False
        self.iterations.append(iteration)
        drawn, behind = self._source.batches_drawn()
        if behind is None:  # nothing more to see
            behind = self._drawn[-1][1] if self._drawn else 0
        self._drawn.append((drawn, behind))
        if self._energy is not None and self._device is not None:
            self._energy.go_by(len(self.iterations))
        return True

    def restart(self) -> None:
        self.iterations, self._turnovers, self._interruptions = [], [], 0
        self._spent = []
        self._turnovers_at, self._drawn = [], []
        self._read = self._source.reader_spent()
        if self._energy is not None:
            self._energy.restart()
            self._joules = []

    @property
    def samples_before(self) -> list[float]:
        """Samples consumed before each iteration."""
        return [0.0, *accumulate(i.samples for i in self.iterations)][: len(self.iterations)]

    def close(self) -> Window:
        """End the window; waits for the device."""
        limits = throttling.read(self._device)  # before waiting: an idle device shows no limits
        self._finish()
        if self._energy is not None and self._device is None:
            self._joules += self._energy.rest()
        elif self._energy is not None:
            self._joules = self._energy.shared([i.time_s for i in self.iterations])
        now = [(self._start, snapshot())] if self._start is not None else []
        load = between(*self._stretches, *now)
        each = {name: tuple(i.spent[n] for i in self.iterations) for n, name in enumerate(PHASES)}
        settings, spent = self._source.settings_in_force(), self._source.reader_spent()
        batches, unmade = self._batches_an_iteration(), [n for _, n in self._drawn]
        read = spent.since(self._read) if self._read is not None else spent
        used = [i.used for i in self.iterations]
        counters = self._energy.counters if self._energy is not None else []
        return Window(
            times_s=tuple(i.time_s for i in self.iterations),
            samples=tuple(i.samples for i in self.iterations),
            phases_s={name: sum(values) for name, values in each.items()},
            phase_times_s=each,
            data_s=tuple(i.wait_s for i in self.iterations),
            turnovers_s=self._turnovers_s(),
            turnovers_at=tuple(self._turnovers_at),
            away_s=sum(i.away_s for i in self.iterations),
            epoch_iterations=self._epoch_iterations(batches),
            interruptions=self._interruptions,
            peak_memory_gib=peak_gib(self._torch, self._device),
            cpu_pressure=load.cpu_pressure,
            foreign_load=load.foreign_load,
            throttled=throttling.in_words(self._limits, limits),
            power_capped=throttling.power_capped(self._limits, limits),
            session_load=load.session_load,
            workers=settings.num_workers if settings is not None else 0,
            unmade=tuple(n / batches for n in unmade) if any(unmade) else (),
            reader_cpu_s=read.cpu_s,
            reader_queued_s=read.queued_s,
            reader_wall_s=read.wall_s,
            reader_fetches=read.fetches,
            minor_faults=sum(u.minor_faults for u in used),
            user_s=sum(u.user_s for u in used),
            system_s=sum(u.system_s for u in used),
            involuntary_switches=sum(u.involuntary_switches for u in used),
            minor_fault_counts=tuple(u.minor_faults for u in used),
            system_times_s=tuple(u.system_s for u in used),
            joules=tuple(self._joules) if counters else (),
            energy_counters=tuple(counter.name for counter in counters),
        )

    def _epoch_iterations(self, batches: int) -> int | None:
        """Iterations per epoch: as many as the loader has batches for, or fewer if the job starts
        epochs earlier (a batch limit, an occasional new iterator).
        """
        epoch, at = self._source.epoch_iterations(), sorted(set(self._turnovers_at))
        own = None if epoch is None else -(-epoch // batches)
        if len(at) < 2:
            return own
        at_once = len(self._turnovers_at) / len(at)  # several loaders may turn over together
        seen = max(1, round((at[-1] - at[0]) / (len(at) - 1) / at_once))
        return seen if own is None else min(own, seen)

    def _turnovers_s(self) -> tuple[float, ...]:
        """Time lost at each turnover. On a device: their mean in device time, where a CPU wait
        costs nothing while the device computes. Not individually: a loop that prefetches sees the
        end of an epoch some iterations before it trains on the next epoch's first batch."""
        count = len(self._turnovers)
        if self._device is None or not count:
            return tuple(self._turnovers)
        return (sum(spent[TURNOVER] for spent in self._spent) / count,) * count

    def _batches_an_iteration(self) -> int:
        """Training batches per iteration: more than one with gradient accumulation."""
        drawn = [after - before for (before, _), (after, _) in pairwise(self._drawn)]
        while drawn and not drawn[-1]:
            drawn.pop()  # workers have drawn the epoch's last batches in advance
        return max(1, round(median(drawn))) if drawn else 1
