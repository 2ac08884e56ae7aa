"""Makes the tables in docs/job.md from the models.

python -m autotune.job.docs docs/job.md           write it
python -m autotune.job.docs --check docs/job.md   exit with 1 if it is out of date
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autotune.job.schema import json_schema
from autotune.job.spec import EXECUTORS
from autotune_spaces.docs import write_page
from autotune_spaces.space import load_preset, preset_names

KEYS = "| key | value | default | meaning |\n|---|---|---|---|\n"
PRESETS = "| preset | knobs |\n|---|---|\n"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """(key, kind, default, meaning) of every key, nested ones as ``budget.minutes``."""
    schema = json_schema()
    for key, entry in schema["properties"].items():
        if "$ref" in entry:
            yield from _inner(key, _model(schema, entry))
        elif key == "executor":
            yield key, f"{_names(EXECUTORS)} or mapping", "`local`", entry["description"]
            yield from _inner("executor.ray", schema["$defs"]["Ray"])
        else:
            needed = key in schema["required"]
            yield key, _kind(entry), "" if needed else _default(entry), entry["description"]


def _names(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _model(schema: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    return dict(schema["$defs"][entry["$ref"].rpartition("/")[2]])


def _inner(key: str, model: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for inner, detail in model["properties"].items():
        yield f"{key}.{inner}", _kind(detail), _default(detail), detail["description"]


def _kind(entry: dict[str, Any]) -> str:
    if "enum" in entry or "const" in entry:
        return ", ".join(f"`{v}`" for v in entry.get("enum", [entry.get("const")]))
    if "anyOf" in entry:
        return " or ".join(k for part in entry["anyOf"] if (k := _kind(part)))
    bounds = [
        f"{sign} {entry[name]:,}"
        for name, sign in (("exclusiveMinimum", ">"), ("minimum", "≥"))
        if name in entry
    ]
    if entry.get("maximum", 2) <= 1:
        bounds.append(f"≤ {entry['maximum']}")
    words = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "`true`, `false`",
        "object": "mapping",
        "array": "list",
        "null": "",
    }
    return " ".join([words[entry["type"]], *bounds])


def _default(entry: dict[str, Any]) -> str:
    value = entry.get("default")
    if value is None or value == {}:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def render(page: str) -> str:
    """``page`` with its two tables as they are now."""
    keys = [f"| `{key}` | {kind} | {default} | {what} |" for key, kind, default, what in rows()]
    return _with_rows(_with_rows(page, KEYS, keys), PRESETS, _presets())


def _with_rows(page: str, head: str, new: Iterable[str]) -> str:
    before, _, after = page.partition(head)
    rest = itertools.dropwhile(lambda line: line.startswith("|"), after.splitlines(keepends=True))
    return before + head + "".join(f"{row}\n" for row in new) + "".join(rest)


def _presets() -> Iterator[str]:
    for name in preset_names():
        preset = load_preset(name)
        held = [knob for knob, values in preset.knobs.items() if values != "off"]
        names = "" if name == "thorough" else f" {_names(held)}"
        yield f"| `{name}` | {preset.description}{names} |"


def main(arguments: Sequence[str] | None = None) -> int:
    return write_page("autotune.job.docs", render, arguments)


if __name__ == "__main__":
    sys.exit(main())
