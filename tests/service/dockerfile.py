"""A Dockerfile as stages of instructions; supports the part of the language that ours uses.
hadolint checks the rest.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    word: str  # RUN, COPY …
    text: str  # continuation lines joined


@dataclass(frozen=True)
class Stage:
    name: str
    parent: str
    instructions: tuple[Instruction, ...]

    def all(self, word: str) -> list[str]:
        return [i.text for i in self.instructions if i.word == word]


def stages(path: Path) -> dict[str, Stage]:
    lines = [
        line
        for line in path.read_text().splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    instructions = [
        Instruction(*re.split(r"\s+", line, maxsplit=1))
        for line in "\n".join(lines).replace("\\\n", " ").splitlines()
    ]
    found: dict[str, Stage] = {}
    for instruction in instructions:
        if instruction.word == "FROM":
            parent, _, name = instruction.text.partition(" AS ")
            found[name] = Stage(name, parent, ())
        elif found:
            last = found[next(reversed(found))]
            found[last.name] = Stage(last.name, last.parent, (*last.instructions, instruction))
    return found


def lineage(found: dict[str, Stage], name: str) -> list[Instruction]:
    """The instructions of a stage and of the stages it is built on, in order."""
    stage = found.get(name)
    return [] if stage is None else [*lineage(found, stage.parent), *stage.instructions]


def words(text: str) -> list[str]:
    """The arguments of CMD, ENTRYPOINT and the like in their list form."""
    return json.loads(text)
