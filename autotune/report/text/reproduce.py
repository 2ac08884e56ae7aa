"""How to reproduce a result: command, versions, files, and what tuned.yaml is pinned to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import words
from autotune.export.fingerprint import COMPARED, OF_GPUS
from autotune.report.text import story
from autotune.results import Result
from autotune.run_directory import RUNS

FILES = {
    "tuned.yaml": "the settings, for autotune launch",
    "result.json": "all figures of this page (docs/result.md)",
    "journal.jsonl": "every finished measurement, in order",
    "records": "every fresh run: each iteration's time, the losses",
    "optuna.log": "the search, as Optuna's journal",
    "traces": "profiler traces of baseline and winner",
    "sessions": "what the job itself printed",
    "loss.png": "the loss plot",
}


def reproduce(result: Result, run_dir: Path) -> dict[str, Any]:
    """The content of the page's "reproduce" section, cleaned."""
    environment = result.environment
    return {
        "command": words.clean(_again(result, run_dir)),
        "workdir": words.clean(environment.get("workdir", ""), 300),
        "versions": [
            (words.clean(name, 60), words.clean(version, 120)) for name, version in versions(result)
        ],
        "files": [(name, what) for name, what in FILES.items() if (Path(run_dir) / name).exists()],
        "pinned": ", ".join(pinned(result)) if story.tuned(result) else "",
    }


def versions(result: Result) -> list[tuple[str, object]]:
    """(name, version or figure) of what the results depend on, most important first."""
    machine = result.observation.machine
    packages = result.environment.get("packages", {})
    rows: list[tuple[str, object]] = [
        ("torch", machine.torch_version),
        ("Python", machine.python_version),
    ]
    if machine.cuda_version:
        rows.append(("CUDA", machine.cuda_version))
    rows += [
        ("autotune" if name == "autotune-torch" else name, version)
        for name, version in (packages.items() if isinstance(packages, Mapping) else ())
    ]
    if machine.device == "cuda":
        count = f"{machine.device_count} × " if machine.device_count > 1 else ""
        rows.append(("GPU", f"{count}{machine.device_name}"))
    cpu = machine.cpu_model or machine.device_name
    rows.append(("CPU", f"{cpu}, {words.plural(machine.cores, 'core')}"))
    if words.known(noise := result.observation.noise) and noise:  # 0: a profile measures none
        rows.append(("noise", f"{100 * noise:.1f}% between blocks of the unchanged job"))
    rows.append(("start-up of the job", words.duration_words(result.observation.startup_s)))
    seed = result.environment.get("seed")
    return [*rows, *([("search seed", seed)] if seed is not None else [])]


def pinned(result: Result) -> list[str]:
    """What `autotune launch` compares, as text: ``torch 2.13.0``, ``4 cores`` …

    See :data:`autotune.export.fingerprint.COMPARED`.
    """
    machine = result.observation.machine
    on_gpu = result.observation.job.device == "cuda"
    found = []
    for name, word in COMPARED.items():
        value = getattr(machine, name)
        if not value or (name in OF_GPUS and not on_gpu):
            continue
        found.append(
            f"{value} {word}" if isinstance(value, int) else f"{word} {words.clean(value, 60)}"
        )
    return found


def _again(result: Result, run_dir: Path) -> str:
    environment = result.environment
    job = str(environment.get("job_file") or "job.yaml")
    seed = environment.get("seed") or 0
    shown = story.shown_path(Path(job)) if environment.get("job_file") else job
    options = " --fresh --no-history" + (f" --seed {seed}" if seed else "")
    if Path(run_dir).absolute() != (RUNS / result.name).absolute():
        options += f" --run-dir {shlex.quote(story.shown_path(Path(run_dir)))}"
    budget = environment.get("budget")
    for name, value in budget.items() if isinstance(budget, Mapping) else ():
        if words.known(value):
            options += f" --{name} {value:g}"
    return f"autotune run {shlex.quote(shown)}{options}"
