"""autotune history: list, show, export, import, forget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_store import RUN

from autotune.cli import main
from autotune.history.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    Store(tmp_path / "h.sqlite").add(
        [RUN, replace(RUN, id="b2", at=2000.0, answer={}, verdict="keep-baseline")]
    )
    return tmp_path / "h.sqlite"


def _said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["history", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_list_and_show(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, oldest = _said(capsys, "list", "--store", store).splitlines()
    assert newest.startswith("b2 ") and "keep your settings" in newest
    assert oldest.startswith("a1 ") and "1.35×" in oldest and "num_workers=2" in oldest
    Store(store).add([replace(RUN, id="c3", at=3000.0, answer={"gc": "freeze", "in_order": False})])
    newest = _said(capsys, "list", "--store", store).splitlines()[0]
    assert newest.endswith("gc=freeze, in_order=off"), "as everywhere"
    assert json.loads(_said(capsys, "show", "a1", "--store", store))["answer"] == {"num_workers": 2}


def test_exported_runs_can_be_imported_and_forgotten(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "runs.jsonl", tmp_path / "other.sqlite"
    _said(capsys, "export", file, "--store", store)
    assert "2 of 2 runs added" in _said(capsys, "import", file, "--store", other)
    assert "0 of 2 runs added" in _said(capsys, "import", file, "--store", other)
    assert Store(other).runs() == Store(store).runs()
    assert "1 run forgotten" in _said(capsys, "forget", "b2", "--store", other)
    assert Store(other).runs() == [RUN]
    assert "1 run forgotten" in _said(capsys, "forget", "all", "--store", other)
    assert "no runs" in _said(capsys, "list", "--store", other)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lst"], "did you mean 'list'?"),
        (["show"], "no run given"),
        (["forget", "zz"], "no run 'zz'"),
        (["forget", ""], "no run ''"),
        (["forget", "b"], "the IDs of 2 runs begin with b"),
        (["import"], "no file given"),
    ],
)
def test_wrong_words(
    store: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(store).add([replace(RUN, id="b3")])
    assert main(["history", *words, "--store", str(store)]) == 2
    assert told in capsys.readouterr().err
    assert len(Store(store).runs()) == 3


def test_a_file_that_is_no_export(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\n')
    assert main(["history", "import", str(tmp_path / "bad.jsonl"), "--store", str(store)]) == 2
    assert "bad.jsonl:1" in capsys.readouterr().err
    assert main(["history", "import", str(tmp_path), "--store", str(store)]) == 2
    assert "cannot be read: Is a directory\n  expected: a file that" in capsys.readouterr().err
    assert len(Store(store).runs()) == 2
