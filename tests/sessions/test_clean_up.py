"""Nothing outlives a session, whatever the job does and whichever process is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from session_paths import PYTHONPATH
from session_waits import gone_within, wait_for

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts
from autotune_trials.supervisor import process_tags, procfs

pytestmark = pytest.mark.usefixtures("nothing_is_left")

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
JOBS = {
    "ignores TERM": STUBBORN + "ready()\ntime.sleep(99)",
    "a daemon in its own session": (
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    ready()
    time.sleep(99)
os.wait()
time.sleep(99)
"""
    ),
    "a daemon that closes every file and forgets its environment": (
        """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    ready()
    os.closerange(0, 256)
    os.execve(sys.executable, [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"], {})
os.wait()
time.sleep(99)
"""
    ),
    "a daemon, and the command ends": (
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    ready()
    time.sleep(99)
os.wait()
"""
    ),
    "workers that ignore TERM": STUBBORN
    + """
import multiprocessing
context = multiprocessing.get_context("fork")
for _ in range(3):
    context.Process(target=time.sleep, args=(99,)).start()
ready()
time.sleep(99)
""",
    "a stopped process": (
        "import os, signal, time\nif os.fork() == 0:\n    os.kill(os.getpid(),"
        " signal.SIGSTOP)\nready()\ntime.sleep(99)"
    ),
    "a shell pipeline": ["sh", "-c", "echo > ready; (trap '' TERM; sleep 99) | cat & sleep 99"],
    "a job that forks when told to end": (
        """
import os, signal, time
def fork(*_):
    if os.fork() == 0:
        os.setsid()
        time.sleep(99)
signal.signal(signal.SIGTERM, fork)
ready()
while True:
    time.sleep(9)
"""
    ),
}
READY = "def ready():\n    open('ready', 'w').close()\n\n"


def tree_of(session) -> set[int]:
    assert session.command.supervisor is not None
    return procfs.descendants(session.command.supervisor.pid)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_end_of_a_session_ends_everything(make_session, tmp_path, job):
    session = make_session(READY + job if isinstance(job, str) else job, grace_s=0.3)
    wait_for((tmp_path / "ready").exists)
    time.sleep(0.1)
    pids = tree_of(session)
    assert pids
    begin = time.monotonic()
    session.close()
    assert time.monotonic() - begin < 15
    assert not {pid for pid in pids if procfs.alive(pid)}
    assert not gone_within(0, session.mark) and session.command.left == []


def test_a_job_may_end_gracefully(make_session, tmp_path):
    session = make_session(
        READY
        + textwrap.dedent("""
            import signal, sys, time
            def end(*_):
                time.sleep(0.2)
                open("ended-well", "w").close()
                sys.exit(0)
            signal.signal(signal.SIGTERM, end)
            ready()
            time.sleep(99)
            """),
        grace_s=5.0,
    )
    wait_for((tmp_path / "ready").exists)
    session.close()
    assert (tmp_path / "ended-well").exists()


def test_a_job_that_handles_term_gets_out_of_the_agents_pause(make_session, tmp_path):
    """Lightning and others only note the signal and stop at the next batch: the paused agent must
    let them continue.
    """
    session = make_session(
        """
        import signal, sys
        from fake_agent import Agent
        signal.signal(signal.SIGTERM, lambda *_: None)
        Agent().serve()
        open("ended-well", "w").close()
        """,
        grace_s=5.0,
    )
    session.wait_hello()
    session.close()
    assert (tmp_path / "ended-well").exists()


def test_shared_memory_of_killed_workers_is_removed_and_that_of_others_is_not(
    make_session, tmp_path
):
    foreign = Path(f"/dev/shm/torch_{os.getpid()}_1_0")
    foreign.write_bytes(b"x")
    session = make_session(
        READY + "import os, time\nos.fork()\nopen(f'/dev/shm/torch_{os.getpid()}_42_0',"
        " 'w').close()\nready()\ntime.sleep(99)"
    )
    try:
        wait_for((tmp_path / "ready").exists)
        wait_for(
            lambda: (
                len([p for p in tree_of(session) if Path(f"/dev/shm/torch_{p}_42_0").exists()]) == 2
            )
        )
        pids = tree_of(session)
        session.close()
        assert not [p for p in pids if Path(f"/dev/shm/torch_{p}_42_0").exists()]
        assert foreign.exists()
    finally:
        foreign.unlink()


def test_ctrl_c_while_the_supervisor_starts(tmp_path, monkeypatch):
    """It reads that it is to stop together with what it is to start."""
    argv = [sys.executable, "-c", "import time; time.sleep(99)"]
    paths = SessionPaths(tmp_path / "session")
    session = Session(
        Command(argv, tmp_path, {}),
        paths,
        SessionConfig("live", ""),
        timeouts=Timeouts(grace_s=0.3),
    )
    handle_events = session.inbox.handle_events

    def interrupted(timeout_s):
        monkeypatch.setattr(session.inbox, "handle_events", handle_events)
        raise KeyboardInterrupt

    monkeypatch.setattr(session.inbox, "handle_events", interrupted)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        session.start()
    assert time.monotonic() - begin < 15
    assert not gone_within(0, session.mark) and session.command.left == []


# ------------------------------------------------------------------------------------------- killed


TUNER = """
import sys, time
from pathlib import Path
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
root = Path(sys.argv[1])
command = Command([sys.executable, str(root / "job.py")], root, {})
session = Session(command, SessionPaths(root / "session"), SessionConfig("live", ""))
session.start()
print(session.mark, session.command.supervisor.pid, session.config.socket, flush=True)
if "fork" in sys.argv:
    import os
    if os.fork() == 0:   # a child that inherits the tuner's end of the socket
        time.sleep(20)
        os._exit(0)
time.sleep(99)
"""

DAEMON_JOB = READY + JOBS["a daemon in its own session"].replace(
    "time.sleep(99)", "signal.signal(15, signal.SIG_IGN); time.sleep(99)"
)


@pytest.fixture
def tuner(tmp_path):
    started: list[subprocess.Popen[str]] = []

    def start(*words: str):
        (tmp_path / "job.py").write_text("import signal\n" + DAEMON_JOB)
        process = subprocess.Popen(
            [sys.executable, "-c", TUNER, str(tmp_path), *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )
        started.append(process)
        mark, supervisor_pid, socket = process.stdout.readline().split()
        wait_for((tmp_path / "ready").exists)
        time.sleep(0.1)
        return process, mark, int(supervisor_pid), Path(socket)

    yield start
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


@pytest.mark.parametrize(
    "words", [(), ("fork",)], ids=["plain", "its own child still holds the socket"]
)
def test_kill_9_of_the_tuner_ends_the_session(tuner, words):
    process, mark, supervisor_pid, socket = tuner(*words)
    assert process_tags.marked(mark) and not process_tags.is_stale(mark)
    process.kill()
    process.wait()
    assert not gone_within(15.0, mark)
    wait_for(lambda: not procfs.alive(supervisor_pid), 15.0)
    assert not socket.parent.exists()


def test_kill_9_of_the_supervisor_is_noticed_by_the_tuner(make_session, tmp_path):
    from autotune_trials.session.session import SessionFailed

    session = make_session("import signal\n" + DAEMON_JOB)
    wait_for((tmp_path / "ready").exists)
    session.command.supervisor.kill()
    with pytest.raises(SessionFailed, match="killed from outside"):
        session.wait_hello()
    assert not gone_within(15.0, session.mark)


def test_the_next_start_sweeps_what_is_left_when_both_are_killed(tuner):
    process, mark, supervisor_pid, socket = tuner()
    process_tags.sweep_stale((str(socket.parent.parent),))
    assert socket.exists() and process_tags.marked(mark), "never those of a living tuner"
    os.kill(supervisor_pid, signal.SIGSTOP)  # so that it cannot clean up in between
    process.kill()
    process.wait()
    os.kill(supervisor_pid, signal.SIGKILL)
    wait_for(lambda: process_tags.marked(mark))
    assert process_tags.is_stale(mark)
    process_tags.sweep_stale((str(socket.parent.parent),))
    assert not gone_within(15.0, mark)
    assert not socket.parent.exists()


def test_marks_of_other_machines_and_pid_namespaces_are_never_judged(monkeypatch):
    ours = process_tags.new_mark()
    assert not process_tags.is_stale(ours)
    dead = re.sub(r"^(\d+)-\d+-", r"\g<1>-4194303-", ours)
    assert process_tags.is_stale(dead)
    assert not process_tags.is_stale(re.sub(r"^\d+", "1", dead))
    assert not process_tags.is_stale("something else")
    uname = SimpleNamespace(nodename="another-machine")
    monkeypatch.setattr(os, "uname", lambda: uname)  # whose first namespace has the same number
    assert not process_tags.is_stale(dead)


def test_ctrl_c_at_the_terminal_does_not_reach_the_job(make_session, tmp_path):
    """The tuner decides what an interrupt means, so job and supervisor run in separate sessions."""
    session = make_session(READY + "import time\nready()\ntime.sleep(99)")
    wait_for((tmp_path / "ready").exists)
    mine = os.getsid(0)
    assert (
        os.getsid(session.command.pid) != mine and os.getsid(session.command.supervisor.pid) != mine
    )
    os.kill(session.command.supervisor.pid, signal.SIGINT)
    time.sleep(0.2)
    assert procfs.alive(session.command.pid)


def test_signals_are_handed_to_the_job_as_they_were(make_session, tmp_path):
    make_session("""
        import signal
        names = ("SIGINT", "SIGHUP", "SIGTERM", "SIGCHLD")
        with open("signals", "w") as file:
            file.write(" ".join(n for n in names if signal.getsignal(getattr(signal, n)) == signal.SIG_IGN) + ".")
            file.write(str(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        """)
    wait_for(lambda: (tmp_path / "signals").exists() and (tmp_path / "signals").read_text())
    assert (tmp_path / "signals").read_text() == ".set()"


def test_a_process_whose_further_threads_still_run_is_not_gone() -> None:
    """A zombie by its first thread: a GPU's driver may still be closing its files."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(lambda: _state(process.pid) == "Z", 20.0)
        assert procfs.alive(process.pid) and process.pid in procfs.descendants(os.getpid())
        process.kill()
        wait_for(lambda: not procfs.alive(process.pid), 20.0)
    finally:
        process.kill()
        process.wait()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
