"""From frames of the running job to the call expressions they stand at.

What is noted while the job runs is a :class:`Spot` (a code object and an instruction in it: no
frame is kept alive); a :class:`SourceCall` is made of it afterwards.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from autotune_spaces.sites import SourceCall

DEEPEST = 60  # frames looked at; training loops lie under fewer
LONGEST = 2000  # characters of a call that are kept
# where our own code lies
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class Spot(NamedTuple):
    code: CodeType
    line: int
    instruction: int  # byte offset in the code
    binding: str = ""  # see SourceCall


def spots(frame: FrameType | None, torch_directory: str, module: Any = None) -> tuple[Spot, ...]:
    """``frame`` and its callers outside torch and ourselves, innermost first; with what ``module``
    is called in each.
    """
    found = []
    for caller in itertools.islice(_callers(frame), DEEPEST):
        code = caller.f_code
        if not code.co_filename.startswith((torch_directory, OURS, "<frozen ")):
            found.append(
                Spot(
                    code,
                    caller.f_lineno or 0,
                    caller.f_lasti,
                    name_of(module, caller) if module is not None else "",
                )
            )
    return tuple(found)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def name_of(value: Any, frame: FrameType) -> str:
    """What ``value`` is called in ``frame``: "model", "self.model"; "" if it has no such name."""
    here = frame.f_locals
    for name, held in here.items():
        if held is value and name.isidentifier():
            return str(name)
    for name in frame.f_code.co_names:
        if frame.f_globals.get(name) is value:
            return name
    owner = here.get("self")
    # of an nn.Module; others may call a list so (skorch)
    modules = getattr(owner, "_modules", None)
    attributes = {
        **getattr(owner, "__dict__", {}),
        **(modules if isinstance(modules, Mapping) else {}),
    }
    return next(
        (
            f"self.{name}"
            for name, held in attributes.items()
            if held is value and name.isidentifier()
        ),
        "",
    )


class Sources:
    """Makes a SourceCall of a Spot."""

    def __init__(self, root: str, own: Any) -> None:
        """``root``: the directory the job was started in; ``own``: filename -> is it the job's own
        code?
        """
        self._root = os.path.realpath(root)
        self._own = own
        self._scripts = os.path.join(os.path.realpath(sysconfig.get_path("scripts") or ""), "")
        self._libraries = sorted(
            {os.path.realpath(p) for p in (*sys.path, sysconfig.get_path("stdlib")) if p},
            key=len,
            reverse=True,
        )

    def own(self, filename: str) -> bool:
        """The job's own source; the start script that an installer wrote is not."""
        return bool(self._own(filename)) and not os.path.realpath(filename).startswith(
            self._scripts
        )

    def name(self, filename: str) -> str:
        """``filename`` without what differs between machines, where that can be left out."""
        if filename.startswith("<"):
            return filename
        path = os.path.realpath(filename)
        roots = [self._root] if self.own(filename) else self._libraries
        return next(
            (path[len(root) + 1 :] for root in roots if path.startswith(os.path.join(root, ""))),
            path,
        )

    def call(self, spot: Spot) -> SourceCall:
        code = spot.code
        line, end_line, column, end_column = _position(spot)
        lines = linecache.getlines(code.co_filename)[line - 1 : end_line]
        if column is None or end_column is None or not lines:
            text, start, end = "".join(lines).strip(), -1, -1
        else:
            start, end = _characters(lines[0], column), _characters(lines[-1], end_column)
            lines[-1] = lines[-1][:end]
            text = "".join(lines)[start:]
        function = getattr(code, "co_qualname", code.co_name)
        return SourceCall(
            self.name(code.co_filename),
            line,
            start,
            end_line,
            end,
            text[:LONGEST],
            function,
            self.own(code.co_filename),
            spot.binding,
        )


def _position(spot: Spot) -> tuple[int, int, int | None, int | None]:
    """Line, last line, and columns in bytes of UTF-8."""
    found = next(
        itertools.islice(spot.code.co_positions(), spot.instruction // 2, None),
        (None, None, None, None),
    )
    line = found[0] or spot.line
    return line, found[1] or line, found[2], found[3]


def _characters(line: str, column: int) -> int:
    return len(line.encode()[:column].decode(errors="replace"))
