"""A whole run on the replay executor, whose machine has no noise: its result must be the same in
every figure, whatever happens to it.
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

# more than there are configurations: all are tried, in whatever order
BUDGET = "budget: {minutes: 60, trials: 20}\n"


def quiet_machine() -> ReplayExecutor:
    return Machine(table(noise=0.0, block_noise=0.0))


def tuned(folder: Path, machine: ReplayExecutor | None = None) -> Result:
    return run(folder, machine or quiet_machine(), job(folder, extra=BUDGET))


def figures(result: Result) -> Any:
    """All of the result but how long it took, where it lies, and the live figures: what is left of
    a search is measured in other blocks.
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
    """Kind and key of each whole entry; a last line without its end is none. Of a pair that was cut
    in two one run is made again, to stand beside the other, and counts once."""
    whole = [line for line in journal_of(folder).splitlines(keepends=True) if line.endswith(b"\n")]
    found = sorted((e["kind"], e["key"]) for e in map(json.loads, whole))
    again = [entry for entry, times in Counter(found).items() if entry[0] == "run" and times > 1]
    assert len(again) <= 1
    for entry in again:
        found.remove(entry)
    return found
