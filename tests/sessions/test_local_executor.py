"""The local executor: knobs into sessions, numbered directories, seeds, clean-up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from session_paths import PYTHONPATH

from autotune.executors.base import FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec, SideEffects
from autotune_spaces.base import Card, Knob, Numerics, Scope, SearchSpace
from autotune_spaces.knobs.via import ViaKnob
from autotune_trials.protocol.messages import Block, KnobChoice

JOB = """
import json, os, sys
from pathlib import Path
from fake_agent import Agent
(Path(sys.argv[0]).parent / "started.jsonl").open("a").write(json.dumps(
    {"argv": sys.argv[1:], "env": dict(os.environ), "config": json.loads(Path(os.environ["AUTOTUNE_SESSION"]).read_text())}) + "\\n")
agent = Agent()
(agent.paths.out / "checkpoint").write_bytes(b"0" * 1000)
if agent.config.mode == "live":
    agent.serve()
elif "--fail" in sys.argv:
    raise ValueError("planned")
else:
    agent.record(agent.config.steps)
    agent.pause()
"""


class Workers(Knob):
    name, scope, numerics = "workers", Scope.LIVE, Numerics.EXACT
    card = Card("", "", "", "", "")

    def current(self, machine, job):
        return 0

    def candidates(self, machine, job):
        return (0, 1)


class Arena(Workers):
    name, scope = "arena", Scope.PROCESS

    def environment(self, value):
        return {"MALLOC_ARENA_MAX": str(value)}


@pytest.fixture
def make(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    opened = []

    def make(*words: str, **more) -> LocalExecutor:
        knobs = (
            Workers(options={"lr_scaling": "none"}),
            Arena(),
            ViaKnob("dtype", ["f32", "bf16"], {"via": "--dtype {}", "default": "f32"}),
            ViaKnob("width", [8, 16], {"default": 8}),
        )
        spec = JobSpec(
            "job",
            (sys.executable, str(tmp_path / "job.py"), *words),
            tmp_path,
            {"PYTHONPATH": PYTHONPATH, **more.pop("env", {})},
            SearchSpace("test", knobs),
            hang_timeout_s=10.0,
            startup_timeout_s=20.0,
            side_effects=SideEffects(keep=("started.jsonl",)),
        )
        executor = LocalExecutor(spec, tmp_path / "run")
        opened.append(executor)
        return executor

    yield make
    for executor in opened:
        executor.close()


def started(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "started.jsonl").read_text().splitlines()]


def test_a_live_session_of_the_job_as_it_is(make, tmp_path):
    executor = make("--dtype", "f32", "--width={width}")
    with executor.open_live() as session:
        (report,) = session.measure([Block("b", (KnobChoice("workers", 1),), 4)])
        assert (
            len(report.window.times_s) == 4
            and session.job.device == "cpu"
            and session.machine.cores == 2
        )
    (job,) = started(tmp_path)
    assert job["argv"] == ["--dtype", "f32", "--width=8"]
    assert "MALLOC_ARENA_MAX" not in job["env"]
    assert job["env"]["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "run" / "compile-cache")
    assert job["config"]["mode"] == "live" and job["config"]["seed"] is None


def test_a_fixed_run_sets_every_knob_from_the_start(make, tmp_path):
    executor = make()
    executor.loader_key = "train.py:7#0"
    record = executor.run_fixed(
        FixedRun(
            {"workers": 1, "arena": 1},
            seed=3,
            steps=6,
            min_seconds=0.5,
            max_seconds=9.0,
            label="confirm b 3",
        )
    )
    assert len(record.losses) == 6
    (job,) = started(tmp_path)
    config = job["config"]
    assert (
        config["mode"] == "fixed" and config["seed"] == 3 and config["loader_key"] == "train.py:7#0"
    )
    assert config["knobs"] == [{"name": "workers", "value": 1, "options": {"lr_scaling": "none"}}]
    assert (config["steps"], config["min_seconds"], config["max_seconds"]) == (6, 0.5, 9.0)
    assert job["env"]["MALLOC_ARENA_MAX"] == "1"


def test_profile_mode(make, tmp_path):
    make().run_fixed(FixedRun({}, seed=0, steps=2, profile=True))
    (job,) = started(tmp_path)
    assert job["config"]["mode"] == "profile"


def test_a_job_with_a_seed_of_its_own_gets_it_and_the_agent_keeps_its_hands_off(make, tmp_path):
    executor = make("--seed={seed}")
    executor.run_fixed(FixedRun({}, seed=2, steps=2))
    executor.open_live().close()
    fixed, live = started(tmp_path)
    assert fixed["argv"] == ["--seed=1002"] and fixed["config"]["seed"] is None
    assert live["argv"] == ["--seed=1000"] and live["config"]["seed"] is None


def test_sessions_are_numbered_on_and_hold_no_bulk(make, tmp_path):
    make().run_fixed(FixedRun({}, seed=0, steps=2, label="confirm-b/1"))
    make().open_live().close()
    folders = sorted(p.name for p in (tmp_path / "run" / "sessions").iterdir())
    assert folders == ["0001-confirm-b-1", "0002-live"]
    assert not list((tmp_path / "run").glob("sessions/*/out"))
    assert (tmp_path / "run" / "sessions" / "0001-confirm-b-1" / "session.json").exists()


def test_a_failed_run_is_cleaned_up_and_told_in_plain_words(make, tmp_path):
    executor = make("--fail")
    with pytest.raises(SessionFailed) as caught:
        executor.run_fixed(FixedRun({}, seed=0, steps=2))
    failure = caught.value
    assert (
        failure.kind == "crash"
        and failure.where.startswith("job.py:")
        and "ValueError: planned" in failure.detail
    )
    assert failure.directory == str(tmp_path / "run" / "sessions" / "0001-fixed")
    assert not list((tmp_path / "run").glob("sessions/*/out"))


def test_a_session_that_is_kept_goes_on_with_the_next_one(make, tmp_path):
    from session_waits import gone_within

    executor, blocks = make(), [Block("a", (), 3), Block("b", (), 4)]
    first = executor.open_live()
    first.measure(blocks)
    executor.keep(first)
    again = executor.open_live()
    again.measure(blocks)
    assert (again.blocks, again.iterations) == (4, 14) and len(started(tmp_path)) == 1
    executor.keep(again)
    executor.run_fixed(FixedRun({}, seed=0, steps=2))
    assert not gone_within(15.0, first._session.mark), "another session may not run beside it"
    assert len(started(tmp_path)) == 2
    last = executor.open_live()
    executor.keep(last)
    executor.close_kept()
    assert not gone_within(15.0, last._session.mark)


def test_closing_the_executor_ends_what_is_open(make, tmp_path):
    from session_waits import gone_within

    executor = make()
    session = executor.open_live()
    executor.close()
    executor.close()
    assert not gone_within(15.0, session._session.mark)
    with pytest.raises(SessionFailed, match="was closed"):
        session.measure([Block("b", (), 1)])
