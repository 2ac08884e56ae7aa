"""Makes docs/job.md from the models.

python -m autotune.job.docs docs/job.md           write it
python -m autotune.job.docs --check docs/job.md   exit with 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autotune.job.schema import json_schema
from autotune.job.spec import EXECUTORS
from autotune_spaces.docs import write_page
from autotune_spaces.space import load_preset, preset_names

HEAD = """\
# job.yaml

<!-- Made from the models in autotune/job/schema.py by `python -m autotune.job.docs docs/job.md`. -->

What is tuned, and how. Only `command` is required; `autotune init -- COMMAND` writes a first file, `autotune check job.yaml` validates one, and
`autotune schema` prints its JSON Schema for editors.

| key | value | default | meaning |
|---|---|---|---|
"""

NOTES = """
## The command

Words are split by shell quoting rules, but no shell runs them: `&&`, `|`, `>`, `~/` and patterns that match files (`*.txt`)
outside quotes are refused, and so is `$NAME` outside single quotes.
`shell: true` runs the line through `/bin/sh -c` instead; it may not send its output to a file outside `{trial_dir}`, which
every trial would overwrite. In `env`, the names of variables that are set (`$NAME`) are refused, too.
Relative paths are relative to `workdir`, which is relative to the file.

| placeholder | stands for |
|---|---|
| `{seed}` | the seed of this run of the job: 1000, 1001 …; with `autotune launch` its `--seed`, 0 by default |
| `{trial_dir}` | a directory for this run only, for whatever the job writes |
| `{NAME}` | the value of a knob of that name, see [knobs of your own](knobs.md#knobs-of-your-own) |

The job is run many times, with different settings, and stopped before it finishes. What it writes meanwhile is undone after every trial, so that no
trial finds another's checkpoint and yours stay unchanged: see [side effects](side-effects.md). `{trial_dir}` is deleted after each trial.

## The search space

`search_space` is a preset, or a mapping of knobs, optionally starting from a preset:

```yaml
search_space:
  preset: auto                     # then only what differs from it:
  exclude: [compile_mode]          # knobs left out
  num_workers: [0, 4, 8]           # these values
  pin_memory: off                  # also left out
  prefetch_factor: auto            # the knob's own choice of values
  batch_size: {values: [64, 128], lr_scaling: sqrt}    # values and an option of the knob
```

[Knobs](knobs.md) lists every knob with its values and options, and explains [knobs of your own](knobs.md#knobs-of-your-own).

| preset | knobs |
|---|---|
{presets}

## What it is tuned for

`objective` decides what counts as better. `energy` is read from the machine's own counters: NVML for the GPU, RAPL for the CPU, which on most systems
only root may read (in a container, mount the host's `/sys/class/powercap` and set `AUTOTUNE_POWERCAP` to its path). They also count whatever else runs and,
of several GPUs, only the first rank's; the run names those it adds up, and a machine without them is refused after one run of the job. `cost` is
`time_to_train` at a `price` per hour: on one kind of machine the cheapest settings are those with the shortest training, and `autotune compare --anyway` of
two runs shows what the training costs on each. Tune a cluster of several kinds of machine one kind at a time (`executor.ray.resource`).

```yaml
objective: [throughput, energy]    # the first decides; the report shows what no other configuration beats in both
```

## Metrics of your own

`convergence.metrics` maps a name to a pattern, or to `pattern` and `tolerance`; a metric that the job reports by `autotune.metric(name, value)`
needs no entry to be compared.

```yaml
convergence:
  metrics:
    val_acc: "val_acc=([0-9.]+)"
    f1: {pattern: "f1: ([0-9.]+)", tolerance: 2%}
```

## Changing it after a run has begun

`budget`, `price`, `tracking`, `traces`, `side_effects`, the timeouts, where the executor runs (`executor.ray`'s `address`, `slots`, `resource`
and `workdir`) and, with `--run-dir`, `name` may change: the same command continues from where it was. If anything else has changed, it is
another run: use `--fresh`, or another `--run-dir`.

## YAML

Only `true` and `false` are booleans; `on`, `off`, `yes` and `no` stay words. A key may occur only once. Tags (`!!python/…`) are refused.
"""


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


def render() -> str:
    """The whole page."""
    return (
        HEAD
        + "".join(
            f"| `{key}` | {kind} | {default} | {meaning} |\n"
            for key, kind, default, meaning in rows()
        )
        + NOTES.replace("{presets}", "\n".join(_presets()))
    )


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
