"""Who may talk to the tuner: only processes of the session's own user."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from autotune_trials.protocol.messages import Block

SERVE = """
    from fake_agent import Agent
    Agent().serve()
"""
_CALL = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
caller = socket.socket(socket.AF_UNIX)
caller.settimeout(10)
try:
    caller.connect(sys.argv[1])
except OSError as error:
    print(type(error).__name__)
else:
    try:
        caller.sendall(b'{"type":"Fault","rank":0,"where":"a stranger","text":"let me in"}\\n')
        print("hung up" if caller.recv(1) == b"" else "answered")
    except ConnectionError:
        print("hung up")
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user's name")


def test_socket_and_directory_are_the_users_alone(make_session) -> None:
    session = make_session(SERVE)
    session.wait_hello()
    folder = Path(session.config.socket).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.geteuid()
    session.close()
    assert not folder.exists()


def test_the_supervisor_listens_on_no_address(make_session) -> None:
    """Its orders, including the job's environment, come through an unnamed pair of sockets."""
    session = make_session(SERVE)
    session.wait_hello()
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    assert {name for name in names if session.mark in name} == {session.config.socket}
    assert session.command.supervisor is not None
    cmdline = Path(f"/proc/{session.command.supervisor.pid}/cmdline").read_bytes()
    assert session.mark.encode() not in cmdline and b"PYTHONPATH" not in cmdline


@as_root
@pytest.mark.parametrize("opened", [False, True])
def test_another_user_is_refused_and_the_session_goes_on(opened: bool, make_session) -> None:
    session = make_session(SERVE)
    session.wait_hello()
    if opened:  # if opened up, the peer's user decides
        os.chmod(Path(session.config.socket).parent, 0o755)
        os.chmod(session.config.socket, 0o777)
    nobody = str(pwd.getpwnam("nobody").pw_uid)
    caller = subprocess.Popen(
        [sys.executable, "-c", _CALL, session.config.socket, nobody],
        stdout=subprocess.PIPE,
        text=True,
    )
    # messages from the stranger are ignored
    [report] = session.run_plan([Block("b", (), 3)])
    while caller.poll() is None:
        session.inbox.handle_events(0.1)
    said = caller.communicate()[0].strip()
    assert said == ("hung up" if opened else "PermissionError")
    assert report.error == "" and len(report.window.times_s) == 3
    assert session.run_plan([Block("c", (), 2)])[0].error == ""


def test_a_process_of_the_same_user_is_heard(make_session) -> None:
    session = make_session(SERVE)
    session.wait_hello()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(session.config.socket)
        session.inbox.handle_events(1.0)
        assert len(session.inbox.connections) == 2
