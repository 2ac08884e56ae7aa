"""What tuning gains on a GPU: seven ordinary training programs, written to benchmarks/gpu.md.

    python benchmarks/gpu.py run [JOB ...] [--minutes 4] [--within 9.5] [--job-python PYTHON]
    python benchmarks/gpu.py page

`run` tunes each job of benchmarks/gpu_jobs/, or those named, by `autotune run` with default
settings, on the local executor and with the study on disk only, and keeps the results in
benchmarks/gpu_results/JOB.json. A job that has such a file is skipped; delete the file to run it
again. --within is for machines that are lent for minutes: no job starts whose budget does not fit,
and what still runs at the end is interrupted; the same command resumes it from build/gpu/. (A job
exceeds its budget if its proof needs more minutes.) `page` makes benchmarks/gpu.md from the files
that exist, and `run` ends with it.

Only results from a device are written: without a CUDA device `run` says so and exits.

The tuner and the job may use different Pythons: --job-python is the job's, which needs no part of
autotune installed; the default is this one. The job's needs torch, NumPy and Pillow. The tuner's
imports autotune from this source tree, and needs no mlflow, ray, libcst or nvtx. Beside NumPy,
SciPy, scikit-learn, Matplotlib, PyYAML, Typer, Rich and Jinja2, which are often there, it needs
these wheels of about 4 MB: optuna (without its dependencies), colorlog, tqdm, packaging, pydantic,
pydantic-core, annotated-types, typing-inspection, typing-extensions, msgspec.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks" / "gpu_jobs"
RESULTS = ROOT / "benchmarks" / "gpu_results"
WORK = ROOT / "build" / "gpu"
JOBS = ("conv_net", "resnet50", "gpt", "vit", "diffusion", "resnet50_expert", "jpeg")
OURS = [str(ROOT), str(ROOT / "trials"), str(ROOT / "search_spaces")]
OTHERS = list(filter(None, [os.environ.get("PYTHONPATH")]))
TUNER = {**os.environ, "PYTHONPATH": os.pathsep.join(OURS + OTHERS)}  # what autotune runs with
TO_END_S = 20.0  # for the current measurement when time is up
COLUMNS = (
    "job",
    "baseline, samples/s",
    "tuned, samples/s",
    "speed-up (95 %)",
    "loss",
    "knobs",
    "bottleneck",
    "peak memory, GiB",
    "model FLOPs utilization",
    "share of the roof",
    "trials",
    "minutes",
)
NOTES = """\
Where two figures stand: baseline → tuned. The speed-up is an estimate drawn towards 1 by its own
error, and need not be the quotient of the rates beside it. Model FLOPs utilization is that of the
peak measured on this device for the formats in use. Share of the roof: the least time the operators
need by the roofline ÷ the time they took, over those it can judge. A dash: not measured.
"""


class TimeIsUp(Exception):
    """The run was interrupted; the same command resumes it."""


def tune(
    name: str, command: Sequence[str], folder: Path, minutes: float, until: float = float("inf")
) -> dict[str, Any]:
    """Tune a program of benchmarks/gpu_jobs/ by the command line; returns its result.json.

    Args:
        command: run in a copy of benchmarks/gpu_jobs/, without autotune on its path.
        folder: for the copy and the run; an earlier run in it is resumed.
        until: deadline in time.monotonic() seconds, at which the run is interrupted.

    Raises:
        TimeIsUp: the deadline passed.
        subprocess.CalledProcessError: `autotune run` failed; it has printed why.
    """
    shutil.copytree(
        SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    spec = {
        "name": name,
        "command": list(command),
        "env": {"PYTHONPATH": ""},
        "budget": {"minutes": minutes},
    }
    (folder / "job.yaml").write_text(json.dumps(spec))  # JSON is YAML
    call = [sys.executable, "-m", "autotune", "run", "job.yaml", "--no-history", "--offline"]
    with subprocess.Popen(call, cwd=folder, env=TUNER) as run:
        try:
            run.wait(None if until == float("inf") else max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)  # stop after the current measurement
            with suppress(subprocess.TimeoutExpired):
                run.wait(TO_END_S)
            run.send_signal(signal.SIGINT)  # stop at once
            raise TimeIsUp from None
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, call)
    result: dict[str, Any] = json.loads(
        (folder / "autotune-runs" / name / "result.json").read_text()
    )
    return result


def figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a result: the figures of the page and what explains them.

    Raises:
        ValueError: it does not come from a CUDA device.
    """
    observation, explanation = result["observation"], result["explanation"]
    if observation["job"]["device"] != "cuda":
        raise ValueError(f"{result['name']} trained on {observation['job']['device']}, not on CUDA")
    confirmation = result["confirmation"] or {}
    tuned = result["verdict"] == "tuned"
    before = confirmation.get("baseline_anatomy") or observation["anatomy"]
    after = confirmation.get("anatomy") if tuned else None
    machine = result["environment"]["machine"]
    kept = ("device_name", "torch_version", "cuda_version", "python_version", "cores")
    sides = {"baseline": before, **({"winner": after} if after else {})}
    return {
        "job": result["name"],
        "machine": {name: machine[name] for name in kept},
        "command": result["environment"]["command"][1:],
        "budget_minutes": result["environment"]["budget"]["minutes"],
        "verdict": result["verdict"],
        "reason": result["reason"],
        "speedup": result["speedup"],
        "loss": {name: result["loss"][name] for name in ("verdict", "reason")},
        "knobs": result["knobs"],
        "bottleneck": observation["bottleneck"],
        "sides": {
            name: {
                "samples_per_s": anatomy["samples_per_s"],
                "peak_memory_gib": anatomy["peak_memory_gib"],
                **used(explanation["sides"].get(name) or {}),
            }
            for name, anatomy in sides.items()
        },
        "trials": len(result["trials"]),
        "wall_s": result["wall_s"],
        "gains": result["gains"],
        "rejected": result["rejected"],
        "withdrawn": observation["withdrawn"],
        "findings": [finding["title"] for finding in explanation["findings"]],
    }


def used(side: Mapping[str, Any]) -> dict[str, float | None]:
    """How much of the device a profiled side used, 0 to 1; None: unknown."""
    rows = [row for row in side.get("operators", ()) if row["of_roof"] is not None]
    took_s = sum(row["self_time_s"] for row in rows)
    least_s = sum(row["self_time_s"] * row["of_roof"] for row in rows)
    return {
        "mfu": (side.get("summary") or {}).get("mfu"),
        "of_roof": least_s / took_s if took_s else None,
    }


def row(found: Mapping[str, Any]) -> str:
    """One line of the table."""
    sides, speedup = list(found["sides"].values()), found["speedup"]
    interval = f"{speedup['estimate']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})"

    def each(name: str, form: str) -> str:
        return " → ".join("—" if side[name] is None else format(side[name], form) for side in sides)

    return line(
        [
            found["job"],
            f"{sides[0]['samples_per_s']:.0f}",
            f"{sides[-1]['samples_per_s']:.0f}",
            interval if found["verdict"] == "tuned" else "keep",
            found["loss"]["verdict"],
            ", ".join(f"{name}={value}" for name, value in found["knobs"].items()) or "none",
            found["bottleneck"],
            each("peak_memory_gib", ".1f"),
            each("mfu", ".0%"),
            each("of_roof", ".0%"),
            str(found["trials"]),
            f"{found['wall_s'] / 60:.1f}",
        ]
    )


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """benchmarks/gpu.md: a table for each machine, its jobs in the order of JOBS."""
    lines = ["# On a GPU", "", "Made by `python benchmarks/gpu.py run`.", "", NOTES.rstrip()]
    of = {JOBS.index(one["job"]): one for one in found}
    ordered = sorted((words_of(one["machine"]), number) for number, one in of.items())
    for machine, group in itertools.groupby(ordered, key=lambda pair: pair[0]):
        lines += ["", f"## {machine}", "", line(COLUMNS), "|" + "---|" * len(COLUMNS)]
        lines += [row(of[number]) for _, number in group]
    return "\n".join(lines) + "\n"


def words_of(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['device_name']}, {machine['cores']} cores, torch {machine['torch_version']}, "
        f"Python {machine['python_version']}"
    )


def write_page(results: Path, out: Path) -> int:
    """Write the page of the files in ``results``. 1: there are none."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    if not found:
        print(f"no results in {results}: nothing to write", file=sys.stderr)
        return 1
    text = page(found)
    print(text)
    out.write_text(text, encoding="utf-8")
    return 0


def no_device(python: str) -> str:
    """Why ``python`` cannot use a CUDA device; empty if it can."""
    ask = [python, "-c", "import torch; torch.zeros(1, device='cuda')"]
    done = subprocess.run(ask, capture_output=True, text=True)
    if not done.returncode:
        return ""
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def run(options: argparse.Namespace) -> int:
    """Tune the jobs without a result. 0: every job asked for has one."""
    until = time.monotonic() + 60 * options.within
    without: list[str] = []
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.jobs:
        kept = options.results / f"{name}.json"
        if kept.exists():
            print(f"{name}: done before, see {kept}", flush=True)
            continue
        if time.monotonic() + 60 * options.minutes > until:
            without.append(f"{name} (not begun: too little time is left)")
            continue
        command = [options.job_python, f"{name}.py"]
        try:
            result = tune(name, command, options.work / name, options.minutes, until)
        except TimeIsUp:
            without.append(f"{name} (interrupted: the same command carries on)")
        except subprocess.CalledProcessError as error:
            without.append(f"{name} (failed with {error.returncode})")
        else:
            kept.write_text(json.dumps(figures(result), indent=1) + "\n", encoding="utf-8")
    if without:
        print("without a result: " + ", ".join(without), file=sys.stderr)
    written = write_page(options.results, options.out)
    return 1 if without else written


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="one JSON file a job")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "gpu.md")
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("page", help="write the page of the results that are there")
    running = commands.add_parser("run", help="tune jobs that have no result yet, write the page")
    running.add_argument(
        "jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; default: all"
    )
    running.add_argument("--minutes", type=float, default=4.0, help="budget of each job")
    running.add_argument("--within", type=float, default=float("inf"), help="minutes for it all")
    running.add_argument("--job-python", default=sys.executable, help="Python of the jobs")
    running.add_argument("--work", type=Path, default=WORK, help="runs, to be carried on")
    options = parser.parse_args()
    if options.what == "page":
        return write_page(options.results, options.out)
    options.jobs = options.jobs or JOBS
    if unknown := set(options.jobs) - set(JOBS):
        parser.error(f"no such job: {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
    if why := no_device(options.job_python):
        print(f"no CUDA device for {options.job_python} ({why}): nothing is run", file=sys.stderr)
        return 1
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
