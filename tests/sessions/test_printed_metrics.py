"""Numbers found in a job's output by the patterns of job.yaml."""

from __future__ import annotations

from pathlib import Path

from autotune.executors.printed_metrics import LONGEST_LINE, read_metrics


def printed(tmp_path: Path, content: bytes, **patterns: str) -> dict[str, tuple[float, ...]]:
    path = tmp_path / "stdout.log"
    path.write_bytes(content)
    return read_metrics((path, tmp_path / "not there.log"), patterns)


def test_values_come_in_the_order_printed(tmp_path: Path) -> None:
    text = b"epoch 1 acc=0.5 loss=2e-1\nnothing\nepoch 2 acc=0.75 loss=-1.5e-2\n"
    found = printed(tmp_path, text, acc="acc=([0-9.]+)", loss=r"loss=(\S+)")
    assert found == {"acc": (0.5, 0.75), "loss": (0.2, -0.015)}


def test_a_progress_bar_is_many_lines(tmp_path: Path) -> None:
    assert printed(tmp_path, b"acc=0.1\racc=0.2\racc=0.3", acc="acc=([0-9.]+)") == {
        "acc": (0.1, 0.2, 0.3)
    }


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    assert printed(tmp_path, b"acc=\xff\nacc=...\nacc=1\n", acc="acc=(.*)") == {"acc": (1.0,)}
    assert printed(tmp_path, b"b\n", acc="a(.)|b") == {"acc": ()}


def test_an_endless_line_is_read_to_a_limit(tmp_path: Path) -> None:
    assert printed(tmp_path, b"x" * LONGEST_LINE + b"acc=1\nacc=2\n", acc="acc=([0-9]+)") == {
        "acc": (2.0,)
    }


def test_without_patterns_nothing_is_read(tmp_path: Path) -> None:
    assert printed(tmp_path, b"acc=1\n") == {}
