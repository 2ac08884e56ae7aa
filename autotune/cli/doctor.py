"""``autotune doctor``"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from json import dumps
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from autotune.cli.show import print_captured
from autotune.executors.gpu_load import gpu_load
from autotune.export.fingerprint import gpu_names
from autotune.words import yaml_words
from autotune_spaces.base import NotApplicable, Start
from autotune_spaces.codec import encode
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine, ModelFacts, OptimizerFacts
from autotune_spaces.knobs import get, names
from autotune_spaces.machine import probe

LIBRARIES = ("torch", "optuna", "mlflow", "ray", "nvtx")
SMALL_SHM_GIB = 0.5  # several workers with images soon fill a container's default 64 MiB


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what this machine offers, what is missing, and what each knob would do for an ordinary
    job here.
    """
    report = examine()
    if json:
        typer.echo(dumps(report, indent=2))
    else:
        print_captured(lambda console: _print(console, report))


def examine() -> dict[str, Any]:
    """The report as JSON data; changes nothing."""
    machine = probe()
    libraries = {name: _version(name) for name in LIBRARIES}
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "machine": encode(machine),
        "libraries": libraries,
        "pressure_stall_information": bool(_read("/proc/pressure/cpu")),
        "cpu_governor": governor,
        "missing": _missing(machine, libraries, governor),
        "knobs": _knobs(machine),
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _missing(machine: Machine, libraries: dict[str, str], governor: str) -> list[str]:
    """What could be better, one sentence each."""
    found = []
    if libraries["torch"] and not machine.torch_version:
        found.append(f"torch {libraries['torch']} is installed but cannot be imported")
    if not machine.cxx_compiler:
        found.append(
            "no C++ compiler with Python's header files (g++, python3-dev): compile_mode is not available on"
            " a CPU"
        )
    if machine.device == "cuda" and not machine.c_compiler:
        found.append(
            "no C compiler with Python's header files (gcc, python3-dev): compile_mode is not available on"
            " the GPU"
        )
    if machine.shm_gib < SMALL_SHM_GIB:
        found.append(
            f"/dev/shm has only {machine.shm_gib * 1024:.0f} MiB free: DataLoader workers may die"
            " with a bus error (docker: --shm-size=8g or --ipc=host)"
        )
    if not _read("/proc/pressure/cpu"):
        found.append(
            "no pressure-stall information (/proc/pressure): interference from other programs shows"
            " only in their CPU use"
        )
    if governor and governor != "performance":
        found.append(
            f"the CPU governor is '{governor}': clock changes add noise; 'performance' gives"
            " steadier figures"
        )
    if machine.cores < 2:
        found.append("only one core: workers and training share it, and times are noisy")
    unusable = machine.device == "cpu" and bool(gpu_names(os.environ))
    if unusable:
        found.append(
            "this machine has a GPU, which no torch in this environment can use: the knobs below are"
            " those of a job on the CPU. A run uses the job's own torch"
        )
    if unusable or machine.device == "cuda":
        found += [
            f"{clause}: other programs on a GPU add noise and take its memory"
            for clause in gpu_load(os.environ)
        ]
    return found


def _knobs(machine: Machine) -> list[dict[str, Any]]:
    """What each knob would try for an ordinary image job here, or why it does not apply."""
    job, rows = _ordinary_job(machine), []
    start = Start((sys.executable, "train.py"), dict(os.environ), os.getcwd())
    for name in names():
        row: dict[str, Any] = {"knob": name, "values": [], "out": ""}
        knob = get(name)
        try:
            surveyed = replace(job, surveys={name: knob.survey(start)})
            row["values"] = list(knob.domain(machine, surveyed).values)
        except NotApplicable as reason:
            row["out"] = str(reason)
        rows.append(row)
    return rows


def _ordinary_job(machine: Machine) -> JobFacts:
    """A small image classifier with nothing tuned, for which `doctor` shows the knobs."""
    loader = LoaderFacts(
        dataset="images",
        site="",
        key="",
        batch_size=64,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory=False,
        drop_last=False,
        iterable=False,
        length=782,
        samples=50_000,
        custom_batch_sampler=False,
    )
    optimizer = OptimizerFacts("AdamW", "default", ("for-loop", "foreach", "fused"), (1e-3,), 60)
    model = ModelFacts("Net", 11_000_000, convolutions=20)
    threads = machine.cores
    if machine.torch_version:
        import torch

        threads = torch.get_num_threads()
    return JobFacts(
        pid=os.getpid(),
        device=machine.device,
        loader=loader,
        optimizers=(optimizer,),
        models=(model,),
        intra_op_threads=threads,
        copy_share=0.05,
    )


def _print(console: Console, report: dict[str, Any]) -> None:
    machine = report["machine"]
    facts = Table(box=None, pad_edge=False, show_header=False)
    for what, value in _facts(report):
        facts.add_row(what, value)
    console.print("This machine", style="bold")
    console.print(facts)
    console.print("\nRecommendations", style="bold")
    for line in report["missing"] or ["nothing found"]:
        console.print(f"- {line}")
    console.print(f"\nKnobs for a typical image job on {machine['device']}", style="bold")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for row in report["knobs"]:
        values = ", ".join(map(yaml_words, row["values"]))
        table.add_row(row["knob"], f"not applicable: {row['out']}" if row["out"] else values)
    console.print(table)


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    machine, libraries = report["machine"], report["libraries"]
    gpu = "none usable by this torch"
    if machine["device"] == "cuda":
        capability = ".".join(map(str, machine["compute_capability"]))
        gpu = (
            f"{machine['device_count']} × {machine['device_name']},"
            f" {machine['device_memory_gib']:.0f} GiB, capability {capability}, CUDA"
            f" {machine['cuda_version']}, cuDNN {machine['cudnn_version']}"
        )
    flags = ", ".join(machine["cpu_flags"]) or "none that matters to a knob"
    return [
        ("CPU", f"{machine['cores']} cores usable, {machine['cpu_model']} ({flags})"),
        ("CPU governor", report["cpu_governor"] or "not reported by this kernel"),
        ("memory", f"{machine['memory_gib']:.1f} GiB"),
        ("/dev/shm", f"{machine['shm_gib']:.1f} GiB free"),
        ("GPU", gpu),
        ("C++ compiler", machine["cxx_compiler"] or "none"),
        ("C compiler", machine["c_compiler"] or "none"),
        (
            "pressure stall",
            "available" if report["pressure_stall_information"] else "not available",
        ),
        ("Python", machine["python_version"]),
        *((name, version or "not installed") for name, version in libraries.items()),
    ]
