"""Files from anywhere: no traceback, nothing executed because a file says so, and a quick answer
that names the place.

Some hundred cases here; ten thousand of each kind in tests/faults/test_ten_thousand_files.py.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from odd_files import CANARY
from tiers import slow

from autotune.errors import AutotuneError
from autotune.job.load import load_job
from autotune.tracking import preflight

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FUZZ = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from fuzzing import fuzz_checked_job_files, fuzz_job_files, fuzz_results, fuzz_tuned_commands, fuzz_tuned_files
from sample_results import tuned
from autotune.report.result_file import to_json
{call}
"""


@pytest.mark.parametrize(
    "call",
    [
        "fuzz_job_files(Path.cwd(), 150)",
        "fuzz_checked_job_files(Path.cwd(), 40)",
        "fuzz_tuned_files(Path.cwd(), 100)",
        slow("fuzz_tuned_commands(Path.cwd(), 60)"),
        slow("fuzz_results(Path.cwd(), 100, to_json(tuned()))"),
    ],
    ids=[
        "job files",
        "job files on the command line",
        "tuned files",
        "tuned files on the command line",
        "results",
    ],
)
def test_odd_files(call: str) -> None:
    """In a separate process: hypothesis uses constants of the loaded modules, and the cases should
    be the same in every run.
    """
    with tempfile.TemporaryDirectory(prefix="odd-") as folder:  # its length affects the files
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                FUZZ.format(path=[str(HERE), str(HERE.parent / "report")], call=call),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=250,
        )
    assert done.returncode == 0, done.stderr[-6000:]


GOOD = "command: python train.py\n"
# Files that once hung, exploded or ended in a traceback, each with a word of the answer.
FOUND = {
    "merge": (GOOD + "env:\n  <<: {x: 1}\n", "'<<' cannot be the name"),
    "digits-and-a-letter": (GOOD + f"name: {'1' * 100_000}x\n", "name is"),
    "hex-of-5000-digits": (GOOD + f"planned_steps: 0x{'f' * 5000}\n", "a number of 5002 digits"),
    "no-such-home": (GOOD + "workdir: ~nobody-at-all/x\n", "no directory"),
    "nul-in-workdir": (GOOD + 'workdir: "a\\0b"\n', "no directory"),
    "nul-in-a-word": ('command: [python, "a\\0b"]\n', "NUL"),
    "a-name-too-long": (GOOD + f"workdir: {'a' * 5000}\n", "no directory"),
    "repeats-too-often": (
        GOOD + 'convergence: {metrics: {a: "(a{99999999999})"}}\n',
        "not a regular expression",
    ),
    "half-a-character": (GOOD + 'workdir: "\\ud800"\n', "half of a character"),
    "no-text-in-a-choice": (GOOD + 'objective: "\\udc80"\n', "objective is '\\udc80'"),
    "no-text-in-a-variable's-name": (GOOD + 'env: {"\\0\\udc80": 1}\n', "\\udc80"),
    "no-text-in-a-pattern": (
        GOOD + 'convergence: {metrics: {a: "(\\udc80"}}\n',
        "not a regular expression",
    ),
    "no-such-character": (GOOD + 'workdir: "\\UFFFFFFFF"\n', "not valid YAML"),
    "a-bool-that-is-none": (GOOD + "shell: !!bool maybe\n", "the tag !!bool"),
    "a-date-that-is-none": (GOOD + "name: !!timestamp soon\n", "the tag !!timestamp"),
    "bytes": (GOOD + "name: !!binary aGVsbG8=\n", "the tag !!binary"),
    "nested": (GOOD + "search_space: " + "[" * 60_000, "nested too deeply"),
    "nested-mappings": (GOOD + "search_space: " + "{a: " * 30_000, "nested too deeply"),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_once(case: str, tmp_path: Path) -> None:
    text, said = FOUND[case]
    (tmp_path / "job.yaml").write_text(text)
    started = time.monotonic()
    with pytest.raises(AutotuneError) as caught:
        load_job(tmp_path / "job.yaml", check=False)
    assert said in str(caught.value) and "job.yaml:" in str(caught.value)
    assert time.monotonic() - started < 20, "not every nesting is followed"


@pytest.mark.parametrize(
    ("name", "why"), [("a" * 300, "File name too long"), ("file/study.db", "Not a directory")]
)
def test_a_tracking_file_that_cannot_be(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AutotuneError, match=why):
        preflight(f"sqlite:///{tmp_path}/{name}")


# A command line is a list of words, and each reaches the program unchanged.
WORDS = [
    "a;b",
    "$(touch canary)",
    "`touch canary`",
    "a\nb",
    "&&",
    "|",
    ">",
    "*",
    "~",
    "$HOME",
    "'",
    '"',
    "\\",
    "",
    "a b",
    "é\x07",
]


def test_words_reach_the_program_as_they_are(tmp_path: Path) -> None:
    import json

    import yaml

    from autotune_trials.paths import SessionPaths
    from autotune_trials.protocol.messages import SessionConfig
    from autotune_trials.session.launch_environment import Command
    from autotune_trials.session.session import Session, SessionFailed

    (tmp_path / "say.py").write_text(
        "import json, sys\njson.dump(sys.argv[1:], open('said.json', 'w'))\n"
    )
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump({"command": [sys.executable, "say.py", *WORDS]})
    )
    spec = load_job(tmp_path / "job.yaml")
    with (
        Session(
            Command(spec.command, spec.workdir, {}),
            SessionPaths(tmp_path / "session"),
            SessionConfig("live", ""),
        ) as session,
        pytest.raises(SessionFailed),
    ):
        session.wait_hello()
    assert json.loads((tmp_path / "said.json").read_text()) == WORDS
    assert not (tmp_path / CANARY).exists()


def test_what_only_a_shell_would_understand_is_refused_in_a_line(tmp_path: Path) -> None:
    for bad in (
        "python train.py; touch canary",
        "python train.py $(touch canary)",
        "python train.py `touch canary`",
        "python train.py & touch canary",
    ):
        (tmp_path / "job.yaml").write_text(f"command: {bad!r}\n")
        with pytest.raises(AutotuneError, match="no shell reads it"):
            load_job(tmp_path / "job.yaml", check=False)
