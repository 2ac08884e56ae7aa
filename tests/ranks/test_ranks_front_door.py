"""``autotune run`` of a torchrun job, up to its verdict: every rank applies the knobs, and the
record matches what the job itself printed.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ddp_job import built, log, source, steps_of, torchrun, total_samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

JOB = """\
name: job
command: {command}
env: {{OMP_NUM_THREADS: 1}}
traces: none
tracking: {{uri: null}}
search_space:
  num_workers: [0, 2]
  amp_dtype: auto
  batch_size: [8, 32, 64]
  ddp_bucket_cap_mb: [1]
  gradient_as_bucket_view: auto
budget: {{minutes: 8, trials: 12}}
convergence: {{steps: 80}}
"""
# Reading a batch of 8 sleeps 8 ms, which two workers hide, so that the other knobs are searched as
# well; from 32 samples on, only the second rank runs out of memory.
FAULTY = {
    "item": "time.sleep(0.001)",
    "width": 600,
    "samples": 2048,
    "forward": "if len(x) >= 32 and rank == 1: raise MemoryError('no room')",
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "train.py").write_text(source(**FAULTY))
    (folder / "job.yaml").write_text(JOB.format(command=" ".join(torchrun())))
    done = subprocess.run(
        ["autotune", "run", "job.yaml", "--quiet"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "autotune-runs" / "job"


@pytest.fixture(scope="module")
def result(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def records(run_dir: Path) -> list[dict[str, Any]]:
    found = sorted((run_dir / "records").glob("*.json"))
    assert found
    return [json.loads(path.read_text()) for path in found]


def sessions(run_dir: Path, mode: str) -> list[Path]:
    every = sorted((run_dir / "sessions").iterdir())
    return [s for s in every if json.loads((s / "session.json").read_text())["mode"] == mode]


def test_the_job_is_seen_as_both_ranks_are(result: dict[str, Any]) -> None:
    seen = result["observation"]["job"]
    assert (seen["world_size"], seen["samples_per_step"]) == (2, 16.0)
    assert seen["loader"]["rank_samples"] == [1024, 1024]
    assert seen["ddp"][0]["site"].startswith("train.py:") and seen["ddp"][0]["gradients_mib"] > 1
    assert {"num_workers", "batch_size", "ddp_bucket_cap_mb", "gradient_as_bucket_view"} <= set(
        result["observation"]["domains"]
    )
    assert set(result["observation"]["withdrawn"]) <= {"amp_dtype"}, (
        "only for want of bfloat16 instructions"
    )


def test_it_comes_to_a_verdict_with_the_gain_that_was_planted(result: dict[str, Any]) -> None:
    assert result["verdict"] == "tuned", result["reason"]
    assert result["knobs"].get("num_workers") == 2 and result["speedup"]["low"] > 1.1
    assert result["loss"]["verdict"] in ("unchanged", "not-needed"), result["loss"]


def test_every_rank_applied_every_knob(result: dict[str, Any], run_dir: Path) -> None:
    tried = {knob for trial in result["trials"] for knob in trial["config"]}
    assert tried == set(result["observation"]["domains"])
    assert all(not trial["no_effect"] for trial in result["trials"])
    assert all(not r["no_effect"] and r["notes"]["ranks"] == 2 for r in records(run_dir))
    told = set()
    for session in sessions(run_dir, "fixed"):
        chosen = {
            k["name"]: k["value"]
            for k in json.loads((session / "session.json").read_text())["process_knobs"]
        }
        cap = chosen.get("ddp_bucket_cap_mb", 25) * 2**20
        expected = f"{cap} {chosen.get('gradient_as_bucket_view', False)} False"
        assert built(log(session)) == {0: expected, 1: expected}
        told.add(expected)
    assert len(told) >= 3, told


def test_what_is_recorded_is_what_the_job_printed(run_dir: Path) -> None:
    printed = [(steps_of(log(s)), total_samples(log(s))) for s in sessions(run_dir, "fixed")]
    for record in records(run_dir):
        losses, samples = record["losses"], record["window"]["samples"]
        assert len(losses) == len(samples) >= 80
        alike = [
            (steps, totals)
            for steps, totals in printed
            if len(steps) >= len(losses)
            and [s.mean_loss for s in steps[: len(losses)]] == pytest.approx(losses, rel=1e-4)
        ]
        assert alike, f"no session printed the losses of this record: {losses[:4]} …"
        assert any(totals[: len(samples)] == samples for _, totals in alike)


def test_one_rank_out_of_memory_makes_the_size_infeasible_for_all(result: dict[str, Any]) -> None:
    lost = [t for t in result["trials"] if t["state"] == "infeasible"]
    assert lost and all("rank 1" in t["reason"] and "no room" in t["reason"] for t in lost)
    limit = 10**9
    for trial in result["trials"]:
        if trial["reason"].startswith("not tried"):
            continue
        size = trial["config"].get("batch_size", 8)
        assert size < limit, "a size that did not fit was tried again, or a larger one"
        assert trial["state"] == "infeasible" or size < 32
        limit = size if trial["state"] == "infeasible" else limit
    assert all(trial["wall_s"] < 60 for trial in lost), "nobody waited for a timeout"


def test_nothing_is_left(run_dir: Path) -> None:
    folder = str(run_dir.parents[1]).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            assert not (folder in environment and b"AUTOTUNE_MARK" in environment)
