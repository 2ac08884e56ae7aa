"""The executor ``ray``: the slots of a cluster, as many sessions at a time as there are.

look ──▶ places the nodes have ──▶ an actor for each ──▶ like the first ones? ──▶ a lane
  └ repeatedly: nodes come and go                         └ no: left out, with a warning
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autotune import __version__
from autotune.errors import ClusterLost, InputError, last_line
from autotune.executors.base import Executor, FixedRun, LiveSession, SessionFailed, Tell
from autotune.executors.cluster import actors
from autotune.executors.cluster.actors import Actors
from autotune.executors.cluster.answers import SlotFacts
from autotune.executors.cluster.connection import connect
from autotune.executors.cluster.head import Head
from autotune.executors.cluster.lane import SLOT_END_S, Lane, Sessions
from autotune.executors.cluster.likeness import largest_group, unlike
from autotune.executors.cluster.places import Place, groups, places
from autotune.executors.cluster.workdir import enter_again, inside_shipped, same_files
from autotune.job.spec import JobSpec
from autotune_spaces.facts import Machine
from autotune_trials.protocol.messages import Record

LOOK_S = 2.0  # between two looks at the nodes
# at the start: to wait for nodes, and for more than the first before the kind of machine is chosen
GATHER_S = 10.0
# for slots to end by themselves when the head is gone: Ray will soon end this process
HEADLESS_S = 8.0
BUSY_S = 30.0  # a start that takes longer may be waiting for a node that is in use
PATIENCE_S = 300.0  # without any slot, before the run is given up
MOST_STARTS = 3  # consecutive starts of a slot's process that end without a finished session
MOST_LOST = 3  # consecutive slots that one fixed run may lose

T = TypeVar("T")


@dataclass(frozen=True)
class Starting:
    """A slot whose actors have been requested."""

    actors: Actors
    facts: Any  # reference to its SlotFacts
    since_s: float


def open_executor(
    spec: JobSpec, run_dir: Path, *, like: Machine | None, say: Tell, warn: Tell
) -> RayExecutor:
    """As :func:`autotune.executors.executor_for`."""
    return RayExecutor(spec, run_dir, like=like, say=say, warn=warn)


class RayExecutor(Executor):
    """Sessions on the slots of a Ray cluster.

    As an executor itself, it runs one session after the other on any slot: work that lanes cannot
    share.

    Args:
        like: the machine an earlier process of this run measured on; None: the most common kind.
        say, warn: called with what a person should know: slots that join, are left out or are lost.

    Raises (besides what its methods say):
        InputError: no cluster, no slot, or nothing there that can be compared.
        ClusterLost: its head is gone, or all slots are, in the middle of the run.
    """

    fails_over = True

    def __init__(
        self,
        spec: JobSpec,
        run_dir: Path,
        *,
        like: Machine | None = None,
        say: Tell = print,
        warn: Tell = print,
    ) -> None:
        self.spec, self.like = spec, like
        self._say, self._warn, self._options = say, warn, spec.executor.options
        self._run_dir, self._begun_in = Path(run_dir).absolute(), Path.cwd()
        self._sessions = Sessions(self._run_dir)
        self._inside = inside_shipped(spec.workdir) if self._options["workdir"] == "ship" else None
        self._starting: dict[Place, Starting] = {}
        # started, until the kind of machine is chosen
        self._waiting: list[tuple[Place, Actors, SlotFacts]] = []
        self._slots: dict[Place, Lane] = {}
        self._out: dict[Place, str] = {}  # place -> why it is not used
        self._starts: Counter[Place] = Counter()
        # every process that ran sessions, with the name of its slot
        self._used: list[tuple[str, SlotFacts]] = []
        self._turn = threading.RLock()
        self._looked_s = self._seen_s = time.monotonic()
        self._gathers_s: float | None = None  # when the wait for the kind of machine began
        connect(spec, self._run_dir, self._warn)
        import ray

        self._head = Head(ray.nodes)
        try:
            self._look()
            self._await_slot()
        except BaseException:  # also Ctrl-C: no caller has this executor yet to close it
            self.close()
            raise

    # ------------------------------------------------------------------------------------- as lanes

    def lanes(self) -> Sequence[Lane]:
        self._head.check()
        with self._turn, self._head.client_errors_as_lost():
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._look()
            here = self._here()
            if here:
                self._seen_s = time.monotonic()
            elif time.monotonic() - self._seen_s > PATIENCE_S:
                raise self._no_slot()
            return here

    def lane(self, node: str) -> Executor | None:
        return next((slot for slot in self._here() if slot.node == node), None)

    def about(self) -> Mapping[str, Any]:
        slots: dict[str, dict[str, Any]] = {}
        for name, facts in self._used:
            slot = slots.setdefault(
                name,
                {"cores": facts.machine.cores, "device": facts.machine.device_name, "pids": []},
            )
            slot["pids"] += [facts.pid, *(other.pid for other in facts.others)]
        left_out = {place.name: why for place, why in self._out.items()}
        return {
            "executor": {
                "kind": "ray",
                "address": self._options["address"],
                "slots": slots,
                "left_out": left_out,
            }
        }

    # -------------------------------------------------------------------------- one after the other

    def open_live(self) -> LiveSession:
        return self._anywhere(lambda slot: slot.open_live())

    def run_fixed(self, request: FixedRun) -> Record:
        return self._anywhere(lambda slot: slot.run_fixed(request))

    def survey(self) -> Mapping[str, Any]:
        return self._anywhere(lambda slot: slot.survey())

    def measure_peaks(self, threads: int, device: str) -> Mapping[str, float]:
        return self._anywhere(lambda slot: slot.measure_peaks(threads, device))

    def close(self) -> None:
        self._head.close()
        with self._turn:
            self._leave_cluster()
            self._slots.clear()
            self._starting.clear()
            self._waiting.clear()

    def _leave_cluster(self) -> None:
        """Leave all slots and the cluster.

        Without its head nobody ends their processes for us: they end when their current work is
        done.
        """
        import ray

        slots = [*self._slots.values(), *(self._slot(*waiting) for waiting in self._waiting)]
        try:
            if ray.is_initialized():
                Lane.end_all(slots, HEADLESS_S if self._head.gone else SLOT_END_S)
                for starting in self._starting.values():
                    starting.actors.end()
                # with the head gone, Ray would only wait for it, as it does at our exit anyway
                if not self._head.gone:
                    ray.shutdown()
        # of any kind, if Ray's client has lost its server together with the head
        except Exception:
            if not self._head.gone:
                raise

    def _slot(self, place: Place, asked: Actors, facts: SlotFacts) -> Lane:
        return Lane(place, asked, facts, self._sessions, self, self._head)

    def _anywhere(self, do: Callable[[Lane], T]) -> T:
        """Call ``do`` on a slot, and on another one if that is lost."""
        for _ in range(MOST_LOST - 1):
            try:
                return do(self._await_slot())
            except SessionFailed as failure:
                if failure.kind != "lost":
                    raise
                self._warn(f"{failure.detail}; repeating the measurement that was running there")
        return do(self._await_slot())

    def _await_slot(self) -> Lane:
        """Return a slot, waiting for one if necessary."""
        while not (here := self.lanes()):
            if not (self._used or self._starting or self._waiting) and (
                self._out or time.monotonic() - self._seen_s > GATHER_S
            ):
                with self._turn, self._head.client_errors_as_lost():
                    self._look()  # at places that were not asked while others were
                if not (self._starting or self._waiting):
                    raise self._no_slot()
            time.sleep(0.2)
            with self._turn, self._head.client_errors_as_lost():
                self._collect()
        return here[0]

    # ---------------------------------------------------------------------------- slots come and go

    def _here(self) -> list[Lane]:
        with self._turn:
            return [slot for slot in self._slots.values() if not slot.gone]

    def _look(self) -> None:
        """Request an actor for every place without one, and see which have started."""
        self._looked_s = time.monotonic()
        there = self._places(self._head.nodes())
        for place, slot in list(self._slots.items()):
            if slot.gone or place not in there:
                self._starts[place] = 0 if slot.finished else self._starts[place]
                self._seen_s = self._looked_s  # until now there was one
                slot.give_up()  # its other nodes may be part of a new one
                del self._slots[place]
        # it would wait for a lost node and hold its other nodes
        for place in [place for place in self._starting if place not in there]:
            self._starting.pop(place).actors.end()
        # places that somebody else uses answer when they become free: others are asked, too
        asked = sum(self._looked_s - s.since_s < BUSY_S for s in self._starting.values())
        free = (place for place in there if place not in {*self._taken(), *self._out})
        for place in itertools.islice(free, max(0, self._wanted() - asked)):
            self._start(place)
        self._collect()

    def _wanted(self) -> int:
        """How many more slots are wanted than have started."""
        most = self._options.get("slots") or sys.maxsize
        assert isinstance(most, int)
        return most - len(self._slots) - len(self._waiting)

    def _places(self, nodes: Sequence[Mapping[str, Any]]) -> list[Place]:
        found, size = list(places(nodes, self._options)), self._options.get("nodes_per_slot") or 1
        if self.spec.reads_energy:  # the counters are those of the whole node
            found = [place for place in found if place.index == 0]
        if not isinstance(size, int) or size == 1:
            return found
        return list(groups(found, size, [*self._taken(), *self._out]))

    def _taken(self) -> list[Place]:
        return [*self._slots, *self._starting, *(place for place, _, _ in self._waiting)]

    def _start(self, place: Place) -> None:
        self._starts[place] += 1
        if self._starts[place] > MOST_STARTS:
            self._leave_out(place, f"its process ended {MOST_STARTS} times")
            return
        asked = actors.start(place, self.spec, self._inside, self._run_dir)
        self._starting[place] = Starting(asked, asked.slot.describe.remote(), time.monotonic())

    def _collect(self) -> None:
        """Take slots that have started, and handle starts that have failed."""
        import ray
        from ray.exceptions import ActorUnschedulableError, RayError

        for place, starting in list(self._starting.items()):
            ready, _ = ray.wait([starting.facts], timeout=0)
            if self._wanted() <= 0:  # another place was free first
                self._starting.pop(place).actors.end()
                self._starts[place] -= 1
                continue
            if not ready:
                continue
            del self._starting[place]
            try:
                self._waiting.append((place, starting.actors, ray.get(starting.facts)))
                enter_again(self._begun_in)
            except ActorUnschedulableError:  # the node is gone again
                starting.actors.end()
            except RayError as error:
                starting.actors.end()
                # the node may just be gone, or something is wrong there that stays wrong
                if self._starts[place] >= MOST_STARTS:
                    why = last_line(error)[:300]
                    self._leave_out(place, f"its process does not start: {why}")
        self._admit()

    def _admit(self) -> None:
        """Admit slots that have started, once the kind of machine is chosen."""
        if not self._waiting:
            return
        if self.like is None:
            self._gathers_s = self._gathers_s or time.monotonic()
            if self._starting and time.monotonic() - self._gathers_s < GATHER_S:
                return
            self.like = largest_group([facts.machine for _, _, facts in self._waiting])
        waiting, self._waiting = self._waiting, []
        for place, asked, facts in waiting:
            slot = self._slot(place, asked, facts)
            why = next(filter(None, map(self._unfit, (facts, *facts.others))), "")
            if why:
                slot.close()
                self._leave_out(place, why)
            else:
                self._slots[place] = slot
                self._used.append((slot.node, facts))
                self._say(
                    f"slot {slot.node} is ready: {facts.machine.cores} cores,"
                    f" {facts.machine.device_name}"
                )
                if load := [clause for each in (facts, *facts.others) for clause in each.gpu_load]:
                    self._warn(
                        f"other programs use GPUs of slot {slot.node} ({'; '.join(load)}): expect"
                        " noisier times and less free memory there"
                    )

    def _unfit(self, facts: SlotFacts) -> str:
        assert self.like is not None
        if facts.version != __version__:
            return f"autotune {facts.version} there, {__version__} here"
        if self._inside is None and not same_files(self.spec.workdir, facts.files):
            return f"{self.spec.workdir} is not the same directory there as here"
        return unlike(self.like, facts.machine)

    def _leave_out(self, place: Place, why: str) -> None:
        self._out[place] = why
        self._warn(f"slot {place.name} is left out: {why}")

    def _no_slot(self) -> InputError | ClusterLost:
        found = "; ".join(f"{place.name}: {why}" for place, why in self._out.items())
        if self._used:
            return ClusterLost(
                f"no slot of the cluster is left, and none was added within {PATIENCE_S:.0f}"
                f" s{f' ({found})' if found else ''}; everything measured so far is saved",
                where="executor.ray",
                remedy=(
                    "run the same command again, without --fresh, to resume once there is one;"
                    " `ray status` lists the nodes' resources"
                ),
            )
        if self._out:
            return InputError(
                f"no slot of the cluster can be used: {found}",
                where="executor.ray",
                expected="at least one",
            )
        if self._starting:
            names = ", ".join(place.name for place in self._starting)
            return InputError(
                f"no slot of the cluster became free within {PATIENCE_S:.0f} s: {names}",
                where="executor.ray",
                expected="a free node: autotune needs exclusive use of a slot",
                remedy="`ray status` shows what is using them",
            )
        return InputError(
            "the cluster has no node with a slot",
            where="executor.ray",
            expected=_wanted(self._options),
            remedy="`ray status` lists the nodes' resources",
        )


def _wanted(options: Mapping[str, Any]) -> str:
    words = [
        f"{options[key]} {what}"
        for key, what in (("gpus_per_slot", "GPUs"), ("cpus_per_slot", "cores"))
        if options.get(key)
    ]
    words += [f"the resource {options['resource']!r}"] if options.get("resource") else []
    nodes = options.get("nodes_per_slot") or 1
    return ("a node with " if nodes == 1 else f"{nodes} nodes of the same kind, each with ") + (
        " and ".join(words) or "at least one core"
    )
