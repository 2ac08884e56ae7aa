"""What a GPU gains: jobs that the GPU limits, tuned, written to benchmarks/gpu.md.

    python benchmarks/gpu.py [--minutes 10] [--jobs resnet50 gpt] [--job-python /opt/job/bin/python] [--out benchmarks/gpu.md]

Each job of benchmarks/gpu_jobs/ is an ordinary script that needs nothing but torch, run by `autotune run` with default settings.
``--job-python`` is the Python of the job's environment, in which nothing of autotune need be installed; the default is this one.
Without a CUDA device it says so and writes nothing: nothing in that file is guessed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks" / "gpu_jobs"
JOBS = ("conv_net", "resnet50", "gpt")
HEAD = (
    "| job | baseline, samples/s | tuned, samples/s | speed-up (95 %) | loss | knobs | bottleneck | memory, GiB | share of the peak FLOP/s "
    "| trials | minutes |"
)


def tune(name: str, python: str, folder: Path, minutes: float, words: Sequence[str] = ()) -> dict[str, Any]:
    """result.json of a job, tuned by the command line.

    Args:
        python: of the job's environment.
        folder: to be made, for the job and the run.
        words: added to the job's command.

    Raises:
        subprocess.CalledProcessError: `autotune run` failed; it has said why.
    """
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    spec = {"name": name, "command": [python, f"{name}.py", *words], "budget": {"minutes": minutes}}
    (folder / "job.yaml").write_text(json.dumps(spec))  # JSON is YAML
    subprocess.run([sys.executable, "-m", "autotune", "run", "job.yaml", "--offline"], cwd=folder, check=True)
    result: dict[str, Any] = json.loads((folder / "autotune-runs" / name / "result.json").read_text())
    return result


def row(result: Mapping[str, Any]) -> str:
    """One line of the table."""
    observation, confirmation, speedup = result["observation"], result["confirmation"] or {}, result["speedup"]
    before = confirmation.get("baseline_anatomy") or observation["anatomy"]
    after = confirmation.get("anatomy") or before
    rate = before["samples_per_s"]
    sides = result["explanation"].get("sides") or {}
    shares = [(sides.get(side) or {}).get("summary") or {} for side in ("baseline", "winner")]
    return "| " + " | ".join([
        result["name"], f"{rate:.0f}", f"{rate * speedup['estimate']:.0f}",
        f"{speedup['estimate']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})", result["loss"]["verdict"],
        ", ".join(f"{k}={v}" for k, v in result["knobs"].items()) or "none", observation["bottleneck"],
        f"{before['peak_memory_gib']:.1f} → {after['peak_memory_gib']:.1f}",
        " → ".join("?" if share.get("mfu") is None else f"{share['mfu']:.0%}" for share in shares),
        str(len(result["trials"])), f"{result['wall_s'] / 60:.1f}",
    ]) + " |"  # fmt: skip


def page(results: Sequence[Mapping[str, Any]], minutes: float) -> str:
    machine = results[0]["environment"]["machine"]
    lines = [
        "# On a GPU",
        "",
        f"Made by `python benchmarks/gpu.py --minutes {minutes:g}` on {machine['device_name']}, torch {machine['torch_version']}, "
        f"{machine['cores']} cores.",
        "",
        HEAD,
        "|" + "---|" * (HEAD.count("|") - 1),
        *map(row, results),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of each job")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--job-python", default=sys.executable, help="Python of the job's environment")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "gpu.md")
    options = parser.parse_args()
    asked = subprocess.run([options.job_python, "-c", "import torch; torch.zeros(1, device='cuda')"], capture_output=True, text=True)
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"no CUDA device for {options.job_python} ({why}): benchmarks/gpu.md is written only where there is one", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        results = [tune(name, options.job_python, Path(folder) / name, options.minutes) for name in options.jobs]
    text = page(results, options.minutes)
    print(text)
    options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
