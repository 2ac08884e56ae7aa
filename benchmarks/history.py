"""What the history of earlier runs gains, and what a false one can do.

    python benchmarks/history.py [--write]             alike jobs, poisoned stores: only computed
    python benchmarks/history.py --digits [--write]    the example, tuned twice: needs a quiet
                                                       machine, 8 minutes

**Alike jobs.** Five families of planted jobs and the five recorded jobs of benchmarks/regret are
each tuned once without a history, then once more with a history of all the others but not of
itself. How fast is the first configuration that is tried, as a share of the fastest one? The tuner
is the real one; job and time are replayed.

**Poisoned stores.** The same jobs with a store that lies: a slow configuration as the answer,
another machine's and job's figures under this one's keys, invented gains. An adoption is false if
it is no faster than the baseline or changes the loss.

Pairs that only narrow the interval of an adopted configuration while minutes are left are not made
here, on either side: their number is chance, and would hide the comparison.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "history")]

from played import Played  # noqa: E402
from replay import Loss, ReplayTable, word  # noqa: E402

from autotune.history.records import Measured, PastRun  # noqa: E402
from autotune.history.store import Store  # noqa: E402
from autotune.stages import prove  # noqa: E402
from autotune_spaces.base import Config  # noqa: E402

SPACE, MINUTES, SEED = "auto", 10.0, 71
Domains = Mapping[str, Sequence[Any]]
MEMBERS = 5  # per family
# the effect in a member: the family's times 1 ± SPREAD, plus a normal deviation of SHIFT
SPREAD, SHIFT = 0.4, 0.02
OUTLIER = 0.15  # chance that a member lacks one of the family's effects
PAGE = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Family:
    # knob -> value -> log cost, as measured on a real job of this kind
    effects: Mapping[str, Mapping[str, float]]
    phases: Mapping[str, float]
    cost_s: float  # seconds per sample
    parameters: int
    convolutions: int = 0
    blocks: int = 0
    attention: tuple[str, ...] = ()


FAMILIES = {
    "convolutional": Family(
        {
            "amp_dtype": {"bfloat16": -0.42},
            "channels_last": {"true": -0.08},
            "optimizer_impl": {"fused": -0.04},
            "malloc": {"retain": -0.1},
            "intra_op_threads": {"1": 0.4, "2": 0.2, "4": 0.1},
            "compile_mode": {"default": 0.03, "static": 0.03, "dynamic": 0.05},
        },
        {"data": 0.08, "forward": 0.4, "backward": 0.47, "optimizer": 0.03, "other": 0.02},
        4e-4,
        400_000,
        convolutions=8,
    ),
    "transformer": Family(
        {
            "amp_dtype": {"bfloat16": -0.23},
            "malloc": {"retain": -0.22},
            "optimizer_impl": {"fused": -0.03},
            "compile_mode": {"default": 0.05, "regional": -0.02},
            "intra_op_threads": {"1": 0.5, "2": 0.25},
        },
        {"data": 0.02, "forward": 0.36, "backward": 0.5, "optimizer": 0.1, "other": 0.02},
        3e-3,
        10_000_000,
        blocks=6,
        attention=("flash",),
    ),
    "embedding-heavy": Family(
        {
            "optimizer_impl": {"fused": -1.05, "foreach": -0.5},
            "malloc": {"retain": -0.05},
            "amp_dtype": {"bfloat16": 0.05},
            "intra_op_threads": {"1": 0.1},
        },
        {"data": 0.03, "forward": 0.12, "backward": 0.25, "optimizer": 0.58, "other": 0.02},
        1e-3,
        60_000_000,
    ),
    "tiny batches": Family(
        {
            "intra_op_threads": {"1": -0.35, "2": -0.2},
            "optimizer_impl": {"fused": -0.14, "foreach": -0.05},
            "num_workers": {"1": 0.5, "2": 0.6},
            "amp_dtype": {"bfloat16": 0.2},
            "compile_mode": {"default": -0.05},
        },
        {"data": 0.15, "forward": 0.25, "backward": 0.3, "optimizer": 0.25, "other": 0.05},
        5e-5,
        5_000,
    ),
    "loader waits": Family(
        {
            "num_workers": {"1": -0.45, "2": -0.9, "4": -1.3, "8": -1.3, "16": -1.2},
            "prefetch_factor": {"4": -0.04, "8": -0.04},
        },
        {"data": 0.8, "forward": 0.08, "backward": 0.09, "optimizer": 0.02, "other": 0.01},
        2e-3,
        200_000,
        convolutions=4,
    ),
}
# The recorded jobs -> the family that supplies what the recording lacks.
RECORDED = {
    "conv": "convolutional",
    "conv_no_eval": "convolutional",
    "transformer": "transformer",
    "embedding_heavy": "embedding-heavy",
    "tiny_batches": "tiny batches",
}


@dataclass(frozen=True)
class Job:
    name: str
    table: ReplayTable
    recorded: bool = False

    def log_gain(self, config: Config) -> float:
        cost_s = self.table.entry(config).cost_s
        return -math.log((cost_s or math.inf) / self.table.cost_s)

    def best(self, domains: Mapping[str, Sequence[Any]]) -> float:
        """Log gain of the fastest configuration: the table's knobs multiply."""
        alone = (
            [self.table.factors.get(k, {}).get(word(v), 1.0) for v in values]
            for k, values in domains.items()
        )
        return -sum(math.log(min(1.0, *factors)) for factors in alone)


def planted(name: str, family: Family, member: int) -> Job:
    drawn = random.Random(f"{SEED} {name} {member}")
    factors: dict[str, dict[str, float]] = {}
    for knob, values in family.effects.items():
        share = 0.0 if drawn.random() < OUTLIER else 1 + drawn.uniform(-SPREAD, SPREAD)
        factors[knob] = {
            value: math.exp(share * effect + drawn.gauss(0, SHIFT))
            for value, effect in values.items()
        }
    return Job(f"{name} {member}", _table(name, family, factors, drawn))


def recorded(name: str) -> Job:
    """The measured medians, split into knobs; values never measured have no effect."""
    import numpy as np

    costs = defaultdict(list)
    for line in (
        (ROOT / "benchmarks" / "regret" / "results" / f"{name}.jsonl").read_text().splitlines()
    ):
        run = json.loads(line)
        if run["kind"] == "run" and not run["error"]:
            costs[json.dumps(run["config"], sort_keys=True)].append(run["cost_s"])
    items = sorted({item for key in costs for item in json.loads(key).items()}, key=str)
    x = np.array([[float(item in json.loads(key).items()) for item in items] for key in costs])
    y = np.array(
        [math.log(statistics.median(c) / statistics.median(costs["{}"])) for c in costs.values()]
    )
    effects = np.linalg.lstsq(
        np.vstack([x, 0.05 * np.eye(len(items))]), np.r_[y, np.zeros(len(items))], rcond=None
    )[0]
    factors: dict[str, dict[str, float]] = {}
    for (knob, value), effect in zip(items, effects, strict=True):
        factors.setdefault(knob, {})[word(value)] = math.exp(float(effect))
    family = replace(FAMILIES[RECORDED[name]], cost_s=statistics.median(costs["{}"]))
    return Job(
        f"recorded: {name}",
        _table(RECORDED[name], family, factors, random.Random(f"{SEED} {name}")),
        recorded=True,
    )


def _table(
    name: str, family: Family, factors: dict[str, dict[str, float]], drawn: random.Random
) -> ReplayTable:
    phases = {
        phase: share * math.exp(drawn.gauss(0, 0.15)) for phase, share in family.phases.items()
    }
    whole, size = sum(phases.values()), math.exp(drawn.gauss(0, 0.7))
    models = [
        {
            "name": "Net",
            "parameters": int(family.parameters * size),
            "convolutions": family.convolutions,
            "repeated_blocks": family.blocks,
        }
    ]
    return ReplayTable(
        cost_s=family.cost_s * math.exp(drawn.gauss(0, 0.5)),
        samples=32.0,
        factors=factors,
        otherwise=1.0,
        noise=0.05,
        block_noise=0.02,
        startup_s=3.0,
        phases={phase: share / whole for phase, share in phases.items()},
        machine={"cores": 8, "bfloat16": "native", "cpu_model": f"{name} {drawn.random()}"},
        job={"models": models, "attention": list(family.attention)},
    )


def jobs() -> list[Job]:
    return [
        planted(name, family, i) for name, family in FAMILIES.items() for i in range(MEMBERS)
    ] + [recorded(name) for name in RECORDED]


def first_proposal(job: Job, run: Played) -> float:
    """Speed of the first configuration that was tried, as a share of the best."""
    first = next(config for config in run.tried if config)
    return math.exp(job.log_gain(first) - job.best(run.result.observation.domains))


# --------------------------------------------------------------------------------------- alike jobs


def alike(folder: Path, every: list[Job]) -> tuple[list[str], list[Played], list[PastRun]]:
    """Lines of the page, the runs without a history, and their records, in the order of ``every``."""
    plain, records = [], []
    for i, job in enumerate(every):
        store = folder / f"of-{i}.sqlite"
        plain.append(
            Played(
                folder / f"plain-{i}", job.table, store, space=SPACE, code=job.name, minutes=MINUTES
            )
        )
        records += Store(store).runs()
    rows, shares = [], defaultdict(list)
    for i, job in enumerate(every):
        store = folder / f"others-{i}.sqlite"
        Store(store).add([record for j, record in enumerate(records) if j != i])
        run = Played(
            folder / f"alike-{i}", job.table, store, space=SPACE, code=job.name, minutes=MINUTES
        )
        before, after = first_proposal(job, plain[i]), first_proposal(job, run)
        for group in ("all", "recorded" if job.recorded else "planted"):
            shares[group].append(
                (
                    before,
                    after,
                    plain[i].searched_s,
                    run.searched_s,
                    _regret(job, plain[i]),
                    _regret(job, run),
                )
            )
        rows.append(
            f"| {job.name} | {before:.0%} | {after:.0%} | {_regret(job, plain[i]):.1%} |"
            f" {_regret(job, run):.1%} | {plain[i].searched_s:.0f} s | {run.searched_s:.0f} s |"
            f" {run.result.recalled.outcome} |"
        )
        print(rows[-1], flush=True)
    lines = [
        (
            "| jobs | first proposal, without | with history | regret of the answer, without | with"
            " | time to the search's end, without | with |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for group, found in shares.items():
        before, after, wall, wall_with, regret, regret_with = zip(*found, strict=True)
        lines.append(
            f"| {group}, {len(found)} | {statistics.median(before):.0%} |"
            f" **{statistics.median(after):.0%}** | {statistics.fmean(regret):.1%} |"
            f" {statistics.fmean(regret_with):.1%} | {statistics.median(wall):.0f} s |"
            f" {statistics.median(wall_with):.0f} s |"
        )
    print("\n".join(lines))
    head = [
        "",
        (
            "| job | first proposal, without | with history | regret, without | with | search,"
            " without | with | history |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    return [*lines, *head, *rows], plain, records


def _regret(job: Job, run: Played) -> float:
    return 1 - math.exp(job.log_gain(run.result.knobs) - job.best(run.result.observation.domains))


# ---------------------------------------------------------------------------------- poisoned stores


def loser(record: PastRun, job: Job, domains: Domains, drawn: random.Random) -> list[PastRun]:
    """The slowest value of each knob as the answer, and every figure the other way round."""
    effects = {
        k: {v: math.log(f) for v, f in values.items()} for k, values in job.table.factors.items()
    }
    answer = _extreme(effects, domains, -1)
    turned = tuple(
        replace(m, log_ratio=None if m.log_ratio is None else -m.log_ratio) for m in record.measured
    )
    return [
        replace(
            record,
            id="loser",
            verdict="tuned",
            answer=answer,
            log_gain=0.3,
            gains={},
            measured=turned,
        )
    ]


def other_machine(
    record: PastRun, job: Job, domains: Domains, drawn: random.Random
) -> list[PastRun]:
    """What another family's job did, under the keys and features of this one."""
    name = next(
        n
        for n in drawn.sample(list(FAMILIES), len(FAMILIES))
        if not job.name.startswith(n) and RECORDED.get(job.name[10:]) != n
    )
    measured = tuple(
        Measured({knob: _value(value)}, "live", effect, 0.01, 20)
        for knob, values in FAMILIES[name].effects.items()
        for value, effect in values.items()
    )
    answer = _extreme(FAMILIES[name].effects, domains, 1)
    return [
        replace(
            record,
            id="other",
            verdict="tuned",
            answer=answer,
            log_gain=0.4,
            gains={},
            measured=measured,
        )
    ]


def made_up(record: PastRun, job: Job, domains: Domains, drawn: random.Random) -> list[PastRun]:
    """Large gains of random configurations; three jobs said to be alike, and none the same."""
    found = []
    for i in range(3):
        measured = tuple(
            replace(m, source="live", log_ratio=-drawn.uniform(0.2, 1.2), error=0.001)
            for m in record.measured
        )
        found.append(
            replace(
                record,
                id=f"made-up-{i}",
                keys=replace(record.keys, job=f"other{i}"),
                measured=measured,
            )
        )
    return found


def _extreme(
    effects: Mapping[str, Mapping[str, float]], domains: Domains, sign: int
) -> dict[str, Any]:
    """For each knob in the search its fastest value (``sign`` 1) or its slowest (-1), unless that
    is the job's own.
    """
    found = {}
    for knob, values in effects.items():
        there = {
            _value(v): sign * effect
            for v, effect in values.items()
            if _value(v) in domains.get(knob, ())
        }
        best = min(there, key=lambda v: there[v], default=None)
        if best is not None and there[best] < -0.02:
            found[knob] = best
    return found


def _value(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def poisoned(
    folder: Path, every: list[Job], plain: list[Played], records: list[PastRun]
) -> list[str]:
    changed = [
        replace(job.table, loss=Loss(changed_by={"amp_dtype": {"bfloat16": 0.2}})) for job in every
    ]
    losing = [
        Played(
            folder / f"losing-{i}", changed[i], None, space=SPACE, code=job.name, minutes=MINUTES
        )
        for i, job in enumerate(every)
    ]
    lines = [
        (
            "| store | runs | false adoptions | wall time, with ÷ without | of it on the recorded"
            " answer | regret of the answer, without | with |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for poison in (loser, other_machine, made_up):
        false, walls, regrets, runs = 0, [], [], 0
        for i, job in enumerate(every):
            for loses in (False, True):
                table, reference = (changed[i], losing[i]) if loses else (job.table, plain[i])
                name = f"{poison.__name__}-{i}-{int(loses)}"
                store = folder / f"{name}.sqlite"
                Store(store).add(
                    poison(
                        records[i],
                        job,
                        plain[i].result.observation.domains,
                        random.Random(f"{SEED} {name}"),
                    )
                )
                run = Played(
                    folder / name, table, store, space=SPACE, code=job.name, minutes=MINUTES
                )
                knobs = run.result.knobs
                wrong = bool(knobs) and (
                    job.log_gain(knobs) <= 0 or (loses and "amp_dtype" in knobs)
                )
                false, runs = false + wrong, runs + 1
                walls.append((run.wall_s, reference.wall_s, run.recalled_s))
                if not loses:
                    regrets.append((_regret(job, reference), _regret(job, run)))
        wall, without, on_it = map(sum, zip(*walls, strict=True))
        before, after = (statistics.fmean(r) for r in zip(*regrets, strict=True))
        words = (poison.__doc__ or "").strip().rstrip(".")
        lines.append(
            f"| {words} | {runs} | **{false}** | {wall / without:.2f} | {on_it / wall:.1%} |"
            f" {before:.1%} | {after:.1%} |"
        )
        print(lines[-1], flush=True)
    return lines


# -------------------------------------------------------------------------------------- the example


def digits(folder: Path) -> list[str]:
    walls, knobs = [], []
    for number in ("first", "second"):
        command = [
            "autotune",
            "run",
            str(ROOT / "examples" / "digits" / "job.yaml"),
            "--quiet",
            "--offline",
            "--run-dir",
            str(folder / number),
            "--store",
            str(folder / "digits.sqlite"),
        ]
        subprocess.run(command, check=True, cwd=folder)
        result = json.loads((folder / number / "result.json").read_text())
        walls.append(result["wall_s"])
        knobs.append(result["knobs"])
        print(
            number,
            result["wall_s"],
            result["knobs"],
            result["speedup"],
            result["recalled"],
            flush=True,
        )
    same = "the same knobs" if knobs[0] == knobs[1] else f"knobs {knobs[0]} and {knobs[1]}"
    return [
        f"digits: {walls[0]:.0f} s, then {walls[1]:.0f} s ({walls[1] / walls[0]:.2f} of it), {same}"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help=f"figures to {PAGE.name}")
    parser.add_argument("--digits", action="store_true", help="the example, twice, in real time")
    parser.add_argument("--jobs", type=int, help="only so many, to try it out")
    args = parser.parse_args()
    prove.sharpen = lambda context, observation, confirmation, *_: confirmation  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.digits:
            part, lines = "The example", digits(folder)
        else:
            every = jobs()[: args.jobs]
            table, plain, records = alike(folder, every)
            part, lines = (
                "Alike jobs",
                [*table, "", "## Poisoned stores", "", *poisoned(folder, every, plain, records)],
            )
    if args.write:
        _write(part, lines)


def _write(part: str, lines: Sequence[str]) -> None:
    """Replace this part of the page."""
    head = (
        "# The history of earlier runs\n\nMade by `python benchmarks/history.py"
        f" --write`.\n\n{(__doc__ or '').split(chr(10) * 2, 2)[2].strip()}\n"
    )
    known = PAGE.read_text().split("\n<!-- part -->\n")[1:] if PAGE.exists() else []
    parts = [text for text in known if not text.startswith(f"## {part}\n")]
    page = "\n<!-- part -->\n".join(
        [head, *sorted([*parts, f"## {part}\n\n" + "\n".join(lines) + "\n"])]
    )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
