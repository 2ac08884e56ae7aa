"""The spool: on disk when the call returns, complete after a kill, and without duplicates."""

import json
import math
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.tracking import open_tracker
from autotune.tracking.spool import Spool, SpoolPaths, read_events


def kinds(run_dir: Path) -> list[str]:
    return [event.kind for event, _ in read_events(SpoolPaths(run_dir).spool)]


def test_events_come_back_with_their_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.append("metrics", "speedup", {"speedup": 1.5})
    (first, _), (second, end) = read_events(spool.paths.spool)
    assert (first.kind, first.key) == ("spool", spool.id)
    assert second.data == {"speedup": 1.5}
    assert second.time_ms >= first.time_ms > 1_600_000_000_000
    assert end == spool.paths.spool.stat().st_size


def test_saying_it_again_adds_nothing_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        spool = Spool(tmp_path)
        spool.append("start", "s", {"name": "a"})
        spool.append("trial", "t", {"metrics": {"speedup": 1.0}})
        spool.append("finish", "s", {"status": "KILLED"})
    assert kinds(tmp_path) == ["spool", "start", "trial", "finish", "start", "finish"]
    again = Spool(tmp_path)
    # the first measurement counts
    assert not again.append("trial", "t", {"metrics": {"speedup": 2.0}})
    assert not again.append("finish", "s", {"status": "KILLED"})


def test_a_changed_metric_is_said_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.append("metrics", "speedup", {"speedup": 1.5})
    assert not spool.append("metrics", "speedup", {"speedup": 1.5})
    assert spool.append("metrics", "speedup", {"speedup": 1.6})


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_no_event_and_is_not_continued(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path)
    spool.append("trial", "a", {"name": "a"})
    spool.append("trial", "b", {"name": "b"})
    path = spool.paths.spool
    path.write_bytes(path.read_bytes()[:-cut])
    assert kinds(tmp_path) == ["spool", "trial"]
    resumed = Spool(tmp_path)
    assert resumed.append("trial", "b", {"name": "b"})
    assert [e.key for e, _ in read_events(path)] == [spool.id, "a", "b"]


def test_a_broken_line_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with open(spool.paths.spool, "ab") as file:
        file.write(b"\0\0\0\n")
    spool.append("trial", "a", {})
    assert kinds(tmp_path) == ["spool", "trial"]


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    tracker = open_tracker(None, "e", tmp_path)
    tracker.start_study("s", "n", {}, {})
    tracker.trial("t", "t", {}, {"speedup": math.nan, "a": math.inf, "b": 1.0}, {})
    tracker.trial_series("t", "loss", {1: 0.5, 2: -math.inf})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    lines = SpoolPaths(tmp_path).spool.read_text().splitlines()
    assert len(lines) == 4, "its own, the study, the trial and the series"
    for line in lines:
        json.loads(line, parse_constant=refuse)


def test_a_file_is_recorded_again_when_it_has_changed(tmp_path: Path) -> None:
    spool, page = Spool(tmp_path), tmp_path / "report.html"
    page.write_text("page")
    assert spool.append_file("artifact", "s", page, "")
    assert not spool.append_file("artifact", "s", page, "")
    page.write_text("page 2")
    assert spool.append_file("artifact", "s", page, "")
    paths = [e.data["path"] for e, _ in read_events(spool.paths.spool) if e.kind == "artifact"]
    assert paths == ["report.html"] * 2


def test_secrets_are_not_spooled(tmp_path: Path) -> None:
    tracker = open_tracker(None, "e", tmp_path, env={"HF_TOKEN": "hf_abcdef0123", "EPOCHS": "5"})
    tracker.start_study(
        "s",
        "n",
        {"command": "train.py --token hf_abcdef0123 --api-key q1w2", "HUB_TOKEN": "zzz"},
        {"why": "hf_abcdef0123"},
    )
    tracker.trial(
        "t", "t", {"knob.sort_key": "label"}, {}, {"reason": "GET https://me:pw@host failed"}
    )
    text = SpoolPaths(tmp_path).spool.read_text()
    for secret in ("hf_abcdef0123", "q1w2", "zzz", "me:pw"):
        assert secret not in text
    assert "label" in text


def test_the_target_keeps_no_password(tmp_path: Path) -> None:
    open_tracker("http://me:hunter2@127.0.0.1:9", "e", tmp_path, offline=True)
    assert "hunter2" not in SpoolPaths(tmp_path).target.read_text()


def test_a_missing_artifact_is_a_line_and_not_an_error(tmp_path: Path) -> None:
    said: list[str] = []
    tracker = open_tracker(None, "e", tmp_path, say=said.append)
    tracker.study_artifact(tmp_path / "nowhere.html")
    assert len(said) == 1 and "nowhere.html" in said[0]


def test_a_wrong_uri_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a tracking URI"):
        open_tracker("ftp://x", "e", tmp_path / "run")
    assert not (tmp_path / "run").exists()
