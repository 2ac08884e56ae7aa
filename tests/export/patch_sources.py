"""Sources whose sites are given by their text, and the real `patch` program to apply the exported
diffs.
"""

from __future__ import annotations

import ast
import subprocess
import tokenize
from io import StringIO
from pathlib import Path
from typing import Any

from autotune.export.formats import FORMATS
from autotune.export.patch.plan import Patch, make_patch
from autotune.export.tuned import Provenance, TunedConfig, TunedKnob
from autotune_spaces.sites import (
    BackwardSite,
    BuiltSite,
    ForwardSite,
    JobSites,
    SettingSite,
    SourceCall,
)

LOADER = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "*",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
ADAM = (
    "params",
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "amsgrad",
    "*",
    "foreach",
    "maximize",
    "capturable",
    "differentiable",
    "fused",
)


def call(
    source: str, text: str, file: str = "train.py", binding: str = "", which: int = 0
) -> SourceCall:
    """The site of ``text`` as the agent records it; ``which``: its occurrence, counted from 0."""
    start = -1
    for _ in range(which + 1):
        start = source.index(text, start + 1)
    line, column = _place(source, start)
    end_line, end_column = _place(source, start + len(text))
    return SourceCall(
        file, line, column, end_line, end_column, text, _function(source, line), True, binding
    )


def _place(source: str, index: int) -> tuple[int, int]:
    return source.count("\n", 0, index) + 1, index - (source.rfind("\n", 0, index) + 1)


def _function(source: str, line: int) -> str:
    names = [
        n.name
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return ".".join(names) or "<module>"


def library(text: str, file: str) -> SourceCall:
    return SourceCall(file, 10, 8, 10, 8 + len(text), text, "f", False)


def loader(
    source: str, text: str, others: int = 0, parameters: tuple[str, ...] = LOADER, **more: Any
) -> JobSites:
    return JobSites(
        "train.py",
        BuiltSite(call(source, text), "torch.utils.data.DataLoader", parameters, others),
        **more,
    )


def optimizer(source: str, text: str, lr: float | None = 0.1) -> BuiltSite:
    return BuiltSite(call(source, text), "torch.optim.adam.Adam", ADAM, 0, lr)


def training(
    source: str,
    model: str,
    backward: str,
    *outer: str,
    bindings: tuple[str, ...] = ("model",),
    images: tuple[tuple[str, int], ...] = (),
    step: str = "",
    program: str = "train.py",
) -> JobSites:
    """Sites of a forward and a backward; ``outer``: calls leading to both, innermost first."""
    names = [*bindings, *[""] * (1 + len(outer) - len(bindings))]
    above = tuple(
        call(source, text, binding=name) for text, name in zip(outer, names[1:], strict=False)
    )
    forward = ForwardSite("Net", (call(source, model, binding=names[0]), *above), images)
    steps = (call(source, step),) if step else ()
    return JobSites(
        program,
        forwards=(forward,),
        backwards=(BackwardSite((call(source, backward), *above), 0),),
        steps=steps,
    )


def settings(source: str, *texts: str) -> JobSites:
    sites = tuple(
        SettingSite(text.partition("(")[0].rpartition(".")[2], call(source, text)) for text in texts
    )
    return JobSites("train.py", settings=sites)


def tuned(
    folder: Path, sites: JobSites, knobs: dict[str, Any], device: str = "cpu", **options: Any
) -> TunedConfig:
    """A tuned configuration; ``options``: of the batch_size knob."""
    chosen = {
        name: TunedKnob(value, None, None, options if name == "batch_size" else {})
        for name, value in knobs.items()
    }
    return TunedConfig(
        "digits",
        ("python", "train.py"),
        folder,
        knobs=chosen,
        provenance=Provenance(sites=sites, job_device=device),
    )


def patched(
    folder: Path,
    source: str,
    sites: JobSites,
    knobs: dict[str, Any],
    device: str = "cpu",
    **options: Any,
) -> str:
    """``source`` after the real `patch` has applied the exported diff.

    Also checks what must hold for every patch.
    """
    (folder / "train.py").write_text(source, newline="")
    diff = FORMATS["diff"].write(tuned(folder, sites, knobs, device, **options))
    copy = folder / "copy"
    copy.mkdir(exist_ok=True)
    (copy / "train.py").write_text(source, newline="")
    subprocess.run(
        ["patch", "-p1", "--quiet", "--no-backup-if-mismatch"],
        cwd=copy,
        input=diff.encode(),
        check=True,
        capture_output=True,
    )
    with open(copy / "train.py", newline="") as file:
        after = file.read()
    compile(after, "train.py", "exec")
    assert comments(source) == comments(after), (
        "a comment was lost, moved before another or made up"
    )
    return after


def comments(source: str) -> list[str]:
    return [
        t.string
        for t in tokenize.generate_tokens(StringIO(source).readline)
        if t.type == tokenize.COMMENT
    ]


def refusals(
    folder: Path,
    source: str,
    sites: JobSites,
    knobs: dict[str, Any],
    device: str = "cpu",
    **options: Any,
) -> dict[str, str]:
    """Knob -> why it is not in the patch."""
    (folder / "train.py").write_text(source)
    patch: Patch = make_patch(tuned(folder, sites, knobs, device, **options))
    return {item.knob: item.reason for item in patch.unwritten}


def changed_lines(before: str, after: str) -> list[str]:
    """Lines of ``after`` that are not in ``before``, stripped."""
    old = before.splitlines()
    return [line.strip() for line in after.splitlines() if line not in old and line.strip()]
