"""Guarantees for every input file, however odd; the test chooses the number of files."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from odd_files import JOB, TUNED, cases, check_answered, files, refused_or_right, results

from autotune.cli.check import summarize
from autotune.export.formats import FORMATS
from autotune.export.launching import plan
from autotune.export.load import load_tuned
from autotune.job.load import load_job
from autotune.tracking import preflight

# by all files together; hypothesis itself keeps what it has drawn
MOST_GROWN_MIB = 300


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz_job_files(folder: Path, count: int) -> None:
    file = folder / "job.yaml"
    (folder / "train.py").write_text("")
    before = _peak_mib()

    @cases(count)
    @given(files(JOB))
    def read(content: bytes) -> None:
        file.write_bytes(content)
        with refused_or_right(file):
            spec = load_job(file, check=False)
            json.dumps(summarize(spec))
            preflight(spec.tracking.uri, folder / "runs" / spec.name)

    read()
    assert _peak_mib() - before < MOST_GROWN_MIB


def fuzz_checked_job_files(folder: Path, count: int) -> None:
    """Through the command line, which also checks the job's command."""
    file = folder / "job.yaml"
    (folder / "train.py").write_text("")

    @cases(count)
    @given(files(JOB))
    def check(content: bytes) -> None:
        file.write_bytes(content)
        check_answered(file, "check", str(file))

    check()


def fuzz_tuned_files(folder: Path, count: int) -> None:
    file = folder / "tuned.yaml"
    before = _peak_mib()

    @cases(count)
    @given(files(TUNED), st.sampled_from(sorted(FORMATS)))
    def read(content: bytes, form: str) -> None:
        file.write_bytes(content)
        with refused_or_right(file):
            config = load_tuned(file)
            plan(config, base={"PATH": "/nowhere"}, partial=True)
            # these need specific jobs
            if form not in ("diff", "training-arguments", "lightning"):
                FORMATS[form].write(replace(config, workdir=folder))

    read()
    assert _peak_mib() - before < MOST_GROWN_MIB


def fuzz_tuned_commands(folder: Path, count: int) -> None:
    file = folder / "tuned.yaml"
    commands = [("export", "-f", form) for form in sorted(FORMATS)] + [
        ("launch", "--dry-run", "--force")
    ]

    @cases(count)
    @given(
        files({**TUNED, "command": ["./no-such-program", "train.py"], "workdir": str(folder)}),
        st.sampled_from(commands),
    )
    def call(content: bytes, command: tuple[str, ...]) -> None:
        file.write_bytes(content)
        check_answered(file, command[0], str(file), *command[1:])

    call()


def fuzz_results(folder: Path, count: int, good: dict) -> None:
    one, other = folder / "one.json", folder / "other.json"
    good = json.loads(json.dumps(good, default=str))
    other.write_text(json.dumps(good))
    commands = [
        ("show", str(one), "--all"),
        ("show", str(one)),
        ("show", str(one), "--json"),
        ("compare", str(one), str(other), "--anyway", "--html", str(folder / "page.html")),
    ]

    @cases(count)
    @given(results(good), st.sampled_from(commands))
    def call(content: bytes, command: tuple[str, ...]) -> None:
        one.write_bytes(content)
        check_answered(one, *command)

    call()
