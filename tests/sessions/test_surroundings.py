"""How the command is started: its environment, its arguments, and paths of any kind."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import pytest
from session_waits import wait_for

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import Block, SessionConfig
from autotune_trials.session.launch_environment import INJECT, Command, socket_folders
from autotune_trials.session.session import Session
from autotune_trials.supervisor.supervisor import Supervisor

SHOW = """
import json, os, sys
with open("shown.tmp", "w", encoding="utf-8") as file:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}, file)
os.rename("shown.tmp", "shown")
"""


def shown(tmp_path):
    wait_for((tmp_path / "shown").exists)
    return json.loads((tmp_path / "shown").read_text("utf-8"))


def test_side_effects_go_to_the_trial_directory(make_session, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://production.example")
    monkeypatch.setenv("MLFLOW_RUN_ID", "abc")
    session = make_session(SHOW, cache_dir=tmp_path / "cache")
    env, out = shown(tmp_path)["env"], str(session.paths.out)
    assert env["WANDB_MODE"] == "offline" and env["WANDB_DIR"] == out
    assert env["MLFLOW_TRACKING_URI"].startswith("file://" + out) and "MLFLOW_RUN_ID" not in env
    assert env["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache")
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["PWD"] == shown(tmp_path)["cwd"], "not where autotune runs; launch sets it, too"
    assert (
        env["AUTOTUNE_SESSION"] == str(session.paths.config)
        and env["AUTOTUNE_MARK"] == session.mark
    )


def test_the_users_own_variables_win_over_ours_and_knobs_over_both(make_session, tmp_path):
    make_session(
        SHOW,
        env={
            "WANDB_MODE": "disabled",
            "MLFLOW_TRACKING_URI": "http://mine",
            "OMP_NUM_THREADS": "4",
        },
        overrides={"OMP_NUM_THREADS": "1"},
    )
    env = shown(tmp_path)["env"]
    assert (env["WANDB_MODE"], env["MLFLOW_TRACKING_URI"], env["OMP_NUM_THREADS"]) == (
        "disabled",
        "http://mine",
        "1",
    )


def test_the_inject_directory_comes_first_and_the_users_path_stays(make_session, tmp_path, job_env):
    make_session(SHOW)
    assert shown(tmp_path)["env"]["PYTHONPATH"] == os.pathsep.join(
        [str(INJECT), job_env["PYTHONPATH"]]
    )


def test_no_empty_entry_on_the_path(monkeypatch, tmp_path):
    """An empty entry would mean the current directory."""
    monkeypatch.setenv("PYTHONPATH", "")
    command = Command(["true"], tmp_path, {}).in_session(SessionPaths(tmp_path / "s"), "mark")
    assert command.env["PYTHONPATH"] == str(INJECT)


def test_words_in_braces(make_session, tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    argv = [
        sys.executable,
        "show.py",
        "--out={trial_dir}/x",
        "--seed",
        "{seed}",
        '{"json": {}}',
        "{unknown}",
    ]
    session = make_session(argv, fill={"seed": "1003"}, env={"OUT": "{trial_dir}"})
    found = shown(tmp_path)
    assert found["argv"] == [
        f"--out={session.paths.out}/x",
        "--seed",
        "1003",
        '{"json": {}}',
        "{unknown}",
    ]
    assert found["env"]["OUT"] == str(session.paths.out) and found["cwd"] == str(tmp_path)


HOSTILE = {
    "spaces and quotes": "a b 'c' \"d\" $HOME `x` ; &",
    "not ascii": "ünï-漢字-🦊",
    "braces and percent": "{seed} %s {0}",
    "line break": "a\nb",
    "very long": "/".join(["x" * 200] * 8),
    "not even text": os.fsdecode(b"caf\xe9"),
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_session_directories(make_session, tmp_path, name):
    session = make_session(
        "from fake_agent import Agent\nprint('hé')\nAgent().serve()", root=tmp_path / name
    )
    session.wait_hello()
    assert session.run_plan([Block("b", (), 2)])[0].window is not None
    wait_for(lambda: "h" in session.paths.stdout.read_text("utf-8", "replace"))


@pytest.mark.parametrize(
    "name", [HOSTILE["spaces and quotes"], HOSTILE["not ascii"], HOSTILE["very long"]]
)
def test_a_hostile_temporary_directory(make_session, tmp_path, monkeypatch, name):
    import tempfile

    folder = tmp_path / name
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    session = make_session("from fake_agent import Agent\nAgent().serve()")
    session.wait_hello()
    assert len(os.fsencode(session.config.socket)) <= 100
    assert os.stat(os.path.dirname(session.config.socket)).st_mode & 0o777 == 0o700


def test_a_temporary_directory_that_cannot_be_written_is_passed_over(make_session, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent-folder")
    assert socket_folders()[0] == "/nonexistent-folder"
    session = make_session("from fake_agent import Agent\nAgent().serve()")
    session.wait_hello()


def test_the_command_reads_nothing_from_the_terminal(make_session, tmp_path):
    make_session("import sys\nopen('read', 'w').write(repr(sys.stdin.read()))")
    wait_for(lambda: (tmp_path / "read").exists() and (tmp_path / "read").read_text())
    assert (tmp_path / "read").read_text() == "''"


def test_a_relative_command_is_looked_for_in_the_working_directory(make_session, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\necho ok > ran\n")
    script.chmod(0o755)
    make_session(["./train.sh"])
    wait_for((tmp_path / "ran").exists)


def test_a_directory_that_cannot_be_written_is_an_error_of_its_own(tmp_path):
    (tmp_path / "file").write_text("")
    command = Command(["true"], tmp_path, {})
    session = Session(command, SessionPaths(tmp_path / "file" / "s"), SessionConfig("live", ""))
    with pytest.raises(OSError, match="Not a directory"):
        session.start()
    session.close()


def test_open_files_of_the_tuner_are_not_handed_down(make_session, tmp_path):
    with open(tmp_path / "held", "w") as held:
        os.set_inheritable(held.fileno(), True)
        session = make_session("import time\nopen('ready', 'w').close()\ntime.sleep(60)")
        wait_for((tmp_path / "ready").exists)
        time.sleep(0.05)
        targets = [
            os.readlink(f"/proc/{session.command.pid}/fd/{fd}")
            for fd in os.listdir(f"/proc/{session.command.pid}/fd")
        ]
    assert sorted(t.split(":")[0] for t in targets) == ["/dev/null", "pipe", "pipe"]


def test_the_supervisor_does_without_pidfd_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pythons that were built for old kernels (conda's, uv's) do not have it."""
    monkeypatch.delattr(os, "pidfd_open")
    near, far = socket.socketpair()
    with near, far:
        supervisor = Supervisor(near, {"tuner_pid": os.getpid()})
        supervisor._watch_tuner()
        assert not supervisor._stop
