"""Writes YAML for people: text is quoted only where a reader of YAML 1.1 or 1.2 would take it for
something else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from autotune.job.yaml_lines import plain_meaning


class Inline(dict[str, Any]):
    """A mapping to be written on one line."""


class _Dumper(yaml.SafeDumper):
    """Lists are written line by line, tuples on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML knows only YAML 1.1, where 08 and 1e-4 are text
    style = '"' if not text.isprintable() or plain_meaning(text) != "str" else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style)


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    return dumper.represent_float(float(value))


def _tuple(dumper: yaml.SafeDumper, values: Sequence[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


def _inline(dumper: yaml.SafeDumper, values: Mapping[str, Any]) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", values.items(), flow_style=True)


# also for enums, and numpy's float64
_Dumper.add_multi_representer(str, _text)
_Dumper.add_multi_representer(float, _number)
_Dumper.add_representer(str, _text)
_Dumper.add_representer(tuple, _tuple)
_Dumper.add_representer(Inline, _inline)


def yaml_block(data: Mapping[str, Any], indent: int = 0) -> str:
    """``data`` as YAML, without the last line break, each line indented by ``indent`` spaces."""
    dumped = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=2**20, allow_unicode=True)
    return textwrap.indent(dumped.removesuffix("\n"), " " * indent)


def yaml_scalar(text: str) -> str:
    """``text`` as YAML, on one line."""
    return yaml_block({"": text}).partition(": ")[2]
