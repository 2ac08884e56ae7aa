"""Samples where the training thread is, every few milliseconds, from another thread.

    ticks               ╷     ╷    ╷     ╷     ╷   ╷    ╷     at random times, some milliseconds apart
    training thread  ──python──▌C call that keeps the GIL▐──torch op──
    sampler             •     waits for the interpreter ─•    •      a sample counts for all ticks since the last one

Ticks are scheduled at random and ahead of time, not counted from the last sample: samples that had
to wait all end where such a call ends, so the code run in the next milliseconds would never be
seen.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Iterator
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.observers.places import Spot
from autotune_trials.measure.clock import NAMES
from autotune_trials.protocol.evidence import Frames

if TYPE_CHECKING:
    from autotune_trials.agent.observers.watch import Watch

INTERVAL_S = 0.002  # a sample takes about 20 µs: 1% of one core
# How soon the interpreter yields to a waiting thread while we watch. At the usual 5 ms every sample
# of plain Python code would slip to the next torch call, which releases the GIL by itself, and
# lines of Python would hardly be seen.
SWITCH_S = 20e-6

# iteration, phase, id of the code object, line, id of the leaf's code: hashing code objects is slow
Key = tuple[int, int, int, int, int]


class SamplerObserver(Observer):
    name = "frames"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._target = threading.get_ident()
        self._running = False
        self._thread: threading.Thread | None = None
        self._usual_switch_s: float | None = None
        self._seen: dict[Key, list[Any]] = {}  # [seconds, spot, innermost code object]

    def begin(self) -> None:
        usual = sys.getswitchinterval()
        self._usual_switch_s = usual
        sys.setswitchinterval(min(usual, SWITCH_S))
        self._running = True
        self._thread = threading.Thread(target=self._look, name="autotune-sampler", daemon=True)
        self._thread.start()

    def finish(self) -> dict[str, Any]:
        self._running = False
        if self._usual_switch_s is not None:
            sys.setswitchinterval(self._usual_switch_s)
        if self._thread is not None:
            self._thread.join(1.0)
        place = self.watch.places.place
        return {
            "frames": tuple(
                Frames(key[0], NAMES[key[1]], place(spot), seconds, leaf_name(leaf))
                for key, (seconds, spot, leaf) in sorted(
                    self._seen.items(), key=lambda item: item[0]
                )
            )
        }

    def _look(self) -> None:
        seen, watch, places, clock = self._seen, self.watch, self.watch.places, time.perf_counter
        jitter = random.Random().uniform  # a generator of our own: the job's is not touched
        tick = clock()
        try:
            while self._running and not self.agent.state.stopped:
                time.sleep(max(0.0, tick - clock()))
                stack = stack_of(self._target)
                now = clock()
                if not stack:
                    return  # the training thread has ended
                leaf, spot = places.leaf(stack), places.innermost(stack)
                key = (watch.index, self.agent.timer.clock.phase, id(spot[0]), spot[1], id(leaf))
                count = seen.setdefault(key, [0.0, spot, leaf])
                while tick <= now:
                    count[0] += INTERVAL_S
                    tick += jitter(0.5, 1.5) * INTERVAL_S
        except Exception as error:  # raised on the training thread
            self.fail(error)


def stack_of(thread: int) -> list[Spot]:
    """Code and line of every frame of ``thread``, innermost first; [] if it has ended.

    Done in one call that runs in C throughout, so that the thread cannot continue meanwhile. Done
    step by step, the thread could return from a frame being inspected, and reading ``f_back`` would
    then read freed memory (seen as crashes, Python 3.11). Garbage collection is paused during that
    call: the frame objects it creates may trigger one, whose callbacks and finalizers are Python
    and let the thread continue (seen as a hang). No frame is kept either: it would keep its locals
    alive too long.
    """
    first = map(itemgetter(thread), starmap(sys._current_frames, ((),)))
    frames = takewhile(bool, accumulate(chain(first, repeat("f_back")), getattr))
    spots = map(attrgetter("f_code", "f_lineno"), frames)
    pause, resume = (gc.disable, gc.enable) if gc.isenabled() else (int, int)  # int() does nothing
    try:
        looks: Iterator[Any] = chain(starmap(pause, ((),)), spots, starmap(resume, ((),)))
        return list(looks)[1:-1]
    except KeyError:
        resume()
        return []


def leaf_name(code: Any) -> str:
    """``module.function`` of a code object; the module is inferred from its file."""
    name = code.co_filename
    for path in sorted(sys.path, key=len, reverse=True):
        if path and name.startswith(path.rstrip("/") + "/"):
            name = name[len(path.rstrip("/")) + 1 :]
            break
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"{module}.{getattr(code, 'co_qualname', code.co_name)}"
