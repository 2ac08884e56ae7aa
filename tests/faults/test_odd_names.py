"""Names that a file system allows: spaces, quotes, newlines, shell syntax, other alphabets, bytes
that are not text.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from faulty_runs import SEARCHED, faulty_job
from odd_jobs import ODD_BUT_WELL

NAMES = {
    "spaces": "a job of mine ",
    "quotes": 'it\'s "mine" `id`',
    "a shell's words": "$(touch pwned); rm -rf $HOME & * > x \\",
    "a newline": "first\nsecond",
    "other alphabets": "größe-训练-🚂",
    "braces": "{seed} {trial_dir} {{x}}",
    "no text": os.fsdecode(b"\xff\xfe"),
}
EVERYTHING = 'it\'s "a"\n$(touch pwned); größe-训练 {seed'


@pytest.mark.parametrize(
    "name", [pytest.param(n, id=i, marks=pytest.mark.faults) for i, n in NAMES.items()]
)
def test_the_run_goes_on_in_a_directory_of_any_name(name: str, tmp_path: Path) -> None:
    tuned_in(tmp_path, name, "pass", "pass")


@pytest.mark.slow
def test_an_odd_job_in_an_odd_place(tmp_path: Path) -> None:
    """A quick representative of this file and of the jobs in odd_jobs.py, all in one run."""
    tuned_in(tmp_path, EVERYTHING, *ODD_BUT_WELL["all at once"])


def tuned_in(tmp_path: Path, name: str, at_start: str, every_step: str) -> None:
    """Tune a job whose working directory, run directory and an argument are called ``name``."""
    # braces are placeholders in a command, and YAML is text
    word = name.translate({ord("{"): "(", ord("}"): ")"}).encode(errors="replace").decode()
    command = json.dumps(["python", "mine.py", "--name", word])
    asked = f"assert sys.argv[2] == {word!r}, sys.argv"
    job = faulty_job(tmp_path / name, f"{asked}\n{at_start}", every_step, SEARCHED, command)
    run_dir = tmp_path / f"runs {name}"
    done = job.run("--run-dir", str(run_dir))
    assert done.returncode == 0, done.stderr
    result = json.loads((run_dir / "result.json").read_text("utf-8"))
    assert result["verdict"] in ("keep-baseline", "tuned") and (run_dir / "report.html").exists()
    assert [t["state"] for t in result["trials"]] in (["complete"], ["pruned"])
    assert not list(tmp_path.rglob("pwned"))
