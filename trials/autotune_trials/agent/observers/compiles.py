"""Why dynamo broke its graphs, and why it recompiled.

    CompileLog        from the job's start, profile runs only: every graph break with its line. Each happens once, in warm-up
    CompileObserver   the watched window: recompilations, their reasons, and what they cost

Dynamo records each compilation (``torch._dynamo.utils.get_compilation_metrics``) with its reason
and duration. Graph breaks it only logs, so its log function is patched. Both are private to torch:
whatever is missing is named in ``Evidence.blind``.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.facts.source_calls import OURS
from autotune_trials.agent.observers.observer import Observer
from autotune_trials.agent.patches.patch_set import UNTRACED, Patch, PatchSet
from autotune_trials.protocol.evidence import GraphBreak, Place

PATCH = "dynamo.log_graph_break"
LONGEST_REASON = 300

Line = tuple[str, int, str]  # file, line, function


class CompileLog:
    """Records dynamo's graph breaks. :meth:`attach` is called when something is about to be
    compiled; idempotent.
    """

    def __init__(self, patches: PatchSet) -> None:
        self._patches = patches
        # traced stack, outermost first: [reason, count]
        self.breaks: dict[tuple[Line, ...], list[Any]] = {}
        self.trouble = ""

    def attach(self) -> None:
        if PATCH in self._patches:
            return
        try:
            import torch._dynamo.symbolic_convert as convert

            self._patches.add(
                PATCH, convert.InstructionTranslatorBase, "log_graph_break", self._listen
            )
        except Exception as error:
            log.write_exception("compiles")
            self.trouble = (
                "could not hook dynamo's graph-break log in this torch version:"
                f" {type(error).__name__}"
            )

    def _listen(self, patch: Patch, original: Any) -> Any:
        def log_graph_break(translator: Any, *args: Any, **kwargs: Any) -> Any:
            if patch.active:
                self._note(args, kwargs)
            return original(translator, *args, **kwargs)

        return log_graph_break

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``args``: (code_options, reason, exc); the exception holds the traced stack of the job's
        code.
        """
        try:
            error = kwargs.get("exc", args[2] if len(args) > 2 else None)
            if getattr(error, "logged", False) or UNTRACED in str(error):
                return
            lines = tuple(
                (str(frame.filename), int(frame.lineno or 0), str(frame.name))
                for frame in getattr(error, "real_stack", None) or ()
            )
            if lines and not lines[-1][0].startswith(OURS):
                known = self.breaks.setdefault(lines, [one_line(str(error)), 0])
                known[1] += 1
        except Exception:
            self.trouble = log.reason("graph break")


class CompileObserver(Observer):
    name = "compiles"

    def begin(self) -> None:
        self._began = time.time()

    def finish(self) -> dict[str, Any]:
        if "torch._dynamo" not in sys.modules:
            return {}
        listening = self.agent.modules.compiles
        blind = (
            {"graph breaks": listening.trouble}
            if listening is not None and listening.trouble
            else {}
        )
        breaks = listening.breaks.items() if listening is not None else ()
        left = [
            GraphBreak("break", reason, self._place(self._own(lines)), count)
            for lines, (reason, count) in breaks
        ]
        return {"breaks": tuple(left + self._recompiles(metrics())), "blind": blind}

    def _recompiles(self, found: list[Any]) -> list[GraphBreak]:
        """Recompilations in the window by line, and the functions dynamo has given up on at any
        time.
        """
        lines: dict[str, Line] = {}  # compile id -> the job's line
        seconds: dict[Line, float] = {}
        counts: dict[Line, int] = {}
        reasons: dict[Line, str] = {}
        given_up: dict[Line, str] = {}
        for each in found:
            number = str(each.compile_id)
            reason = getattr(each, "recompile_reason", None)
            if reason and number not in lines:
                lines[number] = user_line(reason) or (
                    str(each.co_filename),
                    int(each.co_firstlineno or 0),
                    str(each.co_name),
                )
                if each.fail_type:
                    given_up[lines[number]] = guard(reason)
            line = lines.get(number)
            if line is None or (each.start_time or 0.0) < self._began:
                continue
            seconds[line] = seconds.get(line, 0.0) + (each.duration_us or 0) / 1e6
            if reason and not each.fail_type:
                counts[line] = counts.get(line, 0) + 1
                reasons[line] = guard(reason)
        # given up after a single one: that it runs uncompiled matters more
        counts = {line: n for line, n in counts.items() if n > 1 or line not in given_up}
        again = [
            GraphBreak("recompile", reasons[line], self._place(line), count, seconds[line])
            for line, count in counts.items()
        ]
        limit = [
            GraphBreak("recompile", reason, self._place(line), sum(lines[n] == line for n in lines))
            for line, reason in given_up.items()
            if line not in counts
        ]
        return again + limit

    def _own(self, lines: tuple[Line, ...]) -> Line:
        """The innermost line of the job's own code, else the innermost of all."""
        return next((line for line in reversed(lines) if self.watch.places.own(line[0])), lines[-1])

    def _place(self, line: Line) -> Place:
        import linecache

        file, number, function = line
        return Place(
            file,
            number,
            re.sub(r"^torch_dynamo_resume_in_|_at_\d+$", "", function),
            linecache.getline(file, number).strip(),
            self.watch.places.own(file),
        )


def metrics() -> list[Any]:
    """Dynamo's record of its compilations; [] if it is not in use."""
    utils = sys.modules.get("torch._dynamo.utils")
    return list(utils.get_compilation_metrics()) if utils is not None else []


def user_line(reason: str) -> Line | None:
    """The innermost line of the job's stack, which dynamo appends to a reason."""
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', reason)
    return (found[-1][0], int(found[-1][1]), found[-1][2]) if found else None


def guard(reason: str) -> str:
    """``0/3: self.n == 3   # return …  # /path:8 in forward (HINT: …`` as "self.n == 3"."""
    first = reason.strip().splitlines()[0]
    return re.sub(r"^\d+/\d+: ", "", first).split("  #")[0].strip()[:LONGEST_REASON]


def one_line(text: str) -> str:
    """Dynamo's message on one line: what happened and the explanation, without hints, contexts and
    links.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    explained = [
        line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")
    ]
    return ". ".join(dict.fromkeys([*lines[:1], *explained]))[:LONGEST_REASON]
