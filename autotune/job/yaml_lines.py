"""YAML read safely, with the line of everything in it.

Error messages name the line a mistake stands on, so the reader keeps one for every key and item. Four things differ
from ``yaml.safe_load``, each because of a mistake people really make:

* ``on``, ``off``, ``yes`` and ``no`` stay words (YAML 1.2), so ``amp_dtype: [off, bfloat16]`` means what it says;
* ``1e-3`` is a number, ``1:30`` and ``2026-01-02`` are not turned into something else;
* a key given twice is an error, not a silent overwrite;
* a document that grows beyond :data:`MAX_NODES` through aliases is refused.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_NODES = 10_000
MAX_BYTES = 1 << 20

Place = tuple[str | int, ...]  # keys and indexes from the top: ("budget", "minutes")


class YamlMistake(Exception):
    """``str()`` is what is wrong; ``line`` counts from 1."""

    def __init__(self, text: str, line: int, expected: str = "") -> None:
        super().__init__(text)
        self.line, self.expected = line, expected


@dataclass(frozen=True)
class Document:
    """Plain data, where each part of it stands, and how its scalars were spelled."""

    data: Any
    lines: Mapping[Place, int]  # from 1
    spelling: Mapping[Place, str]  # of unquoted scalars, as written: "1.10", not 1.1

    def line(self, place: Place) -> int:
        """The line of ``place``, or of the nearest thing around it that is in the file."""
        for end in range(len(place), 0, -1):
            # A key is noted as it is spelled; in the data ``1:`` is a number.
            for candidate in (place[:end], (*place[: end - 1], str(place[end - 1]))):
                if candidate in self.lines:
                    return self.lines[candidate]
        return 1


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}


# ``int``: also 20_000, as Python writes it; no octal by a leading zero, no base 60.
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0x[0-9a-fA-F]+|[0-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*)?\.?[0-9]+(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+\.(?:[eE][-+]?[0-9]+)?"
              r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "").lower()
    return int(text, 16) if "0x" in text else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def read_yaml(path: Path) -> Document:
    """Read one YAML document from ``path``.

    Raises:
        OSError: it cannot be read.
        YamlMistake: it is not YAML, holds more than data (``!!python/…``), a key twice, or too much.
    """
    raw = path.read_bytes()
    if len(raw) > MAX_BYTES:
        raise YamlMistake(f"the file holds {len(raw)} bytes", 1, f"at most {MAX_BYTES}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise YamlMistake("not UTF-8 text", line, "a text file in UTF-8") from None
    return parse_yaml(text)


def parse_yaml(text: str) -> Document:
    """As :func:`read_yaml`, from a string."""
    lines: dict[Place, int] = {}
    spelling: dict[Place, str] = {}
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return Document(None, {}, {})
            _walk(node, (), (), lines, spelling)
            return Document(loader.construct_document(node), lines, spelling)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlMistake(_describe(error), mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise YamlMistake(f"a character that YAML does not allow: {chr(error.character)!r}", line) from None
    except RecursionError:
        raise YamlMistake("nested too deeply", 1) from None
    except ValueError as error:  # a number Python refuses, e.g. of 5000 digits
        raise YamlMistake(str(error), 1) from None


def _describe(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "not YAML"
    if "could not determine a constructor for the tag" in problem:
        tag = problem.partition("'")[2].rpartition("'")[0].replace("tag:yaml.org,2002:", "!!")
        return f"the tag {tag}: only plain data is read"
    if "found character '\\t'" in problem:
        return "a tab where YAML wants spaces"
    return f"not valid YAML: {error.context + ', ' if error.context else ''}{problem}"


def _walk(
    node: yaml.Node, place: Place, above: tuple[int, ...], lines: dict[Place, int], spelling: dict[Place, str]
) -> None:
    """Note the line of every part; aliases are followed, so that what they stand for has a line in each place."""
    line = node.start_mark.line + 1
    if id(node) in above:
        raise YamlMistake("an alias that contains itself", line)
    if len(lines) > MAX_NODES:
        raise YamlMistake(f"more than {MAX_NODES} entries, aliases written out", line)
    lines.setdefault(place, line)
    above = (*above, id(node))
    if isinstance(node, yaml.ScalarNode):
        if node.style is None:
            spelling[place] = node.value
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*place, index), above, lines, spelling)
    elif isinstance(node, yaml.MappingNode):
        _walk_mapping(node, place, above, lines, spelling)


def _walk_mapping(
    node: yaml.MappingNode, place: Place, above: tuple[int, ...], lines: dict[Place, int], spelling: dict[Place, str]
) -> None:
    first: dict[Hashable, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise YamlMistake("a key that is not a word", line, "key: value")
        if key.tag == "tag:yaml.org,2002:merge":
            # What is merged in is found at its own lines; keys written out here win.
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                _walk(source, place, above, lines, spelling)
            continue
        if key.value in first:
            raise YamlMistake(
                f"the key '{key.value}' stands here again, first on line {first[key.value]}", line, "each key once"
            )
        first[key.value] = line
        inner = (*place, key.value)
        lines[inner] = line
        _walk(value, inner, above, lines, spelling)
        # A key's line, not its value's: "env:" and what is below it are then told apart.
        lines[inner] = line


def read_text(document: Document, place: Place, value: Any) -> str:
    """``value`` as the file spells it: 1.10 stays "1.10", 4 becomes "4"."""
    return document.spelling.get(place, str(value))
