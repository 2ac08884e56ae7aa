"""Makes docs/compatibility.md from the results of the compat tests: ``python tests/compat/page.py
build/compat-results docs/compatibility.md``. With ``--keep-verdicts``, a program that was not tuned
this time keeps its verdict on the page, with the date of the run it comes from.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

HEAD = """# Compatibility

Programs and frameworks of other projects, run unmodified under `autotune run` by `make compat`, which writes this page. {when}: {machine}.

For each program the tests compare what autotune saw with the program's own log: the number of optimizer steps, the samples of each step, every
logged loss, and that evaluation is not counted as training. Losses with and without the agent are equal over at least 50 steps, to the last digit
logged (every digit, except five for open_clip, and epoch means or sums for chemprop, pykeen and RecBole). Each knob that applies is in force in
the running job when it is set, and no longer once it is reset; and tuning ends in a verdict.
Those runs search three knobs within one to ten minutes: a speed-up here shows that tuning completes, not what a real budget would find.
Where a cell says "not run", that test was not part of the run that made this page; a verdict with a date is from a run on that day.
"""
CAUSES = (
    (
        (
            "a loop without torch.optim in which no update is seen: weights that become new"
            " tensors in each step"
        ),
        "after 50 backwards: no parameter update was seen",
        "mark the iterations, two lines: `import autotune`, `autotune.step(loss=loss, samples=n)`"
        " (`pip install --no-deps` of a clone of autotune)",
    ),
    (
        "gradients taken by `torch.autograd.grad(loss, parameters)` alone, without `backward()`",
        (
            "the knobs of the loader do not apply: the job reads its training data without a"
            " torch DataLoader. With an optimizer of torch.optim, the loss is not a single number"
            " at each step; without one, neither backward() nor an optimizer was called"
        ),
        (
            "`autotune.step(loss=loss, samples=n)` after each step; the program's own flags for its"
            " loader, as `via:` knobs with `numerics: exact`"
        ),
    ),
    (
        (
            "a loss that compares the samples of a batch (contrastive, distances, correlation over"
            " the batch)"
        ),
        "`batch_size` does not apply: a different batch size would change the loss itself",
        (
            "none is needed; comparisons written with broadcasting are not seen: leave `batch_size`"
            " out of the search space there"
        ),
    ),
    (
        "a loss that does not move (placeholder data)",
        "the loss can prove nothing",
        "tune on real data",
    ),
    (
        "the job's own batch sampler, or `batch_size=None`",
        "`batch_size` does not apply",
        "if the program has a flag for it, make that a `via:` knob",
    ),
    (
        (
            "a batch sampler that a framework wraps around another (accelerate's BatchSamplerShard,"
            " where several processes train)"
        ),
        (
            "`batch_size` does not apply, with the sampler's name; in one process accelerate leaves"
            " the job's own in place, and it applies"
        ),
        "the program's own flag for its batch, as a `via:` knob",
    ),
    (
        "batches that Opacus draws by Poisson sampling",
        "`batch_size` does not apply: the batch size varies, and a larger one guarantees less privacy",
        "none is needed",
    ),
    (
        (
            "a loss with two backward passes, the second with a weight for each sample (Opacus'"
            " ghost clipping)"
        ),
        "nothing: the loss of a step is the sum of both",
        "report the loss: `autotune.step(loss=loss.item(), samples=n)` after each step",
    ),
    (
        "several training loaders iterated together (`zip(labelled, unlabelled)`) or in turn",
        (
            "loader knobs set the loader used last before backward, and its samples are those of"
            " the step (in turn: each loader's own); `batch_size` does not apply; no ceiling is"
            " measured for loaders iterated together"
        ),
        (
            "none is needed: a speed-up is a ratio, whichever loader counts the samples. To count"
            " others: `autotune.step(samples=n)`"
        ),
    ),
    (
        (
            "an evaluation between iterations by a model other than the trained one (an average of"
            " the weights), on data from no loader"
        ),
        "nothing: its time counts in the iteration that follows it",
        (
            "none is needed where it is rare (such iterations stand out as slow ones); else mark"
            " the iterations with `autotune.step()`"
        ),
    ),
    (
        "a DataLoader class that makes its iterators itself (litdata's StreamingDataLoader)",
        (
            "the knobs of the loader do not apply, with the class's name; steps count as"
            " iterations, without samples"
        ),
        "the program's own flags for its loader, as `via:` knobs with `numerics: exact`",
    ),
    (
        "`itertools.cycle(loader)`, which keeps all batches of the first epoch and repeats them",
        (
            "the knobs of the loader and `batch_size` do not apply; steps count as iterations,"
            " without samples"
        ),
        (
            "`while True: for batch in loader: ...`, which also shuffles anew in every epoch, needs"
            " less memory, and can be tuned"
        ),
    ),
    (
        "an IterableDataset that makes its batches itself, in a job without workers",
        "`num_workers` does not apply: it cannot be checked what each worker would read",
        "set `num_workers=1` in the job, if the dataset splits its data between workers correctly",
    ),
    (
        "the job's own autocast, GradScaler or torch.compile",
        "the knob for it does not apply, with what was seen",
        "take it out of the job to have it tuned",
    ),
)


def main(folder: str, page: str, *options: str) -> None:
    rows = read_rows(Path(folder))
    if "--keep-verdicts" in options:
        for name, verdict in verdicts_on(Path(page).read_text()).items():
            if name in rows and "tuned" not in rows[name]:
                rows[name]["earlier"] = {"verdict": verdict}
    machine = f"Python {platform.python_version()}, torch {torch_version(rows)}, CPU"
    Path(page).write_text(
        HEAD.format(when=date.today().isoformat(), machine=machine) + "\n" + table(rows) + causes()
    )


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """program -> all results of its tests, in the order of their files."""
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        left = json.loads(path.read_text())
        rows.setdefault(left["program"], {})[path.stem.rpartition(".")[2]] = left
    return rows


def verdicts_on(page: str) -> dict[str, str]:
    """program -> the verdict of an earlier run on ``page``, with that run's date."""
    made = re.search(r"which writes this page\. (\S+):", page)
    assert made is not None, "the page does not say when it was made"
    verdicts = {}
    for name, cell in re.findall(r"^\| \*\*(.+?)\*\*: .* \| (.+) \|$", page, re.MULTILINE):
        if cell != "not run":
            dated = re.search(r"; on \d{4}-\d\d-\d\d$", cell)
            verdict = cell if dated else f"{cell}; on {made[1]}"
            verdicts[name] = verdict.replace("\\|", "|")
    return verdicts


def torch_version(rows: Mapping[str, Mapping[str, Any]]) -> str:
    found = {row["seen"]["torch"] for row in rows.values() if "torch" in row.get("seen", {})}
    return ", ".join(sorted(found)) or "unknown"


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        (
            "| program | version | what was hooked | knobs that apply | not applicable, and why |"
            " speed-up found |"
        ),
        "|---|---|---|---|---|---|",
    ]
    common = common_reasons(rows)
    if common:
        said = "; ".join(f"`{name}`: {why}" for name, why in common)
        lines = [f"Not applicable to most of them, and not repeated below: {said}.", "", *lines]
    for name, row in rows.items():
        cells = [
            program(name, row),
            row.get("seen", {}).get("version", ""),
            seen(row),
            applies(row),
            not_applicable(row, common),
            found(row),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def common_reasons(rows: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(knob, why it does not apply) of more than half of the programs."""
    seen = Counter(
        reason
        for row in rows.values()
        for reason in row.get("knobs", {}).get("withdrawn", {}).items()
    )
    return [reason for reason, times in seen.items() if times > max(len(rows) / 2, 1)]


def causes() -> str:
    lines = [
        "",
        "## What cannot be hooked, and what to do",
        "",
        "| what | what autotune says | remedy |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in CAUSES)]) + "\n"


def program(name: str, row: Mapping[str, Any]) -> str:
    return f"**{name}**: {next(iter(row.values()))['what']}"


def seen(row: Mapping[str, Any]) -> str:
    hooked, steps = row.get("knobs", {}).get("hooked"), row.get("seen", {}).get("steps")
    if not hooked:
        return "not run"
    parts = [
        f"loader: {hooked['loader'] or 'none'}",
        f"models: {', '.join(hooked['models']) or 'none'}",
        f"optimizer: {', '.join(hooked['optimizers']) or 'none'}",
        f"{hooked['samples']:g} samples and {hooked['backwards']:g} backward a step",
    ]
    if steps:
        parts.append(f"{steps} steps with the same losses")
    return "; ".join(parts)


def applies(row: Mapping[str, Any]) -> str:
    knobs = row.get("knobs", {})
    switched: Sequence[str] = list(knobs.get("switched", {}))
    rest = [f"`{name}`" for name in knobs.get("applies", ()) if name not in switched]
    said = ", ".join(f"`{name}`" for name in switched)
    return f"{said}; not switched here: {', '.join(rest)}" if rest else said


def not_applicable(row: Mapping[str, Any], common: Sequence[tuple[str, str]]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, why in row.get("knobs", {}).get("withdrawn", {}).items():
        if (name, why) not in common:
            reasons.setdefault(why, []).append(f"`{name}`")
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())


def found(row: Mapping[str, Any]) -> str:
    tuned = row.get("tuned")
    if not tuned:
        return str(row.get("earlier", {}).get("verdict", "not run"))
    if tuned["verdict"] != "tuned":
        return f"keep ({tuned['reason']})"
    interval = tuned["speedup"]
    knobs = ", ".join(f"{name} {value}" for name, value in tuned["knobs"].items())
    return (
        f"{interval['estimate']:.2f}x ({interval['low']:.2f}–{interval['high']:.2f}), {knobs}; loss"
        f" {tuned['loss']}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
