"""Planted knobs in real processes: `autotune run` on planted_job.py, whose truth is known.

    python benchmarks/regret/planted_runs.py [--mix 40] [--loader 20] [--minutes 10] [--lanes 4]
    python benchmarks/regret/planted_runs.py --page        writes planted_runs.md

The job sleeps instead of computing, so that several runs share a machine: a run each in ``--lanes``
lanes, which is noise beside the planted one. Every run is in planted_runs.jsonl when it
ends; the same command again carries on.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from threading import Lock

import numpy as np
from jobs_table import BUILD, HERE, ROOT
from planted import GAINS, Space, plant, planted_pairs

PATHS = [str(ROOT), str(ROOT / "trials"), str(ROOT / "search_spaces")]
sys.path[:0] = PATHS

from planted_job import BATCH, ITERATION_S  # noqa: E402

from autotune.job.load import load_job  # noqa: E402
from autotune.results import Observation  # noqa: E402
from autotune.search.model import ModelSearch, SearchKnob  # noqa: E402
from autotune.stages.decisions.worth_it import PRICES  # noqa: E402
from autotune.stages.searching.block_record import BlockRecord  # noqa: E402
from autotune_spaces.codec import decode  # noqa: E402

RESULTS, PAGE = HERE / "planted_runs.jsonl", HERE / "planted_runs.md"
PLANTED = {  # what the job can see of itself: the values beside its own
    "amp_dtype": ("off", "bfloat16"),
    "channels_last": (False, True),
    # not freeze: to ask how much is frozen takes milliseconds
    "gc": ("default", "threshold-50000"),
    "intra_op_threads": (2, 1),
    "matmul_precision": ("highest", "medium"),
    "optimizer_impl": ("default", "foreach", "fused"),
}
OTHERS = ("num_workers", "prefetch_factor", "persistent_workers", "malloc")
A_A_SEEN = 3  # blocks with a value, at least, before its band counts


def drawn(kind: str, seed: int) -> Space:
    """Five of the six with an effect: 1.4x, 1.2x, 1.05x twice, 0.8x; "loader": 1 to 4 s of
    reading a second of compute.
    """
    rng = np.random.default_rng((seed, len(kind)))
    knobs = tuple(SearchKnob(name, values, values[0]) for name, values in PLANTED.items())
    effects: dict = {}
    chosen = [knobs[i] for i in rng.permutation(len(knobs))]
    best = [
        plant(knob, -math.log(gain), effects, rng)
        for knob, gain in zip(chosen, GAINS, strict=False)
    ]
    data = float(rng.uniform(1.0, 4.0)) if kind == "loader" else 0.0
    return Space(knobs, kind, effects, planted_pairs(best, GAINS, rng), data)


def cost_s(space: Space, config: dict) -> float:
    """Seconds an iteration, free of noise: as planted, and, where reading takes time, what is not
    hidden behind it.
    """
    known = {k: v for k, v in config.items() if k in PLANTED}
    compute = ITERATION_S * math.exp(
        Space(space.knobs, "", space.effects, space.pairs).log_cost(known)
    )
    reading, workers = space.data * ITERATION_S, config.get("num_workers", 0)
    return max(compute, reading / workers) if workers else compute + reading


def best_s(space: Space) -> float:
    """Of the fastest configuration, with workers enough where it reads."""
    return ITERATION_S * math.exp(Space(space.knobs, "", space.effects, space.pairs).best())


def needless(space: Space, config: dict) -> list[str]:
    """Knobs that give less than 0.3 % by themselves. Those that only say how workers work count
    where there are none.
    """
    cost = cost_s(space, config)
    found = []
    for name in config:
        without = {k: v for k, v in config.items() if k != name}
        if name in ("prefetch_factor", "persistent_workers") and space.data:
            continue  # the truth of these is not planted
        if math.log(cost_s(space, without) / cost) < 0.003:
            found.append(name)
    return found


def write_job(folder: Path, name: str, space: Space) -> Path:
    """Write the job file of the planted job, and its plan."""
    (folder / "work").mkdir(parents=True, exist_ok=True)
    effects = [[name, value, effect] for (name, value), effect in space.effects.items()]
    pairs = [[sorted(map(list, pair), key=str), effect] for pair, effect in space.pairs.items()]
    plan = {"effects": effects, "pairs": pairs, "item_s": space.data * ITERATION_S / BATCH}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    job = {
        "name": name,
        "command": [sys.executable, str(HERE / "planted_job.py"), str(folder / "plan.json")],
        "workdir": "work",
        "search_space": dict.fromkeys((*PLANTED, *OTHERS), "auto"),
        "planned_steps": 500_000,
        "traces": "none",
        "tracking": {"uri": "none"},
        "env": {"OMP_WAIT_POLICY": "passive"},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


def run(kind: str, seed: int, minutes: float) -> dict:
    folder, space = BUILD / "planted" / f"{kind}-{seed}-{minutes:g}", drawn(kind, seed)
    job = write_job(folder, f"{kind}-{seed}", space)
    command = [
        sys.executable,
        "-m",
        "autotune",
        "run",
        str(job),
        "--no-history",
        "--run-dir",
        str(folder / "run"),
        "--minutes",
        f"{minutes:g}",
        "--seed",
        str(seed),
        "--offline",
        "--quiet",
    ]
    begin = time.monotonic()
    with (folder / "log").open("w") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    said = {
        "kind": kind,
        "seed": seed,
        "minutes": minutes,
        "code": code,
        "outer_s": round(time.monotonic() - begin, 1),
    }
    if code:
        return {**said, "error": (folder / "log").read_text()[-500:]}
    result = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    config = {k: int(v) if k == "num_workers" else v for k, v in result["knobs"].items()}
    return {
        **said,
        "config": config,
        "verdict": result["verdict"],
        "speedup": result["speedup"],
        "wall_s": result["wall_s"],
        "regret": 1 - best_s(space) / cost_s(space, config),
        "truth": cost_s(space, {}) / cost_s(space, config),
        "there_is": cost_s(space, {}) / best_s(space),
        "needless": needless(space, config),
        "bands": bands(folder, space),
    }


def bands(folder: Path, space: Space) -> list[dict]:
    """Of every value without effect that was seen often enough: what the live blocks say of it, as
    the search's model reads them.
    """
    spec = load_job(folder / "job.yaml")
    lines = [
        json.loads(line) for line in (folder / "run" / "journal.jsonl").read_text().splitlines()
    ]
    seen = decode(Observation, next(e["data"] for e in lines if e["kind"] == "observation"))
    rows = [decode(BlockRecord, block) for e in lines if e["kind"] == "plot" for block in e["data"]]
    names = sorted({name for row in rows for name in row.config})
    knobs = [
        SearchKnob(
            n,
            tuple(seen.domains[n]),
            seen.defaults[n],
            costly=spec.search_space[n].costly,
            loader=spec.search_space[n].loader,
            price=PRICES[spec.search_space[n].numerics],
        )
        for n in names
        if n in seen.domains
    ]
    if not knobs:
        return []
    model = ModelSearch(
        knobs,
        normalize=dict,
        bottleneck=seen.bottleneck if seen.bottleneck != "epoch ends" else "loader",
        seed=0,
    )
    for row in rows:
        if row.log_cost is not None and not row.no_effect:
            model.measured(row.config, row.log_cost, row.weight, row.at_s)
    effective = {name for name, _ in space.effects}
    found = []
    for name in names:
        for value in PLANTED.get(name, ())[1:] if name not in effective else ():
            blocks = sum(row.log_cost is not None and row.config.get(name) == value for row in rows)
            if blocks >= A_A_SEEN:
                gain, sd = model.gain({name: value})
                found.append(
                    {"knob": name, "value": value, "blocks": blocks, "gain": gain, "sd": sd}
                )
    return found


def records() -> list[dict]:
    return (
        [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mix", type=int, default=40, help="seeds")
    parser.add_argument("--loader", type=int, default=20, help="seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if options.page:
        print(write_page())
        return
    done = {(r["kind"], r["seed"], r["minutes"]) for r in records() if not r.get("when")}
    count, lock = {"mix": options.mix, "loader": options.loader}, Lock()
    # One kind after the other would leave the last figures to the last hour: in turns.
    wanted = sorted(
        (seed, kind) for kind in count for seed in range(options.first, options.first + count[kind])
    )
    wanted = [(seed, kind) for seed, kind in wanted if (kind, seed, options.minutes) not in done]

    def one(piece: tuple[int, str]) -> None:
        seed, kind = piece
        record = run(kind, seed, options.minutes)
        with lock, RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            print(json.dumps({k: v for k, v in record.items() if k != "bands"}), flush=True)

    with ThreadPoolExecutor(options.lanes) as lanes:
        list(lanes.map(one, wanted))


def write_page() -> str:
    lines = [
        "# Planted knobs in real processes",
        "",
        (
            "`autotune run` on a job that sleeps as planted, with the noise of the example"
            " (`planted_job.py`): 10 knobs, of which one gives"
        ),
        (
            "1.4×, one 1.2×, two 1.05× and one 0.8×, with pairs; *loader*: a reader beside it that"
            " takes 1 to 4 times as long as compute."
        ),
        "Made by `planted_runs.py`; 2 cores, three to five runs beside each other. *Before*: the"
        " search stopped while knobs were in doubt, and measured again under load that stayed."
        " *One look*: the number of workers was chosen once; its three that missed 3 % again with a"
        " second look once the tuned model waits, as all twenty without a word. *Again*: the one that"
        " missed then, and four beside it, with numbers of workers compared whenever the model has"
        " become faster. *Last*: with what was mended in that, beside four rivals, which load the"
        " machine far more.",
        "",
        (
            "| space, budget | runs | mean regret | ≤ 3 % | ≤ 10 % | wall time | there is |"
            " needless knobs | not adopted | over-claimed |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, float, str], list[dict]] = {}
    for record in records():
        when = record.get("when", "")
        key = record["kind"], record["minutes"], f", {when}" * bool(when)
        groups.setdefault(key, []).append(record)
    for (kind, minutes, when), group in sorted(groups.items()):
        runs = [r for r in group if not r["code"]]
        failed = f" ({len(group) - len(runs)} failed)" if len(runs) < len(group) else ""
        within = [fmean(r["regret"] <= bar for r in runs) for bar in (0.03, 0.10)]
        over = sum(r["verdict"] == "tuned" and r["speedup"]["low"] > r["truth"] for r in runs)
        lines.append(
            f"| {kind}, {minutes:g} min{when} | {len(runs)}{failed} |"
            f" {fmean(r['regret'] for r in runs):.1%} | {within[0]:.0%} | {within[1]:.0%} |"
            f" {fmean(r['wall_s'] for r in runs):.0f} s | {fmean(r['there_is'] for r in runs):.2f}×"
            f" | {fmean(len(r['needless']) for r in runs):.1f} |"
            f" {sum(r['verdict'] != 'tuned' for r in runs)} | {over} |"
        )
    held = [
        abs(b["gain"]) <= 1.96 * b["sd"]
        for r in records()
        if not r["code"] and r.get("when") != "before"
        for b in r["bands"]
    ]
    if held:
        lines += [
            "",
            (
                f"A knob without effect: the live band holds 1.0 in {sum(held)} of {len(held)}"
                f" ({fmean(held):.0%})."
            ),
        ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
