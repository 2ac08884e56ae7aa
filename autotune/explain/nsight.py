"""Nsight Systems and Nsight Compute around a profiled session: their command lines and reports.

    nsys profile … ── job ── agent: │ warm-up │ cudaProfilerStart ■■ profiled iterations ■■ cudaProfilerStop │ ── report
                                                 the only stretch that is captured

The report is read through ``nsys export --type sqlite``. According to NVIDIA, the tables of that
schema depend on what happened and the columns on the version. Every table and column is therefore
checked before it is queried, and anything missing is named, not guessed
(docs.nvidia.com/nsight-systems, "SQLite Schema Reference").
"""

from __future__ import annotations

import csv
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.explain.records import KernelCounters, KernelTime, NsightFacts
from autotune.explain.timeline import covered
from autotune_trials.measure.nvtx import DOMAIN, ITERATION

DOMAIN_CREATED = 75  # eventType of NVTX_EVENTS: NvtxDomainCreate
HOST_TO_DEVICE = 1  # CUpti_ActivityMemcpyKind, the values of copyKind
# nsys export of a dozen iterations takes seconds; a tool that hangs must not hang a run
READ_TIMEOUT_S = 300.0
TOP_KERNELS = 10
# ncu replays each launch a dozen times: this many keep it within a minute or two
NCU_LAUNCHES = 12
NCU_COLUMNS = {  # column of the report -> field here; percent of the peak the card can sustain
    "gpu__time_duration.sum": "duration_s",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute_share",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory_share",
}
SECONDS = {"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0}
SECONDS |= {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class Unreadable(Exception):
    """A report cannot be read; the message says why, in a clause."""


@dataclass(frozen=True)
class Tool:
    """An external profiler. ``name`` is the program, ``title`` what people call it."""

    name: str
    title: str
    suffix: str  # of its report

    def missing(self, device: str, ranks: int = 1) -> str:
        """Why it cannot be used here, in one sentence; "" if it can. ``ranks``: of the job."""
        if device != "cuda":
            return (
                f"{self.title} was requested, but it profiles only GPUs, and the job computes on"
                " the CPU; torch.profiler was used."
            )
        if shutil.which(self.name) is None:
            return (
                f"{self.title} was requested, but there is no {self.name} on PATH here;"
                " torch.profiler was used."
            )
        if self is NCU and ranks > 1:
            return (
                f"{self.title} was requested, but it runs each kernel several times, and one that"
                " exchanges data between ranks would wait forever for the others; torch.profiler was"
                " used."
            )
        return ""


NSYS = Tool("nsys", "Nsight Systems", ".nsys-rep")
NCU = Tool("ncu", "Nsight Compute", ".ncu-rep")


def nsys_words(report: str) -> tuple[str, ...]:
    """Words to put before the job's command. ``report``: the path without its suffix."""
    # by default a graph is one event, without its kernels
    traced = "nsys profile -t cuda,nvtx,osrt,cudnn,cublas --cuda-graph-trace=node"
    captured = "--capture-range=cudaProfilerApi --capture-range-end=stop --kill=none --sample=none"
    return (*f"{traced} {captured} --force-overwrite=true -o".split(), report)


def ncu_words(report: str, kernels: Sequence[str]) -> tuple[str, ...]:
    """Words to put before the job's command.

    Captures a few launches of the named kernels, within the capture range only.
    """
    wanted = "|".join(
        dict.fromkeys(re.escape(name) for name in map(function_name, kernels) if name)
    )
    only = ("--kernel-name", f"regex:^({wanted})$") if wanted else ()
    return (
        *"ncu --target-processes all --profile-from-start off".split(),
        *only,
        *f"--launch-count {NCU_LAUNCHES} --force-overwrite --export".split(),
        report,
    )


def function_name(kernel: str) -> str:
    """A demangled kernel name as ncu shows it by default.

    Without return type, namespaces, template arguments and call arguments.

    >>> function_name("void at::native::elementwise_kernel<4, at::native::Add<float>>(int, float*)")
    'elementwise_kernel'
    """
    depth, kept = 0, []
    for char in kernel.replace("(anonymous namespace)", "anonymous"):
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif char == "(" and depth == 0:
            break
        elif depth == 0:
            kept.append(char)
    return "".join(kept).split("::")[-1].split(" ")[-1].strip()


# ----------------------------------------------------------------------------------- Nsight Systems


def export(report: Path) -> Path:
    """Export the report to SQLite, beside it.

    Raises:
        Unreadable: nsys fails, or takes too long.
    """
    target = report.with_suffix(".sqlite")
    words = "nsys export --type sqlite --force-overwrite=true --output".split()
    done = _call([*words, str(target), str(report)])
    if done.returncode or not target.exists():
        raise Unreadable(f"nsys export failed: {_last_line(done.stderr or done.stdout)}")
    return target


def read_sqlite(path: Path) -> NsightFacts:
    """What happened on the device in the captured window.

    Raises:
        Unreadable: it is not a database, or holds no kernels.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return _facts(database)
    except sqlite3.Error as error:
        raise Unreadable(f"its SQLite export cannot be read: {error}") from error


def _facts(database: sqlite3.Connection) -> NsightFacts:
    missing: list[str] = []
    kernels = _rows(
        database,
        "CUPTI_ACTIVITY_KIND_KERNEL",
        ("start", "end"),
        ("shortName", "demangledName"),
        missing,
    )
    copies = _rows(
        database, "CUPTI_ACTIVITY_KIND_MEMCPY", ("start", "end", "bytes", "copyKind"), (), missing
    )
    ranges = _rows(
        database,
        "NVTX_EVENTS",
        ("start", "end"),
        ("text", "textId", "eventType", "domainId"),
        missing,
    )
    if not kernels:
        raise Unreadable(
            "its export contains no kernels" + (f" ({'; '.join(missing)})" if missing else "")
        )
    strings = {
        row["id"]: row["value"]
        for row in _rows(database, "StringIds", ("id", "value"), (), missing)
    }
    to_device = [row for row in copies if row["copyKind"] == HOST_TO_DEVICE]
    began, ended = min(r["start"] for r in kernels), max(r["end"] for r in kernels)
    iterations = _iterations(ranges, strings)
    if iterations:
        began = min(r["start"] for r in iterations)
        ended = max(max(r["end"] for r in iterations), ended)
    return NsightFacts(
        window_s=(ended - began) / 1e9,
        steps=len(iterations),
        busy_s=covered(((r["start"], r["end"]) for r in kernels), began, ended) / 1e9,
        kernels=_top(kernels, strings),
        launches=len(kernels),
        host_to_device_bytes=float(sum(r["bytes"] for r in to_device)) if copies else None,
        host_to_device_s=sum(r["end"] - r["start"] for r in to_device) / 1e9 if copies else None,
        missing=tuple(missing),
    )


def _iterations(
    ranges: Sequence[Mapping[str, Any]], strings: Mapping[Any, str]
) -> list[Mapping[str, Any]]:
    """The ranges that mark iterations.

    Those in our own domain; in any domain where the export does not name domains, or torch drew the
    ranges.
    """

    def text(row: Mapping[str, Any]) -> str | None:
        return row.get("text") or strings.get(row.get("textId"))

    ours = {
        r.get("domainId")
        for r in ranges
        if r.get("eventType") == DOMAIN_CREATED and text(r) == DOMAIN
    }
    drawn = [
        r
        for r in ranges
        if text(r) == ITERATION and r["end"] and (not ours or r.get("domainId") in ours)
    ]
    return [r for r in ranges if text(r) == f"{DOMAIN}::{ITERATION}" and r["end"]] or drawn


def _rows(
    database: sqlite3.Connection,
    table: str,
    needed: Sequence[str],
    wanted: Sequence[str],
    missing: list[str],
) -> list[dict[str, Any]]:
    """The rows of a table, with all ``needed`` columns and those of ``wanted`` that exist.

    No rows if a needed column is missing; ``missing`` then says which.
    """
    there = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    lacking = [column for column in needed if column not in there]
    if lacking:
        missing.append(f"no {', '.join(lacking)} in {table}" if there else f"no table {table}")
        return []
    columns = [*needed, *(column for column in wanted if column in there)]
    listed = ", ".join(f'"{column}"' for column in columns)  # end is an SQL keyword
    return [
        dict(zip(columns, row, strict=True))
        for row in database.execute(f'SELECT {listed} FROM "{table}"')
    ]


def _top(
    kernels: Sequence[Mapping[str, Any]], strings: Mapping[Any, str]
) -> tuple[KernelTime, ...]:
    found: dict[str, list[int]] = {}
    for row in kernels:
        name = (
            strings.get(row.get("shortName")) or strings.get(row.get("demangledName")) or "unnamed"
        )
        found.setdefault(name, []).append(row["end"] - row["start"])
    ranked = sorted(found.items(), key=lambda item: -sum(item[1]))
    return tuple(
        KernelTime(name, len(times), sum(times) / 1e9) for name, times in ranked[:TOP_KERNELS]
    )


# ----------------------------------------------------------------------------------- Nsight Compute


def read_ncu(report: Path) -> tuple[KernelCounters, ...]:
    """How close each captured launch came to the card's limits.

    Raises:
        Unreadable: ncu fails or takes too long, or its table has no kernel names.
    """
    done = _call(["ncu", "--import", str(report), "--page", "raw", "--csv"])
    if done.returncode:
        raise Unreadable(f"ncu --import failed: {_last_line(done.stderr or done.stdout)}")
    return parse_ncu(done.stdout)


def parse_ncu(text: str) -> tuple[KernelCounters, ...]:
    """Parse the CSV of ``ncu --page raw``: column names, units, then one row per launch.

    The tool's own lines (``==PROF==``) before it are skipped.

    Raises:
        Unreadable: it has no kernel names.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("==")]
    rows = list(csv.DictReader(lines))
    if not rows or "Kernel Name" not in rows[0]:
        raise Unreadable("its table has no column Kernel Name")
    units, launches = (rows[0], rows[1:]) if not rows[0]["Kernel Name"] else ({}, rows)
    return tuple(_counters(row, units) for row in launches)


def _counters(row: Mapping[str, str], units: Mapping[str, str]) -> KernelCounters:
    values: dict[str, float | None] = {}
    for column, name in NCU_COLUMNS.items():
        try:
            number = float(row[column].replace(",", ""))
        except (KeyError, ValueError, AttributeError):
            values[name] = None
            continue
        unit = units.get(column, "")
        values[name] = number * SECONDS.get(unit, 1e-9) if name == "duration_s" else number / 100
    return KernelCounters(row["Kernel Name"], **values)


def _call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=READ_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreadable(f"{words[0]} could not be run: {error}") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
