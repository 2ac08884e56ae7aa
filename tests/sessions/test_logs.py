"""The job's output: complete if short, else its first and last part; it never blocks the job."""

from __future__ import annotations

import re
import sys

import pytest

from autotune_trials.session.session import SessionFailed
from autotune_trials.supervisor.output_log import CappedLog

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_both_streams_are_kept(make_session):
    session = make_session("import sys\nprint('to out')\nprint('to err', file=sys.stderr)")
    with pytest.raises(SessionFailed):
        session.wait_hello()
    assert session.paths.stdout.read_text() == "to out\n"
    assert session.paths.stderr.read_text() == "to err\n"


def test_a_gigabyte_of_output_does_not_fill_the_disk_nor_hide_the_traceback(make_session):
    session = make_session(
        """
        import sys
        line = "x" * 1023 + "\\n"
        sys.stderr.write("first line\\n")
        for _ in range(256):
            sys.stderr.write(line * 1024)
        raise ValueError("last line")
        """,
        startup_timeout_s=60.0,
    )
    with pytest.raises(SessionFailed) as caught:
        session.wait_hello()
    assert caught.value.kind == "crash" and "last line" in caught.value.detail
    data = session.paths.stderr.read_bytes()
    assert (
        len(data) < 16 << 20
        and data.startswith(b"first line\n")
        and b"ValueError: last line" in data[-200:]
    )
    left_out = int(re.search(rb"autotune: (\d+) bytes left out here", data).group(1))
    assert abs(left_out + len(data) - (256 << 20)) < 4096


def test_output_after_the_command_closed_the_pipe_or_of_children_hurts_nobody(make_session):
    session = make_session(
        [sys.executable, "-c", "import os; os.close(1); os.close(2); os.fork() or os._exit(0)"]
    )
    with pytest.raises(SessionFailed):
        session.wait_hello()


@pytest.mark.parametrize("size", [0, 10, 30, 31, 100, 12345])
def test_the_cap_at_every_size(tmp_path, size):
    path = tmp_path / "log"
    data = bytes(i % 251 for i in range(size))
    log = CappedLog(str(path), head=10, tail=10)
    for at in range(0, size, 7):
        log.write(data[at : at + 7])
    log.close()
    kept = path.read_bytes()
    if size <= 30:
        assert kept == data
        return
    head, note, last = re.fullmatch(
        rb"(.{10})\n\[autotune: (\d+) bytes left out here\]\n(.*)", kept, re.DOTALL
    ).groups()
    assert head == data[:10] and data.endswith(last) and len(last) >= 10 and len(kept) < 120
    assert int(note) == size - 10 - len(last)
