"""Messages on files that trials wrote: restored ones quietly, all others with a remedy."""

from __future__ import annotations

from dataclasses import replace

from sample_results import tuned

from autotune.report.terminal.closing import closing_text
from autotune.report.text.written import written_lines
from autotune.results import Written


def test_nothing_is_said_where_nothing_was_written() -> None:
    assert written_lines(Written()) == []


def test_what_was_put_back_is_one_quiet_line() -> None:
    removed = tuple(f"runs/{n}" for n in range(6))
    ((line, urgent),) = written_lines(
        Written(restored=("ckpt.pt",), removed=removed, counts={"restored": 1, "removed": 9})
    )
    assert not urgent
    assert (
        line == "Files that trials wrote: restored: ckpt.pt; removed: runs/0, runs/1,"
        " runs/2, runs/3 and 5 more."
    )


def test_a_profiled_job_is_no_trial() -> None:
    said = " ".join(
        line
        for line, _ in written_lines(
            Written(removed=("a",), unkept={"b": "why"}, left=("c",)), "the job"
        )
    )
    assert (
        "Files that the job wrote" in said
        and "changed by the job and" in said
        and "Left in place" in said
    )


def test_what_was_left_and_why_nothing_was_put_back_is_said() -> None:
    lines = written_lines(
        Written(
            left=("out/theirs",),
            counts={"left": 1},
            failed={"sessions/1": "processes of this trial (12)"},
        )
    )
    assert [urgent for _, urgent in lines] == [True] * 2
    assert "another program may have written it: out/theirs." in lines[0][0]
    assert lines[1][0] == "sessions/1 could not be put back; processes of this trial (12)."


def test_what_was_not_put_back_comes_with_what_to_do(tmp_path) -> None:
    written = Written(
        unkept={"big.bin": "larger than 1024 MiB"},
        noticed=("a.h5", "b.db"),
        failed={"ckpt.pt": "/run/kept/1"},
    )
    lines = written_lines(written)
    assert [urgent for _, urgent in lines] == [True] * 3
    text = "\n".join(line for line, _ in lines)
    assert (
        "{trial_dir}" in text
        and "a.h5, b.db" in text
        and "/run/kept/1" in text
        and "1024 MiB" in text
    )
    screen = closing_text(replace(tuned(), written=written), tmp_path)
    assert "Files" in screen and "big.bin was changed by trials and not put back" in " ".join(
        screen.split()
    )
