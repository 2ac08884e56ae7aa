"""The page is made from the test results and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import page

ROOT = Path(__file__).resolve().parents[2]
KNOBS = {
    "hooked": {
        "loader": "Words, train.py:9",
        "models": ["Net"],
        "optimizers": ["AdamW (default)"],
        "backwards": 2.0,
        "samples": 8.0,
    },
    "applies": ["num_workers", "compile_mode"],
    "switched": {"num_workers": 1},
    "withdrawn": {
        "pin_memory": "only for CUDA",
        "non_blocking": "only for CUDA",
        "batch_size": "its loss compares samples | pairs",
    },
}


def leave(folder: Path, program: str, part: str, **facts: object) -> None:
    (folder / f"{program}.{part}.json").write_text(
        json.dumps({"program": program, "package": program, "what": "a loop", **facts})
    )


def made(folder: Path, *options: str) -> str:
    page.main(str(folder), str(folder / "page.md"), *options)
    return (folder / "page.md").read_text()


def test_a_row_says_what_was_seen_and_why_knobs_are_out(tmp_path: Path) -> None:
    leave(tmp_path, "lib", "seen", version="1.2", torch="2.13.0", steps=52)
    leave(tmp_path, "lib", "knobs", **KNOBS)
    interval = {"estimate": 1.25, "low": 1.2, "high": 1.3}
    leave(
        tmp_path,
        "lib",
        "tuned",
        verdict="tuned",
        reason="",
        speedup=interval,
        knobs={"num_workers": 1},
        loss="unchanged",
    )
    (row,) = [line for line in made(tmp_path).splitlines() if line.startswith("| **lib**")]
    for words in (
        "1.2",
        "Words, train.py:9",
        "52 steps with the same losses",
        "`num_workers`",
        "not switched here: `compile_mode`",
    ):
        assert words in row
    assert (
        "`pin_memory`, `non_blocking`: only for CUDA" in row and "compares samples \\| pairs" in row
    )
    assert "1.25x (1.20–1.30), num_workers 1; loss unchanged" in row


def test_a_reason_of_most_programs_is_told_once(tmp_path: Path) -> None:
    for program in ("a", "b", "c"):
        leave(tmp_path, program, "knobs", **KNOBS)
    rare = {**KNOBS, "withdrawn": {"batch_size": "the job sets it"}}
    leave(tmp_path, "d", "knobs", **rare)
    page_made = made(tmp_path)
    assert page_made.count("only for CUDA") == 2  # of two knobs, above the table
    assert page_made.count("the job sets it") == 1


def test_the_page_has_every_cause_as_it_is_told_here() -> None:
    assert (ROOT / "docs" / "compatibility.md").read_text().endswith(page.causes())


def test_what_was_not_run_is_said_to_be_not_run(tmp_path: Path) -> None:
    leave(tmp_path, "lib", "seen", version="1.2", steps=52)
    (row,) = [line for line in made(tmp_path).splitlines() if line.startswith("| **lib**")]
    assert row.count("not run") == 2


def test_a_verdict_that_is_kept_has_the_date_of_its_run(tmp_path: Path) -> None:
    reason = "none of 4 was faster | the best: 1.0x"
    leave(tmp_path, "lib", "seen", version="1.2", steps=52)
    leave(tmp_path, "lib", "tuned", verdict="keep-baseline", reason=reason)
    leave(tmp_path, "other", "seen", version="3", steps=52)
    first = re.sub(r"page\. \S+:", "page. 2026-01-02:", made(tmp_path))
    (tmp_path / "page.md").write_text(first)
    (tmp_path / "lib.tuned.json").unlink()
    leave(tmp_path, "lib", "seen", version="1.3", steps=52)
    kept = "| keep (none of 4 was faster \\| the best: 1.0x); on 2026-01-02 |"
    for _ in range(2):  # kept verdicts are passed on unchanged
        lib, other = [
            line
            for line in made(tmp_path, "--keep-verdicts").splitlines()
            if line.startswith("| **")
        ]
        assert lib.endswith(kept) and "| 1.3 |" in lib
        assert other.endswith("| not run |")
    leave(tmp_path, "lib", "tuned", verdict="keep-baseline", reason="anew")
    assert "| keep (anew) |" in made(tmp_path, "--keep-verdicts")
    (tmp_path / "lib.tuned.json").unlink()
    (lib, _) = [line for line in made(tmp_path).splitlines() if line.startswith("| **")]
    assert lib.endswith("| not run |")
