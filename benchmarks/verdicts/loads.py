"""Scores the "faster" rule on real processes under real load, with planted, exactly known
speed-ups.

    python benchmarks/verdicts/loads.py           about half an hour on two otherwise idle cores;
                                                  writes loads.md next to this file
    python benchmarks/verdicts/loads.py --dry     a few minutes, other seeds, few confirmations;
                                                  writes nothing

    core 0   fork server ──▶ job ──▶ job ──▶ job …     every run a new process, pinned to its core
             burner      ▁▁▁▁███▁▁▁▁▁▁▁▁▁▁▁██▁▁▁       on the same core: the load
    core 1   the same, another confirmation; both burners follow one plan, since CPU pressure is
             known for the whole machine only

The job trains a small network: an iteration is a fixed number of whole training steps (forward,
backward, SGD) of equal size. A candidate that is 23/20 times as fast does 20 of them where the
baseline does 23, for the same number of samples. The truth is therefore counted, not estimated; the
report also lists what many alternating windows on the quiet machine measured.

    quiet           nothing
    drifting        the burner takes 0 to 16 % of the core and back in a minute
    bursty, seen    bursts that take 17 to 50 % of the core, 0.5 s long and 5.5 s apart on average
    bursty, unseen  the same, but the windows do not tell (a neighbor on the same host)

Windows are shorter than the 4 s and more of the stages, and bursts are scaled down with them; so
are the ABBA blocks of the choice. Everything else is as in autotune/stages: autotune_trials.measure
reads the machine's load, a disturbed run is measured again, and autotune.verdict decides where
warm-up ends, what a window costs, and the outcome.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any

# read when torch is imported below
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "trials"), str(ROOT / "search_spaces")]

from simulate import abba, levels_in_order  # noqa: E402

from autotune.stages.measuring.fresh import REMEASURED  # noqa: E402
from autotune.verdict.difference import LOOKS as JUDGE_LOOKS  # noqa: E402
from autotune.verdict.difference import Difference, difference  # noqa: E402
from autotune.verdict.disturbed import disturbed  # noqa: E402
from autotune.verdict.iterations import drop_start, warm_up_end  # noqa: E402
from autotune.verdict.sequential import robust_mean, t_quantile  # noqa: E402
from autotune.verdict.speedup import LOOKS, MINIMUM_GAIN, SpeedDecision, decide  # noqa: E402
from autotune.verdict.timing import cost_per_sample  # noqa: E402
from autotune_trials.measure.machine_load import between, snapshot  # noqa: E402
from autotune_trials.protocol.messages import Window  # noqa: E402

LOADS = ("quiet", "drifting", "bursty, seen", "bursty, unseen")
# training steps: baseline, candidate
PLANTED = {"1.00": (30, 30), "1.03": (34, 33), "1.15": (23, 20), "0.90": (27, 30), "0.95": (19, 20)}
# candidates of one choice, next to a baseline of 30: the last is 16 % faster than the second best
CHOICES = (33, 30, 31, 29, 25)
CHOICE_BASELINE, FINALISTS = 30, 2  # as in the confirm stage
SAMPLES = 256.0  # per iteration on both sides: the same number for less work

WINDOW_S = 0.6
BLOCK_ITERATIONS, SETTLE_ITERATIONS = 60, 5
# mean gap and length; shares of the core: 1.2 to 2 times slower
GAP_S, LENGTH_S, BURST_SHARES = 5.0, 0.5, (0.17, 0.5)
DRIFT_SHARE, DRIFT_PERIOD_S = 0.16, 60.0
BURNER_PERIOD_S = 0.02
STUCK_S = 120.0  # over a hundred times the length of any run

SCORED_SEED, DRY_SEED = 47_000, 3
COUNTS = {"1.00": 20, "1.03": 10, "1.15": 10, "0.90": 10}
CHOICE_COUNT, TRUTH_PAIRS = 8, 20


# ── the load ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def share_of_core(kind: str, seed: int, began_s: float) -> Callable[[float], float]:
    """The share of its core that the burner takes, 0..1, at a moment of ``time.monotonic``."""
    if kind == "drifting":
        return lambda now_s: (
            DRIFT_SHARE / 2 * (1 - math.cos(2 * math.pi * (now_s - began_s) / DRIFT_PERIOD_S))
        )
    if not kind.startswith("bursty"):
        return lambda now_s: 1.0 if kind == "always" else 0.0
    # of the current burst: start, end, share
    rng, state = random.Random(f"{seed} {kind}"), [began_s, began_s, 0.0]

    def share(now_s: float) -> float:
        while now_s >= state[1]:
            start = state[1] + rng.expovariate(1 / GAP_S)
            state[:] = start, start + rng.expovariate(1 / LENGTH_S), rng.uniform(*BURST_SHARES)
        return state[2] if now_s >= state[0] else 0.0

    return share


def _burn(core: int, kind: str, seed: int, began_s: float, parent: int) -> None:
    """Use that share of the core, in CPU time, until the parent is gone.

    Counting CPU time, a busy core does not reduce the share.
    """
    os.sched_setaffinity(0, {core})
    share = share_of_core(kind, seed, began_s)
    while os.getppid() == parent:
        now_s, used_s = time.monotonic(), time.process_time()
        wanted_s = share(now_s) * BURNER_PERIOD_S
        while time.process_time() - used_s < wanted_s:
            pass
        time.sleep(max(0.0, now_s + BURNER_PERIOD_S - time.monotonic()))


# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Job:
    """A training job whose iteration is a number of equal training steps."""

    def __init__(self, seed: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        nn = torch.nn
        self._model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._loss = nn.CrossEntropyLoss()
        self._x, self._y = torch.randn(64, 64), torch.randint(0, 10, (64,))

    def iteration(self, steps: int) -> float:
        """Seconds taken by ``steps`` training steps."""
        start = time.perf_counter()
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._loss(self._model(self._x), self._y).backward()
            self._optimizer.step()
        return time.perf_counter() - start

    def window(self, steps: int, enough: Callable[[Sequence[float]], bool]) -> Window:
        """Iterations until there are enough, with the machine's load as the agent reads it."""
        before, times = snapshot(), []
        while not enough(times):
            times.append(self.iteration(steps))
        load = between((before, snapshot()))
        return Window(
            tuple(times),
            (SAMPLES,) * len(times),
            {},
            cpu_pressure=load.cpu_pressure,
            foreign_load=load.foreign_load,
        )


def _fresh(pipe: Connection, steps: int, seed: int, window_s: float) -> None:
    """One fixed run: a window that begins with the very first iteration."""
    pipe.send(
        Job(seed).window(steps, lambda times: math.fsum(times) >= window_s and len(times) >= 60)
    )


def _live(pipe: Connection, baseline: int, candidates: Sequence[int], seed: int) -> None:
    """One live session: baseline and each candidate in turn, ABBA; sends the windows in order."""
    job, windows = Job(seed), []
    for candidate in candidates:
        for steps in (baseline, candidate, candidate, baseline):
            for _ in range(SETTLE_ITERATIONS):
                job.iteration(steps)
            windows.append(job.window(steps, lambda times: len(times) >= BLOCK_ITERATIONS))
    pipe.send(windows)


def _import_torch() -> None:
    """Import what forks need: the first optimizer imports the compiler, which takes seconds."""
    import torch._dynamo  # noqa: F401


# ── one core ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Confirmed:
    decision: SpeedDecision
    pairs: int
    runs: int
    again: int  # disturbed runs that were measured again


class Core:
    """A core with its burner, which runs one confirmation at a time.

    Its process never runs a torch operation, so its forks are as fresh as a new interpreter and
    cost 50 ms instead of seconds.
    """

    def __init__(
        self, core: int, kind: str, seed: int, began_s: float, window_s: float = WINDOW_S
    ) -> None:
        _import_torch()
        self.kind, self.window_s = kind, window_s
        self._fork = multiprocessing.get_context("fork")
        os.sched_setaffinity(0, {core})
        self._burner = self._fork.Process(
            target=_burn, args=(core, kind, seed, began_s, os.getpid()), daemon=True
        )
        if kind != "quiet":
            self._burner.start()

    def close(self) -> None:
        if self._burner.pid:
            self._burner.kill()
            self._burner.join()

    def run(self, steps: int, seed: int) -> Window:
        """A window of a fresh process."""
        return self._told(self._in_a_fork(_fresh, steps, seed, self.window_s))

    def truth(self, baseline: int, candidate: int, pairs: int) -> list[float]:
        """log(baseline / candidate) of alternating pairs."""
        return [self._pair(baseline, candidate, i, ([], []))[0] for i in range(pairs)]

    def confirm(self, baseline: int, candidate: int, finalist: int = 0) -> Confirmed:
        """Pairs of fresh processes, with the looks of the confirm stage."""
        ratios: list[float] = []
        levels: list[float] = []
        calm: tuple[list[Window], list[Window]] = ([], [])
        again = 0
        for look, pairs in enumerate(LOOKS):
            for i in range(len(ratios), pairs):
                ratio, level, repeated = self._pair(baseline, candidate, i, calm)
                ratios.append(ratio)
                levels.append(level)
                again += repeated
            decision = decide(ratios, look=look, levels=levels_in_order(levels), finalist=finalist)
            if decision.state != "continue":
                break
        return Confirmed(decision, len(ratios), 2 * len(ratios) + again, again)

    def judge(self, a: int, b: int) -> tuple[Difference, int]:
        """(verdict of `autotune judge`, runs measured again); always ends within ten minutes."""
        ratios: list[float] = []
        levels: list[float] = []
        calm: tuple[list[Window], list[Window]] = ([], [])
        again = 0
        for look, pairs in enumerate(JUDGE_LOOKS):
            for i in range(len(ratios), pairs):
                ratio, level, repeated = self._pair(a, b, i, calm)
                ratios.append(ratio)
                levels.append(level)
                again += repeated
            found = difference(ratios, look=look, levels=levels_in_order(levels))
            if found.state != "open":
                break
        return found, again

    def choice(self, seed: int) -> tuple[int | None, Confirmed | None]:
        """(the adopted one of CHOICES, its confirmation), after a live comparison."""
        windows = [self._told(w) for w in self._in_a_fork(_live, CHOICE_BASELINE, CHOICES, seed)]
        costs = [cost_per_sample(w) for w in windows]
        live = [abba(*costs[4 * i : 4 * i + 4]).estimate for i in range(len(CHOICES))]
        ahead = sorted((r, i) for i, r in enumerate(live) if r < -math.log1p(MINIMUM_GAIN))[
            :FINALISTS
        ]
        found = [
            (i, self.confirm(CHOICE_BASELINE, CHOICES[i], n)) for n, (_, i) in enumerate(ahead)
        ]
        adopted = [(i, c) for i, c in found if c.decision.state == "adopt"]
        if not adopted:
            return None, None
        return max(adopted, key=lambda each: each[1].decision.interval.estimate)

    def _pair(
        self, baseline: int, candidate: int, i: int, calm: tuple[list[Window], list[Window]]
    ) -> tuple[float, float, int]:
        sides, costs, again = [(0, baseline), (1, candidate)], [0.0, 0.0], 0
        for side, steps in sides if i % 2 == 0 else reversed(sides):
            window = self.run(steps, i)
            for _ in range(REMEASURED):
                if disturbed(window, calm[side]) is None:
                    break
                window, again = self.run(steps, i), again + 1
            calm[side].append(window)
            costs[side] = cost_per_sample(drop_start(window, warm_up_end(window.times_s)))
        return math.log(costs[0] / costs[1]), math.log(costs[0] * costs[1]) / 2, again

    def _told(self, window: Window) -> Window:
        return (
            replace(window, foreign_load=0.0, cpu_pressure=0.0)
            if self.kind == "bursty, unseen"
            else window
        )

    def _in_a_fork(self, work: Callable[..., None], *args: Any) -> Any:
        ours, theirs = self._fork.Pipe(duplex=False)
        process = self._fork.Process(target=work, args=(theirs, *args))
        process.start()
        theirs.close()
        try:
            if not ours.poll(STUCK_S):
                raise RuntimeError(f"a run gave nothing for {STUCK_S:.0f} s")
            return ours.recv()
        finally:
            process.kill()
            process.join()
            ours.close()


# ── many confirmations ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Task:
    what: str  # "truth", "confirm", "choice", "judge"
    planted: str = ""
    seed: int = 0
    pairs: int = 0  # of a "truth" task


def _work(pipe: Connection, tasks: Sequence[Task], core: int, *how: Any) -> None:
    place = Core(core, *how)
    try:
        for task in tasks:
            if task.what == "choice":
                pipe.send((task, place.choice(task.seed)))
            elif task.what == "judge":
                pipe.send((task, place.judge(*PLANTED[task.planted])))
            elif task.what == "truth":
                pipe.send((task, place.truth(*PLANTED[task.planted], task.pairs)))
            else:
                pipe.send((task, place.confirm(*PLANTED[task.planted])))
    finally:
        place.close()
    pipe.send(None)


def side_by_side(
    tasks: Sequence[Task], kind: str, seed: int, window_s: float = WINDOW_S
) -> list[tuple[Task, Any]]:
    """Results of the tasks, on at most two cores at once.

    Raises:
        RuntimeError: a core's process ended before its tasks.
    """
    _import_torch()
    cores, fork, began_s = (
        sorted(os.sched_getaffinity(0))[:2],
        multiprocessing.get_context("fork"),
        time.monotonic(),
    )
    lanes = []
    for n, core in enumerate(cores):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(
            target=_work, args=(theirs, tasks[n :: len(cores)], core, kind, seed, began_s, window_s)
        )
        process.start()
        theirs.close()
        lanes.append((process, ours))
    found = []
    try:
        for _, pipe in lanes:
            while (result := pipe.recv()) is not None:
                found.append(result)
    except EOFError:
        raise RuntimeError("the process of one core ended before its work was done") from None
    finally:
        for process, _ in lanes:
            if process.exitcode is None:
                process.join(5)
                process.kill()
    return found


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cell:
    kind: str
    planted: str
    found: tuple[Confirmed, ...]

    @property
    def truth(self) -> float:
        return float(Fraction(*PLANTED[self.planted]))

    @property
    def adopted(self) -> list[float]:
        """The over-claim of each adopted candidate."""
        return [
            c.decision.interval.estimate / self.truth - 1
            for c in self.found
            if c.decision.state == "adopt"
        ]

    @property
    def covered(self) -> int:
        return sum(
            c.decision.interval.low <= self.truth <= c.decision.interval.high for c in self.found
        )

    def row(self) -> str:
        n = len(self.found)
        claims = self.adopted
        over = f"{fmean(claims):+.1%} | {max(claims):+.1%}" if claims else "– | –"
        noisy = sum(c.decision.too_noisy for c in self.found)
        again, runs = sum(c.again for c in self.found), sum(c.runs for c in self.found)
        return (
            f"| {self.kind} | {self.planted} | {of(len(claims), n)} | {over} |"
            f" {of(self.covered, n)} | {noisy} | {fmean(c.pairs for c in self.found):.1f} | {again}"
            f" of {runs} |"
        )


def of(count: int, n: int) -> str:
    """A share with its exact 95 % interval (Clopper and Pearson, 1934)."""
    from scipy.special import betaincinv

    low = float(betaincinv(count, n - count + 1, 0.025)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, 0.975)) if count < n else 1.0
    return f"{count} of {n} ({low:.0%}–{high:.0%})"


def truth_rows(seed: int, pairs: int) -> list[str]:
    tasks = [Task("truth", planted, seed, pairs) for planted in PLANTED]
    rows = []
    for task, ratios in side_by_side(tasks, "quiet", seed):
        centre, error, freedom = robust_mean(ratios)
        half = t_quantile(0.975, freedom) * error
        middle, low, high = (math.exp(x) for x in (centre, centre - half, centre + half))
        counted = Fraction(*PLANTED[task.planted])
        rows.append(
            f"| {task.planted} | {counted} = {float(counted):.4f} | {middle:.4f} ({low:.4f} to"
            f" {high:.4f}) | {len(ratios)} |"
        )
    return sorted(rows)


def score(
    seed: int, counts: dict[str, int], choices: int
) -> tuple[list[Cell], dict[str, list[Any]]]:
    cells, chosen = [], {}
    for kind in LOADS:
        tasks = [Task("confirm", planted, i) for planted, n in counts.items() for i in range(n)]
        random.Random(seed).shuffle(tasks)
        tasks += [Task("choice", seed=i) for i in range(choices)]
        results = side_by_side(tasks, kind, seed)
        for planted in counts:
            cells.append(
                Cell(
                    kind,
                    planted,
                    tuple(r for t, r in results if t.what == "confirm" and t.planted == planted),
                )
            )
            print(cells[-1].row(), file=sys.stderr, flush=True)
        chosen[kind] = [r for t, r in results if t.what == "choice"]
        print(kind, "choice:", [c for c, _ in chosen[kind]], file=sys.stderr, flush=True)
    return cells, chosen


def verdicts(cells: Sequence[Cell], chosen: dict[str, list[Any]]) -> list[str]:
    """One row per bar: the figure, and whether the bar is met."""
    unchanged = [c for c in cells if c.truth <= 1]
    false, none = sum(len(c.adopted) for c in unchanged), sum(len(c.found) for c in unchanged)
    claims = sorted(claim for c in cells if c.truth > 1 for claim in c.adopted)
    covered, every = sum(c.covered for c in cells), sum(len(c.found) for c in cells)
    right = sum(
        i is not None and i == len(CHOICES) - 1 for found in chosen.values() for i, _ in found
    )
    asked = sum(len(found) for found in chosen.values())
    rows = [
        ("adopted though no faster (1.00 and 0.90)", "≤ 5 %", of(false, none), false <= 0.05 * none)
    ]
    if claims:
        p95 = claims[min(len(claims) - 1, math.ceil(0.95 * len(claims)) - 1)]
        rows.append(
            (
                "over-claim of what is adopted, mean",
                "≤ 1.5 %",
                f"{fmean(claims):+.2%}",
                fmean(claims) <= 0.015,
            )
        )
        rows.append(("over-claim of what is adopted, p95", "≤ 10 %", f"{p95:+.1%}", p95 <= 0.10))
    rows.append(
        (
            "coverage of the reported interval",
            "93–99 %",
            of(covered, every),
            0.93 <= covered / every <= 0.99,
        )
    )
    if asked:
        rows.append(("choice: the clear winner", "≥ 95 %", of(right, asked), right >= 0.95 * asked))
    return [
        f"| {what} | {bar} | {figure} | {'met' if met else '**missed**'} |"
        for what, bar, figure, met in rows
    ]


def causes(cells: Sequence[Cell], chosen: dict[str, list[Any]]) -> list[str]:
    """Every single outcome on the wrong side of a bar, with the rule's explanation."""
    lines = []
    for c in cells:
        for x in c.found:
            interval = x.decision.interval
            if not interval.low <= c.truth <= interval.high or (
                c.truth <= 1 and x.decision.state == "adopt"
            ):
                lines.append(
                    f"- {c.kind}, planted {c.planted}: {x.decision.state}, {x.decision.reason};"
                    f" {x.again} of {x.runs} runs measured again."
                )
    for kind, found in chosen.items():
        wrong = [i for i, _ in found if i != len(CHOICES) - 1]
        if wrong:
            kept = sum(i is None for i in wrong)
            lines.append(
                f"- {kind}, choice: {kept} times the baseline was kept, {len(wrong) - kept} times"
                " another was adopted."
            )
    return lines or ["- None."]


def report(seed: int, counts: dict[str, int], choices: int, pairs: int) -> str:
    began_s = time.monotonic()
    truth = truth_rows(seed, pairs)
    cells, chosen = score(seed, counts, choices)
    table = "\n"
    choice_rows = [
        f"| {kind} | {of(sum(i == len(CHOICES) - 1 for i, _ in found), len(found))} |"
        f" {sum(i is None for i, _ in found)} |"
        for kind, found in chosen.items()
    ]
    return f"""# The "faster" rule on real processes under real load

Made by `python benchmarks/verdicts/loads.py` in {(time.monotonic() - began_s) / 60:.0f} minutes. Real training in fresh processes, real load made by the
script; the speed-ups are planted by counting training steps. What is done is said at the top of the script. Windows are {WINDOW_S} s
after a fork of 50 ms (the stages take 4 s and more after a start of seconds), bursts are {LENGTH_S} s every {GAP_S + LENGTH_S} s on average (scaled alike),
looks at {", ".join(map(str, LOOKS))} pairs. Shares come with their exact 95 % interval, since a few dozen confirmations prove no small rate:
benchmarks/verdicts/simulated.md has the thousands.

## Bars

| figure | bar | found | |
|---|---|---|---|
{table.join(verdicts(cells, chosen))}

Each outcome on the wrong side (one interval in twenty may miss its truth):

{table.join(causes(cells, chosen))}

## What is planted

| name | training steps, baseline / candidate | measured on the quiet machine | pairs of fresh processes |
|---|---|---|---|
{table.join(truth)}

## One candidate, confirmed in fresh processes

| load | planted | adopted | over-claim, mean | largest | covered | too noisy to tell | pairs, mean | runs measured again |
|---|---|---|---|---|---|---|---|---|
{table.join(c.row() for c in cells)}

## A choice among {len(CHOICES)}

Steered by ABBA blocks of {BLOCK_ITERATIONS} iterations in one process, then up to {FINALISTS} finalists confirmed, each with its share of alpha. One is
{CHOICE_BASELINE / CHOICES[-1] - 1:.0%} faster than the baseline, the next {CHOICE_BASELINE / CHOICES[-2] - 1:.0%}, the others not at all.

| load | the winner is adopted | baseline kept |
|---|---|---|
{table.join(choice_rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--dry", action="store_true", help="other seeds, few confirmations, write nothing"
    )
    args = parser.parse_args()
    if args.dry:
        print(report(DRY_SEED, dict.fromkeys(COUNTS, 1), 1, 2))
        return
    text = report(SCORED_SEED, COUNTS, CHOICE_COUNT, TRUTH_PAIRS)
    print(text)
    (Path(__file__).parent / "loads.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
