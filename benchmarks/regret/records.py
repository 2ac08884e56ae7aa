"""Measurements of a job: JSON lines in results/<job>.jsonl, each with a kind and a key. The last
line of a key counts.

    {"kind": "space", "key": "", "domains": {…}, "defaults": {…}}
    {"kind": "run", "key": "tpe-0/7", "config": {…}, "cost_s": 0.0012, "wall_s": 9.1}
    {"kind": "best", "key": "", "config": {…}, …}
    {"kind": "answer", "key": "ours/10/0", "config": {…}, …}
    {"kind": "score", "key": "<digest of the configurations>", "configs": […], "log_costs": [[…],
    …]}

A run is one fresh process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobs_table import HERE

RESULTS = HERE / "results"


class Records:
    def __init__(self, job: str, folder: Path | None = None) -> None:
        self.path = (folder or RESULTS) / f"{job}.jsonl"
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        if self.path.exists():
            # text after the last newline is an incomplete record
            whole = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
            for line in whole.splitlines():
                self._keep(json.loads(line))
            if self.path.stat().st_size > len(whole.encode()) + 1:
                self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")

    def find(self, kind: str, key: str = "") -> dict[str, Any] | None:
        return self._lines.get((kind, key))

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Records in the order in which their keys first appeared."""
        return [line for (its_kind, _), line in self._lines.items() if its_kind == kind]

    def append(self, kind: str, key: str = "", **data: Any) -> dict[str, Any]:
        line = {"kind": kind, "key": key, **data}
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._keep(line)
        return line

    def _keep(self, line: dict[str, Any]) -> None:
        self._lines[line["kind"], line["key"]] = line


def known_jobs() -> list[str]:
    return sorted(path.stem for path in Path(RESULTS).glob("*.jsonl"))
