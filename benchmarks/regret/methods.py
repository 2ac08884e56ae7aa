"""The methods compared: Optuna's TPE, random search and one factor at a time, with a fresh process
per trial; loadtune; and the tool itself.

A rival's trials are one series; its answer after N minutes is the best trial finished by then.
`-confirmed` searches for 70 % of the time and spends the rest on measuring its three best and the
baseline in turns.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from jobs_table import BUILD, ROOT, job_file
from processes import Config, Processes, Series, Space, TimeUp, in_turns
from records import Records

SECONDS = 4.0  # of a trial's window, as in the tool's own fresh runs
SEARCHING = 0.7  # share of the time, if the rest confirms
CONFIRMED, MOST_ROUNDS = 3, 20


def rival(processes: Processes, method: str, minutes: float, seed: int) -> dict[str, Any]:
    """The answer of a rival, recorded."""
    name, _, confirmed = method.partition("-")
    series = Series(
        processes, f"{name}-{seed}", minutes * 60 * (SEARCHING if confirmed else 1.0), SECONDS
    )
    try:
        SEARCHES[name](series, processes.space, seed)
    except TimeUp:
        pass
    incumbents = best_so_far(series)
    config, wall_s = (incumbents[-1][1] if incumbents else {}), series.spent_s
    if confirmed and config:
        ranked = sorted(series.done, key=lambda trial: trial[2])
        few: list[Config] = [{}]
        for _, candidate, _ in ranked:
            if candidate not in few and len(few) <= CONFIRMED:
                few.append(candidate)
        turns = Series(
            processes, f"{method}-{minutes:g}-{seed}", minutes * 60 - series.spent_s, SECONDS
        )
        try:
            costs = [fmean(c) for c in in_turns(turns, few, MOST_ROUNDS)]
            config = few[min(range(len(few)), key=costs.__getitem__)]
        except TimeUp:  # no complete round: nothing is confirmed
            config = {}
        wall_s += turns.spent_s
    return processes.records.append(
        "answer",
        f"{method}/{minutes:g}/{seed}",
        method=method,
        minutes=minutes,
        config=config,
        wall_s=round(min(wall_s, minutes * 60), 1),
        trials=len(series.done),
        incumbents=incumbents,
    )


def best_so_far(series: Series) -> list[tuple[float, Config]]:
    """(seconds, configuration) of each trial that was the best so far."""
    found: list[tuple[float, Config]] = []
    least = math.inf
    for spent_s, config, cost in series.done:
        if cost < least:
            least = cost
            if not found or found[-1][1] != config:
                found.append((round(spent_s, 1), config))
    return found


def by_optuna(sampler: str) -> Callable[[Series, Space, int], None]:
    def search(series: Series, space: Space, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        made = (
            optuna.samplers.TPESampler(seed=seed)
            if sampler == "tpe"
            else optuna.samplers.RandomSampler(seed=seed)
        )
        study = optuna.create_study(sampler=made)
        study.enqueue_trial(dict(space.defaults))
        while True:
            trial = study.ask()
            values = {
                name: trial.suggest_categorical(name, list(domain))
                for name, domain in space.domains.items()
            }
            cost = series.log_cost(space.normalized(values))
            if math.isfinite(cost):
                study.tell(trial, cost)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)

    return search


def one_factor_at_a_time(series: Series, space: Space, seed: int) -> None:
    """Try every value of one knob after the other and keep the best; repeat while there is time."""
    current: Config = {}
    least = series.log_cost(current)
    while len(space.domains):
        for name in space.domains:
            for value in space.domains[name]:
                config = space.normalized({**current, name: value})
                if config != current and (cost := series.log_cost(config)) < least:
                    current, least = config, cost


SEARCHES: dict[str, Callable[[Series, Space, int], None]] = {
    "tpe": by_optuna("tpe"),
    "random": by_optuna("random"),
    "ofat": one_factor_at_a_time,
}


def loadtune(job: str) -> dict[str, Any]:
    """The answer of loadtune's command with its defaults; it needs `pip install loadtune==0.3.0`."""
    raw = BUILD / job / "loadtune.json"
    raw.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    subprocess.run(
        [
            *(sys.executable, "-m", "loadtune.cli", "tune"),
            str(ROOT / "benchmarks" / "regret" / "loadtune_jobs.py"),
            *("--save-raw", str(raw), "--out", str(raw.with_suffix(".md")), "--no-plots"),
        ],
        env={**os.environ, "REGRET_JOB": job},
        check=True,
    )
    wall_s = time.monotonic() - begin
    found = json.loads(raw.read_text(encoding="utf-8"))
    trials = [t for t in found["trials"] if not t["result"].get("error")]
    config: Config = {}
    if trials:
        # as its own best_trial: the fewest workers within 2 % of the fastest
        most = max(t["result"]["throughput"] for t in trials)
        best = min(
            (t for t in trials if t["result"]["throughput"] >= 0.98 * most),
            key=lambda t: (t["knobs"]["num_workers"], -t["result"]["throughput"]),
        )
        if best["result"]["throughput"] > found["baseline"]["throughput"]:
            config = _as_ours(best["knobs"])
    return Records(job).append(
        "answer",
        "loadtune",
        method="loadtune",
        minutes=0,
        config=config,
        wall_s=round(wall_s, 1),
        trials=len(found["trials"]),
    )


def _as_ours(knobs: Mapping[str, Any]) -> Config:
    """loadtune's knobs by the tool's names, without those that it left as they were."""
    config = {
        "num_workers": knobs["num_workers"],
        "prefetch_factor": knobs["prefetch_factor"],
        "persistent_workers": knobs["persistent_workers"],
        "intra_op_threads": knobs["num_threads"],
        "compile_mode": "default" if knobs["compile"] else None,
        "amp_dtype": "bfloat16" if knobs["amp"] else None,  # as on CPUs
    }
    return {name: value for name, value in config.items() if value}


def ours(job: str, minutes: float, seed: int, again: bool) -> dict[str, Any]:
    """The tool's answer, by its command line; a recorded one is reused unless ``again``. Nothing
    else may use the job's directory.
    """
    records, log = Records(job), BUILD / job / f"ours-{minutes:g}-{seed}.log"
    if (known := records.find("answer", f"ours/{minutes:g}/{seed}")) and not again:
        return known
    run_dir = log.with_suffix("")
    command = [
        sys.executable,
        "-m",
        "autotune",
        "run",
        str(job_file(job)),
        "--no-history",
        "--run-dir",
        str(run_dir),
        "--minutes",
        f"{minutes:g}",
        "--seed",
        str(seed),
        "--offline",
        "--quiet",
        *(["--fresh"] if again else []),
    ]
    begin = time.monotonic()
    with log.open("w") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}: see {log}")
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return records.append(
        "answer",
        f"ours/{minutes:g}/{seed}",
        method="ours",
        minutes=minutes,
        config=result["knobs"],
        wall_s=result["wall_s"],
        outer_s=round(time.monotonic() - begin, 1),
        trials=len(result["trials"]),
        verdict=result["verdict"],
        reason=result["reason"],
        speedup=result["speedup"],
        commit=commit,
    )
