"""result.json preserves everything and is strict JSON; a bad file gets an error with advice."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
from sample_results import samples, tuned

from autotune.errors import InputError
from autotune.report.result_file import load_result, write_result
from autotune.results import Result

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["tuned", "keep", "undecided"])
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    result = samples()[name]
    write_result(result, tmp_path / "result.json")
    assert load_result(tmp_path / "result.json") == result


def test_the_promised_keys_are_there(tmp_path: Path) -> None:
    write_result(tuned(), tmp_path / "result.json")
    data = json.loads((tmp_path / "result.json").read_text())
    promised = {
        "schema_version",
        "verdict",
        "speedup",
        "loss",
        "baseline",
        "knobs",
        "rejected",
        "trials",
        "wall_s",
        "environment",
    }
    assert promised <= set(data)
    assert set(data["speedup"]) == {"estimate", "low", "high"}
    assert {"verdict", "pairs", "steps"} <= set(data["loss"])
    assert data["knobs"] == {"num_workers": 2, "amp_dtype": "bfloat16"}


def test_every_field_is_documented() -> None:
    documented = (DOCS / "result.md").read_text()
    missing = [f.name for f in fields(Result) if f"`{f.name}`" not in documented]
    assert not missing


@pytest.mark.parametrize("name", ["nothing", "hostile"])
def test_nan_infinity_and_odd_text_make_strict_json(name: str, tmp_path: Path) -> None:
    result = samples()[name]
    write_result(result, tmp_path / "result.json")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads((tmp_path / "result.json").read_text(encoding="utf-8"), parse_constant=refuse)
    again = load_result(tmp_path / "result.json")
    assert again.name == result.name
    assert again.reason == result.reason
    assert again.loss.candidate_curve.keys() == result.loss.candidate_curve.keys()


def test_a_point_that_was_not_finite_comes_back_as_none(tmp_path: Path) -> None:
    result = samples()["hostile"]
    at = next(k for k, v in result.loss.candidate_curve.items() if math.isnan(v))
    write_result(result, tmp_path / "result.json")
    assert load_result(tmp_path / "result.json").loss.candidate_curve[at] is None


def test_a_file_of_version_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(tuned(), path)
    data = json.loads(path.read_text())
    old = {"pairs": "blocks", "required_pairs": "required_blocks"}
    data["confirmation"] = {
        old.get(name, name): value for name, value in data["confirmation"].items()
    }
    path.write_text(json.dumps(data | {"schema_version": 1}))
    assert load_result(path) == tuned()


def test_a_newer_field_does_not_disturb(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(tuned(), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"carbon_kg": 3}))
    assert load_result(path) == tuned()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "schema_version"),
        ('{"schema_version": "1"}', "schema_version"),
        ('{"schema_version": 99}', "schema_version 99"),
        ('{"schema_version": 1}', "not a complete result"),
        ('{"schema_version": 1, "speedup": "fast"}', "not a complete result"),
        ('{"schema_version": 1, "loss": [1], "trials": 3}', "not a complete result"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe\x00", "not text"),
    ],
)
def test_a_bad_file_is_answered(content: str | bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said) as error:
        load_result(path)
    assert str(path) in str(error.value)


def test_a_directory_is_answered(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_result(tmp_path)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    write_result(tuned(), path)
    before = path.read_bytes()
    monkeypatch.setattr(
        "os.fsync", lambda _fd: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        write_result(samples()["keep"], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
