"""Tells which code is the job's own, and where in it a frame stands."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Sequence
from typing import Any

from autotune_trials.protocol.evidence import Place

# parts of torch that read tensors for their own bookkeeping, such as an optimizer's step count
BOOKKEEPING = ("optim", "autograd", "amp", "utils/data")

# (code object, line): recorded while the job runs, turned into a Place afterwards
Spot = tuple[Any, int]


class Places:
    """Tells the job's own files from torch, the standard library, site-packages and autotune.

    The script that was started counts as the job's, wherever it is.
    """

    def __init__(self, torch: Any) -> None:
        paths = sysconfig.get_paths()
        roots = {
            paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths
        }
        roots |= {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")}
        theirs = os.path.dirname(os.path.abspath(torch.__file__))
        roots.add(theirs)
        ours = set()
        for name in ("autotune", "autotune_trials", "autotune_spaces"):
            module = sys.modules.get(name)
            if module is not None and getattr(module, "__file__", None):
                ours.add(os.path.dirname(os.path.abspath(str(module.__file__))))
        roots |= ours
        self._ours = tuple(os.path.join(root, "") for root in ours)
        self._internal = (*self._ours, *(os.path.join(theirs, part, "") for part in BOOKKEEPING))
        self._roots = tuple(
            {os.path.join(form, "") for root in roots for form in (root, os.path.realpath(root))}
        )
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        self._own: dict[str, bool] = {os.path.abspath(main): True, main: True} if main else {}
        self._trees: dict[str, ast.Module | None] = {}

    def own(self, filename: str) -> bool:
        """Whether ``filename`` is the job's own code."""
        known = self._own.get(filename)
        if known is None:
            generated = filename.startswith("<") or not filename
            known = self._own[filename] = not generated and not os.path.abspath(
                filename
            ).startswith(self._roots)
        return known

    def internal(self, filename: str) -> bool:
        """Whether ``filename`` is autotune's, or does torch's bookkeeping."""
        return filename.startswith(self._internal)

    def spot(self, frame: Any) -> Spot:
        """Position of the innermost frame of the job's own code, else of the innermost frame of
        all.
        """
        known, own = self._own, self.own
        caller = frame
        while caller is not None:
            code = caller.f_code
            if known.get(code.co_filename) or (
                code.co_filename not in known and own(code.co_filename)
            ):
                return code, caller.f_lineno or 0
            caller = caller.f_back
        return frame.f_code, frame.f_lineno or 0

    def innermost(self, stack: Sequence[Spot]) -> Spot:
        """Like :meth:`spot`, for another thread's stack, innermost frame first."""
        return next(
            ((code, line or 0) for code, line in stack if self.own(code.co_filename)),
            (stack[0][0], stack[0][1] or 0),
        )

    def leaf(self, stack: Sequence[Spot]) -> Any:
        """Code of the innermost frame that is not autotune's."""
        return next(
            (code for code, _ in stack if not code.co_filename.startswith(self._ours)), stack[0][0]
        )

    def place(self, spot: Spot) -> Place:
        code, line = spot
        name = code.co_filename
        function = getattr(code, "co_qualname", code.co_name)
        return Place(name, line, function, linecache.getline(name, line).strip(), self.own(name))

    def lines(self, spot: Spot, block: bool = False) -> tuple[int, int]:
        """First and last line of the statement at ``spot``. Of a compound statement only the head
        counts, unless ``block`` asks for all of a ``with``.
        """
        code, line = spot
        found = (line, line)
        tree = self._tree(code.co_filename)
        for node in ast.walk(tree) if tree is not None else ():
            if not isinstance(node, ast.stmt) or isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            ):
                continue
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if body and not (
                block and isinstance(node, (ast.With, ast.AsyncWith)) and line < body[0].lineno
            ):
                last = body[0].lineno - 1 if body[0].lineno > node.lineno else node.lineno
            if node.lineno <= line <= last and (
                found == (line, line) or last - node.lineno < found[1] - found[0]
            ):
                found = (node.lineno, last)
        return found

    def _tree(self, name: str) -> ast.Module | None:
        if name not in self._trees:
            try:
                self._trees[name] = ast.parse("".join(linecache.getlines(name)))
            except (SyntaxError, ValueError, RecursionError):
                self._trees[name] = None
        return self._trees[name]
