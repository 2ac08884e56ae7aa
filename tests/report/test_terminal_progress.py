"""Progress shows every event in all its forms, and never raises into a stage."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from drive_progress import drive
from sample_results import samples
from tiers import slow

from autotune.report.progress import Progress
from autotune.report.terminal.live_table import RichProgress
from autotune.report.terminal.plain import JsonProgress, PlainProgress, QuietProgress, open_progress

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [str(ROOT), str(ROOT / "trials"), str(ROOT / "search_spaces"), str(HERE)]
    ),
}
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def told(kind: type[Progress], name: str = "tuned") -> str:
    stream = io.StringIO()
    with kind(stream) as progress:
        drive(progress, name)
    return stream.getvalue()


def in_a_terminal(
    columns: int, name: str = "tuned", pause_s: float = 0.15, **environment: str
) -> str:
    """What the driver writes to a real terminal of that width; it pauses after each step."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(HERE / "drive_progress.py"), "auto", name, str(pause_s)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=HERE,
        env={
            **ENVIRONMENT,
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
            "LINES": "40",
            "PYTHONIOENCODING": "utf-8",
            **environment,
        },
    )
    os.close(slave)
    seen = b""
    try:
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError as error:  # Linux raises EIO once the other end is closed
                assert error.errno == errno.EIO
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait(timeout=60) == 0, seen.decode()
    finally:
        process.kill()
        os.close(master)
    return seen.decode("utf-8")


@pytest.mark.parametrize("name", list(samples()))
def test_plain_is_one_line_an_event_without_control_codes(name: str) -> None:
    text = told(PlainProgress, name)
    assert not CONTROL.search(text)
    events = [line for line in text.splitlines() if line.startswith("[")]
    trials = samples()[name].trials
    confirmed = 5 if samples()[name].confirmation else 0
    assert len(events) == 8 + 2 * len(trials) + confirmed
    if name == "tuned":
        assert "trial 5: num_workers=2, amp_dtype=bfloat16: 2.08× ± 4%  [best so far]" in text
        assert (
            "trial 4: compile_mode=default: failed (BackendCompilerFailed: no C++ compiler)  [best"
            " 1.62×]" in text
        )
        assert "2.10× faster" in text.split("unchanged for")[1]


@pytest.mark.parametrize("name", list(samples()))
def test_json_lines_are_strict_and_documented(name: str) -> None:
    documented = (ROOT / "docs" / "events.md").read_text()
    text = told(JsonProgress, name)
    assert text.isascii()
    lines = [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        for line in text.splitlines()
    ]
    assert lines[0]["event"] == "start"
    assert lines[-1]["event"] == "finished"
    rows = {
        kind: set(re.findall(r"`(\w+)`", row.split("|")[2]))
        for row in documented.splitlines()
        if row.startswith("| `")
        for kind in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    for line in lines:
        assert set(line) - {"event", "time_s"} <= rows[line["event"]], (
            f"{line['event']} has fields docs/events.md lacks"
        )
        assert line["time_s"] >= 0
    assert {line["event"] for line in lines} >= {
        "stage",
        "note",
        "warning",
        "observed",
        "loss",
        "finished",
    }


def test_json_trial_carries_its_figures() -> None:
    lines = [json.loads(line) for line in told(JsonProgress).splitlines()]
    trial = next(line for line in lines if line["event"] == "trial" and line["number"] == 5)
    assert trial["speedup"]["estimate"] == pytest.approx(2.08)
    assert trial["speedup"]["low"] < 2.08 < trial["speedup"]["high"]
    assert trial["best"]["number"] == 5
    failed = next(line for line in lines if line["event"] == "trial" and line["number"] == 4)
    assert failed["speedup"] is None


def test_quiet_prints_the_closing_screen_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(QuietProgress)
    assert "trial 5" not in text
    assert "2.10× faster" in text
    assert (
        capsys.readouterr().err == "warning: the machine was busy: 3 windows were measured again\n"
    )


@pytest.mark.parametrize("columns", [60, slow(100)])
@pytest.mark.parametrize("name", ["tuned", "hostile"])
def test_a_terminal_gets_a_live_table(columns: int, name: str) -> None:
    text = in_a_terminal(columns, name)
    bare = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "left of 20:00" in bare
    assert "speed-up" in bare
    assert "Traceback" not in bare
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor must come back"
    assert "\x1b[31mred" not in text, "the job's own color codes must not reach the terminal"
    assert "2.10× faster" in bare
    assert "\x1b[2K" in text, "the table is drawn over, it does not pile up in the scrollback"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_the_clock_of_a_resumed_run_knows_what_was_spent_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with open_progress("auto", 1200, stream, spent_s=905.0) as progress:
        progress.stage("search")
    assert re.search(r"4:5[0-5] left of 20:00", stream.getvalue())


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, slow({"PYTHONIOENCODING": "ascii"})])
def test_a_terminal_that_cannot_draw_gets_plain_lines(environment: dict[str, str]) -> None:
    text = in_a_terminal(80, pause_s=0.0, **environment)
    assert "\x1b" not in text
    assert "trial 5: num_workers=2" in text
    assert "faster (95% interval" in text


class Broken(io.StringIO):
    """A terminal that has been closed."""

    encoding = "utf-8"

    def write(self, _text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "make",
    [
        PlainProgress,
        JsonProgress,
        QuietProgress,
        lambda s: RichProgress(60, s),
        lambda s: open_progress("auto", 60, s),
    ],
)
def test_a_stream_that_fails_stops_nothing(make: object) -> None:
    with make(Broken()) as progress:  # type: ignore[operator]
        drive(progress)


@pytest.mark.parametrize("kind", [PlainProgress, JsonProgress, QuietProgress])
def test_a_closed_stream_and_wrong_arguments_stop_nothing(kind: type[Progress]) -> None:
    stream = io.StringIO()
    with kind(stream) as progress:
        progress.trial(None, None)  # type: ignore[arg-type]
        progress.measuring("trial", {"knob": object()})
        progress.observed("not an observation")  # type: ignore[arg-type]
        stream.close()
        drive(progress)
    progress.note("after the end")


@pytest.mark.parametrize("make", [PlainProgress, lambda s: RichProgress(60, s)])
def test_a_bug_in_showing_is_told_once_at_the_end(
    make: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with make(io.StringIO()) as progress:  # type: ignore[operator]
        progress.note("fine")
        progress.trial(None, None)
        progress.trial(None, None)
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err.count("autotune: some progress was not shown") == 1


def test_a_bug_in_drawing_the_table_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = RichProgress(60, io.StringIO())
    monkeypatch.setattr(progress, "_footer", lambda: 1 / 0)
    with progress:
        progress.note("fine")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_reader_that_leaves_ends_nothing() -> None:
    script = f"{sys.executable} {HERE / 'drive_progress.py'} json tuned 0.02; echo ended $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({script}) | head -1"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert json.loads(done.stdout)["event"] == "start"
    assert done.stderr == "ended 0\n"


def test_open_progress_knows_its_words() -> None:
    assert isinstance(open_progress("auto", 60, io.StringIO()), PlainProgress)
    assert isinstance(open_progress("json", 60, io.StringIO()), JsonProgress)
    assert isinstance(open_progress("quiet", 60, io.StringIO()), QuietProgress)
    with pytest.raises(ValueError, match="auto, quiet, silent or json"):
        open_progress("loud", 60)
