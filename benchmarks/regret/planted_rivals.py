"""The rivals on the planted jobs of planted_runs.py, beside what the tool found there.

    python benchmarks/regret/planted_rivals.py [--minutes 10] [--lanes 4] [--first 5] [--seeds 2]
    python benchmarks/regret/planted_rivals.py --page          writes planted_rivals.md

A rival (methods.py) tries the knobs and values that the tool's own first stage finds, a fresh
process a trial; its answer is the best trial finished by then, which is not proven. The job sleeps
what was planted, so a lane hardly disturbs the others, and no trial is repeated. A lane runs all
rivals on one job; every search is in planted_rivals.jsonl when it ends.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from threading import Lock

import planted_runs  # first: it adds the paths
import processes
from jobs_table import BUILD, HERE
from methods import SEARCHES, best_so_far
from processes import Processes, Series, TimeUp
from records import Records

RESULTS, PAGE = HERE / "planted_rivals.jsonl", HERE / "planted_rivals.md"
processes.REMEASURED = 0
ALIKE = 0.003  # regrets that differ by less are equal


def search(kind: str, seed: int, method: str, minutes: float) -> dict:
    space = planted_runs.drawn(kind, seed)
    name = f"rivals-{kind}-{seed}"
    folder = BUILD / "planted" / name
    job = planted_runs.write_job(folder, name, space)
    with Processes(name, job, Records("runs", folder)) as fresh:
        series = Series(fresh, f"{method}-{seed}", minutes * 60, seconds=4.0)
        try:
            SEARCHES[method](series, fresh.space, seed)
        except TimeUp:
            pass
        domains = {knob: list(values) for knob, values in fresh.space.domains.items()}
    best_s = planted_runs.best_s(space)
    found = [
        (at_s, config, 1 - best_s / planted_runs.cost_s(space, config))
        for at_s, config in best_so_far(series)
    ]
    return {
        "kind": kind,
        "seed": seed,
        "method": method,
        "minutes": minutes,
        "trials": len(series.done),
        "domains": domains,
        "found": found,
    }


def rows(path: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / path).read_text(encoding="utf-8").splitlines()]


def regret_at(record: dict, seconds: float, unchanged: float) -> float:
    """Of what it would have answered then; ``unchanged``: that of the job as it is."""
    return next((r for at_s, _, r in reversed(record["found"]) if at_s <= seconds), unchanged)


def write_page() -> str:
    ours = {(r["kind"], r["seed"]): r for r in rows("planted_runs.jsonl") if not r.get("when")}
    lines = [
        "# Rivals on planted jobs",
        "",
        "Made by `planted_rivals.py`: the jobs and the space of [planted_runs.md](planted_runs.md), a"
        " fresh process a trial, ten minutes; 2 cores, four searches beside each other. Regret of"
        " the best trial finished by then, unproven; *autotune* is the proven answer of its own ten"
        " minutes on the same job. *Reached autotune's*: when the best trial so far was as fast as"
        " that answer.",
        "",
        "| job | there is | method | trials | regret at 3 min | at 10 min | reached autotune's |",
        "|---|---|---|---|---|---|---|",
    ]
    totals: dict[str, list[tuple[float, float]]] = {}
    for record in sorted(rows(RESULTS.name), key=lambda r: (r["kind"], r["seed"], r["method"])):
        job = record["kind"], record["seed"]
        mine, unchanged = ours[job], 1 - 1 / ours[job]["there_is"]
        early, late = (regret_at(record, s, unchanged) for s in (180, 600))
        equal = next((a for a, _, r in record["found"] if r <= mine["regret"] + ALIKE), None)
        reached = "no" if equal is None else f"after {equal:.0f} s"
        totals.setdefault(record["method"], []).append((early, late))
        lines.append(
            f"| {job[0]} {job[1]} | {mine['there_is']:.2f}× | {record['method']} |"
            f" {record['trials']} | {early:.1%} | {late:.1%} | {reached} |"
        )
        if record["method"] == "tpe":
            lines.append(
                f"| {job[0]} {job[1]} | {mine['there_is']:.2f}× | autotune | – | – |"
                f" {mine['regret']:.1%} | ({mine['wall_s']:.0f} s, with its proof) |"
            )
    lines += ["", "| method | mean regret at 3 min | at 10 min |", "|---|---|---|"]
    for method, pairs in totals.items():
        lines.append(
            f"| {method} | {fmean(p[0] for p in pairs):.1%} | {fmean(p[1] for p in pairs):.1%} |"
        )
    known = {(r["kind"], r["seed"]) for r in rows(RESULTS.name)}
    lines.append(f"| autotune | – | {fmean(ours[job]['regret'] for job in known):.1%} |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return PAGE.read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--first", type=int, default=5, help="the first seed")
    parser.add_argument("--seeds", type=int, default=2, help="of each kind")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if options.page:
        print(write_page())
        return
    known = rows(RESULTS.name) if RESULTS.exists() else []
    done = {(r["kind"], r["seed"], r["method"]) for r in known}
    lock = Lock()

    def lane(job: tuple[int, str]) -> None:
        seed, kind = job
        for method in SEARCHES:
            if (kind, seed, method) in done:
                continue
            record = search(kind, seed, method, options.minutes)
            with lock, RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    jobs = [
        (seed, kind)
        for seed in range(options.first, options.first + options.seeds)
        for kind in ("mix", "loader")
    ]
    with ThreadPoolExecutor(options.lanes) as lanes:
        list(lanes.map(lane, jobs))


if __name__ == "__main__":
    main()
