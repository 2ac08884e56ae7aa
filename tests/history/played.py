"""Runs on a replayed machine with a history: every stage is real, time is the machine's own."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

from replay import ReplayExecutor, ReplayTable

from autotune.history.store import Store
from autotune.history.use import History
from autotune.job.load import load_job
from autotune.job.sources import digests
from autotune.job.spec import JobSpec
from autotune.journal import Journal
from autotune.report.terminal.plain import JsonProgress
from autotune.results import Result
from autotune.stages.context import RunContext
from autotune.tracking import open_tracker
from autotune.tuner import tune

SPACE = (
    "{num_workers: [1, 2], amp_dtype: [bfloat16], optimizer_impl: [fused], channels_last: auto,"
    " malloc: auto, gc: auto}"
)


def job(
    folder: Path,
    space: str = SPACE,
    code: str = "",
    minutes: float = 10.0,
    trials: int | None = None,
) -> JobSpec:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(code)
    most = "" if trials is None else f", trials: {trials}"
    (folder / "job.yaml").write_text(
        f"command: python train.py\nsearch_space: {space}\ntraces: none\ntracking: {{uri:"
        f" null}}\nbudget: {{minutes: {minutes}{most}}}\n"
    )
    return load_job(folder / "job.yaml")


class Played:
    """One finished run.

    Args:
        edited: the job's code is changed to this before the run ends.

    Attributes:
        wall_s: how long it would have taken.
        searched_s: time until its search ended; 0.0: there was none.
        recalled_s: part of wall_s spent on the recorded answer.
        tried: configurations of live blocks, in order; ``{}`` is the baseline.
        said: notes and warnings.
    """

    def __init__(
        self,
        folder: Path,
        table: ReplayTable,
        store: Path | None,
        *,
        seed: int = 0,
        code: str = "",
        space: str = SPACE,
        team: Path | None = None,
        minutes: float = 10.0,
        trials: int | None = None,
        edited: str | None = None,
    ) -> None:
        self.said: list[str] = []
        spec, run_dir = job(folder, space, code, minutes, trials), folder / "run"
        machine = ReplayExecutor(table, seed)
        history = (
            None
            if store is None
            else History(
                store, None if team is None else Store(team, read_only=True), self.said.append
            )
        )
        journal = Journal(run_dir / "journal.jsonl", lambda before: before + machine.elapsed_s)
        with (
            closing(journal),
            (folder / "progress.jsonl").open("w") as shown,
            JsonProgress(shown) as progress,
        ):
            context = RunContext(
                spec,
                machine,
                journal,
                progress,
                open_tracker(None, "e", run_dir),
                run_dir,
                seed,
                history=history,
            )
            sources = digests(spec.command, spec.workdir)
            journal.append("sources", "", sources)
            self.result: Result = tune(context)
            if edited is not None:
                (folder / "train.py").write_text(edited)
            if history is not None:
                history.keep(spec, self.result, sources, f"{folder.name}-{seed}")
            self.tried = [record["config"] for plot in journal.all("plot") for record in plot.data]
            self.recalled_s = self._spent_s(journal, "recalled")
            self.searched_s = next((entry.elapsed_s for entry in journal.all("search-done")), 0.0)
        self.wall_s = machine.elapsed_s
        self.said.append((folder / "progress.jsonl").read_text())

    @staticmethod
    def _spent_s(journal: Journal, key: str) -> float:
        """Seconds for the entries whose key starts with ``key``."""
        entries = journal._entries
        return sum(
            b.elapsed_s - a.elapsed_s
            for a, b in itertools.pairwise(entries)
            if b.key.startswith(key)
        )
