"""Finds the call expressions in the source at which frames of the running job stand.

While the job runs only a :class:`Spot` is recorded (a code object and an instruction in it, so no
frame is kept alive); it becomes a :class:`SourceCall` afterwards.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from autotune_spaces.sites import SourceCall

DEEPEST = 60  # frames inspected; training loops are nested less deep
LONGEST = 2000  # characters kept of a call
# directory of our own code
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class Spot(NamedTuple):
    code: CodeType
    line: int
    instruction: int  # byte offset in the code
    binding: str = ""  # see SourceCall


def spots(frame: FrameType, torch_directory: str, module: Any = None) -> tuple[Spot, ...]:
    """``frame`` and its callers outside torch and autotune, innermost first, each with the name of
    ``module`` there.
    """
    found = []
    for caller, line in itertools.islice(traceback.walk_stack(frame), DEEPEST):
        code = caller.f_code
        if not code.co_filename.startswith((torch_directory, OURS, "<frozen ")):
            name = name_of(module, caller) if module is not None else ""
            found.append(Spot(code, line or 0, caller.f_lasti, name))
    return tuple(found)


def local_variables(frame: FrameType) -> Mapping[str, Any]:
    """The local variables of a running frame, {} if they cannot be read without a trace.

    Up to Python 3.12 reading them fills a dict that lives as long as the frame does, with all they
    refer to (a checkpoint that the job has dropped), and that ``locals()`` returns there.
    """
    code = frame.f_code
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals  # nothing is copied
    if "locals" in code.co_names:
        return {}
    copied = frame.f_locals
    found = dict(copied)
    if not {"vars", "exec"}.intersection(code.co_names):  # they may have handed it out
        copied.clear()
    return found


def name_of(value: Any, frame: FrameType) -> str:
    """The name of ``value`` in ``frame``: "model", "self.model"; "" if it has none."""
    here = local_variables(frame)
    for name, held in here.items():
        if held is value and name.isidentifier():
            return str(name)
    for name in frame.f_code.co_names:
        if frame.f_globals.get(name) is value:
            return name
    owner = here.get("self")
    # an nn.Module's; other classes may use the name for a list (skorch)
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
    """Turns a Spot into a SourceCall."""

    def __init__(self, root: str, own: Any) -> None:
        """``root``: the directory the job was started in; ``own``: function of a filename, whether
        it is the job's own code.
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
        """Whether it is the job's own source; start scripts written by an installer are not."""
        return bool(self._own(filename)) and not os.path.realpath(filename).startswith(
            self._scripts
        )

    def name(self, filename: str) -> str:
        """``filename`` without the parts that differ between machines, where they can be
        omitted.
        """
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
    """Line, last line, and columns as UTF-8 byte offsets."""
    found = next(
        itertools.islice(spot.code.co_positions(), spot.instruction // 2, None),
        (None, None, None, None),
    )
    line = found[0] or spot.line
    return line, found[1] or line, found[2], found[3]


def _characters(line: str, column: int) -> int:
    return len(line.encode()[:column].decode(errors="replace"))
