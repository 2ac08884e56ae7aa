"""Reads YAML safely, and keeps the line of everything in it.

Error messages name the line of a mistake, so the reader keeps one for every key and item. It
differs from ``yaml.safe_load`` in four ways, each because of a mistake people really make:

* ``on``, ``off``, ``yes`` and ``no`` stay words (YAML 1.2), so ``amp_dtype: [off, bfloat16]`` means
what it says;
* ``1e-3`` is a number, ``1:30`` and ``2026-01-02`` are not turned into something else;
* a key is a word (``1:`` is "1"), and a duplicate key is an error, not a silent overwrite;
* tags (``!!python/…``) and aliases (``*name``), through which a short document may grow without
limit, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20  # read in half a minute; a long tuned.yaml has 20,000
MAX_DIGITS = 100  # of a whole number
PLAIN_DATA = "text, numbers and lists under keys"
VALID_YAML = (
    "key: value on each line, evenly indented; quotes and brackets closed; text with ': ' in it"
    " quoted"
)

KeyPath = tuple[str | int, ...]  # keys and indexes from the top: ("budget", "minutes")


class YamlMistake(Exception):
    """``str()`` says what is wrong; ``line`` counts from 1."""

    def __init__(self, text: str, line: int, expected: str = PLAIN_DATA) -> None:
        super().__init__(text)
        self.line, self.expected = line, expected


@dataclass(frozen=True)
class Document:
    """Plain data, the line of each part of it, and how its scalars were spelled."""

    data: Any
    lines: Mapping[KeyPath, int]  # from 1
    spelling: Mapping[KeyPath, str]  # of unquoted scalars, as written: "1.10", not 1.1

    def line(self, place: KeyPath) -> int:
        """The line of ``place``, or of the closest part around it that is in the file."""
        for end in range(len(place), 0, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return 1


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema, without tags and aliases."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    @classmethod
    def meaning(cls, text: str) -> str:
        """What unquoted ``text`` is: int, float, bool, null or str."""
        for tag, pattern in cls.yaml_implicit_resolvers.get(text[:1], ()):
            if pattern.match(text):
                return str(tag).rpartition(":")[2]
        return "str"

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlMistake(
                f"the alias *{event.anchor} is not supported", line, "its value, written out"
            )
        if event.tag:
            tag = event.tag.replace(_CORE, "!!")
            raise YamlMistake(f"the tag {tag}: only plain data is allowed", line)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


_CORE = "tag:yaml.org,2002:"
# ``int``: also 20_000, as in Python; no octal by a leading zero, no base 60. Each digit can be read
# in one way only, so a long row of them is read without backtracking.
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0x[0-9a-fA-F]+|[0-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(_CORE + _tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    if len(text) > MAX_DIGITS:
        line = node.start_mark.line + 1
        raise YamlMistake(f"a number of {len(text)} digits", line, f"at most {MAX_DIGITS}")
    return int(text, 16 if "0x" in text else 10)


_Loader.add_constructor(_CORE + "int", _construct_int)


def plain_meaning(text: str) -> str:
    """What :func:`read_yaml` takes unquoted ``text`` for: int, float, bool, null or str."""
    return _Loader.meaning(text)


def read_yaml(path: Path) -> Document:
    """Read one YAML document from ``path``.

    Raises:
        OSError: it cannot be read.
        YamlMistake: it is not YAML, holds a tag, an alias or a duplicate key, or is too large.
    """
    if (size := path.stat().st_size) > MAX_BYTES:
        raise YamlMistake(f"the file has {size:,} bytes", 1, f"at most {MAX_BYTES:,}")
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise YamlMistake("not UTF-8 text", line, "a text file in UTF-8") from None
    return parse_yaml(text)


def parse_yaml(text: str) -> Document:
    """Like :func:`read_yaml`, from a string."""
    lines: dict[KeyPath, int] = {}
    spelling: dict[KeyPath, str] = {}
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return Document(None, {}, {})
            _Walk(lines, spelling).visit(node, ())
            return Document(loader.construct_document(node), lines, spelling)
        # raised by the YAML reader itself: "\\UFFFFFFFF", %YAML 1.(5000 digits)
        except (ValueError, OverflowError) as error:
            line = loader.get_mark().line + 1
            raise YamlMistake(f"not valid YAML: {error}", line, VALID_YAML) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlMistake(*_describe(error, mark.line + 1 if mark else 1)) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise YamlMistake(
            f"a character that YAML does not allow: {chr(error.character)!r}", line
        ) from None
    except RecursionError:
        raise YamlMistake("nested too deeply", 1) from None


def _describe(error: yaml.MarkedYAMLError, line: int) -> tuple[str, int, str]:
    problem = error.problem or "not YAML"
    if "found character '\\t'" in problem:
        return "a tab where YAML wants spaces", line, "spaces"
    context = f"{error.context}, " if error.context else ""
    return f"not valid YAML: {context}{problem}", line, VALID_YAML


class _Walk:
    """Records the line of every part.

    Raises (its methods):
        YamlMistake: at the line of what is refused.
    """

    def __init__(self, lines: dict[KeyPath, int], spelling: dict[KeyPath, str]) -> None:
        self._lines, self._spelling = lines, spelling

    def visit(self, node: yaml.Node, place: KeyPath) -> None:
        self._lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            _join_halves(node)
            if node.style is None:
                self._spelling[place] = node.value
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*place, index))
        elif isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, place)

    def _visit_mapping(self, node: yaml.MappingNode, place: KeyPath) -> None:
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise YamlMistake("a key that is not a word", line, "key: value")
            _join_halves(key)
            if key.value in first:
                raise YamlMistake(
                    f"the key '{key.value}' occurs again, first on line {first[key.value]}",
                    line,
                    "each key once",
                )
            first[key.value] = line
            key.tag = _CORE + "str"  # a key is a word even if it looks like a number
            # The key's line, not its value's, so that "env:" and its entries can be told apart.
            self._lines[(*place, key.value)] = line
            self.visit(value, (*place, key.value))


def _join_halves(node: yaml.ScalarNode) -> None:
    r"""Join "\ud83d\ude82": JSON writes a character beyond 0xFFFF as two halves."""
    halves = node.value.encode("utf-16-le", "surrogatepass")
    node.value = halves.decode("utf-16-le", "surrogatepass")
    try:
        node.value.encode("utf-8", "surrogateescape")  # undecodable bytes of file names stay
    except UnicodeEncodeError:
        line = node.start_mark.line + 1
        raise YamlMistake("half of a character (an unpaired surrogate)", line, "text") from None


def read_text(document: Document, place: KeyPath, value: Any) -> str:
    """``value`` as the file spells it: 1.10 stays "1.10", 4 becomes "4"."""
    return document.spelling.get(place, str(value))
