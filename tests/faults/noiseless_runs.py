"""A whole run on the replay executor without noise: its result must be the same in every figure,
whatever happens to the run.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from replay import ReplayExecutor
from replayed import Machine, job, run, table

from autotune.results import Result
from autotune_spaces.codec import encode

# more than the number of configurations: all are tried, in some order
BUDGET = "budget: {minutes: 60, trials: 20}\n"


def quiet_machine() -> ReplayExecutor:
    return Machine(table(noise=0.0, block_noise=0.0))


def tuned(folder: Path, machine: ReplayExecutor | None = None) -> Result:
    return run(folder, machine or quiet_machine(), job(folder, extra=BUDGET))


def figures(result: Result) -> Any:
    """The result without durations, paths and live figures.

    A resumed search measures the rest in different blocks, so live figures may differ.
    """
    data = without_times(encode(result))
    del data["environment"], data["name"]
    data["trials"] = sorted(
        (
            {k: trial[k] for k in ("config", "state", "reason", "no_effect")}
            for trial in data["trials"]
        ),
        key=repr,
    )
    data["gains"] = [{k: gain[k] for k in ("knob", "value", "kept")} for gain in data["gains"]]
    for live in ("importance", "build_up"):
        data["explanation"].pop(live)
    return data


def without_times(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: without_times(value) for key, value in data.items() if key != "wall_s"}
    return [without_times(value) for value in data] if isinstance(data, list) else data


def journal_of(folder: Path) -> bytes:
    return (folder / "run" / "journal.jsonl").read_bytes()


def entries_of(folder: Path) -> list[tuple[str, str]]:
    """(kind, key) of each complete entry; an incomplete last line is ignored. If a pair was
    interrupted, one of its runs is repeated next to the other, and counts once.
    """
    whole = [line for line in journal_of(folder).splitlines(keepends=True) if line.endswith(b"\n")]
    found = sorted((e["kind"], e["key"]) for e in map(json.loads, whole))
    again = [entry for entry, times in Counter(found).items() if entry[0] == "run" and times > 1]
    assert len(again) <= 1
    for entry in again:
        found.remove(entry)
    return found
