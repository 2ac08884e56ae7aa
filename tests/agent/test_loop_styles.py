"""Every style of tests/programs, unmodified, compared with what the program itself logs: its
losses, samples, steps and time.

    bare        all programs, one after another, without the agent: their logs are the reference
    no knob     the same losses, bit for bit
    knobs       each knob that applies is in force inside the job; losses and samples are those that
                the program logs in the same run
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bare_runs import run_bare
from tiers import slow

from autotune.executors.base import FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.job.spec import JobSpec, SideEffects
from autotune_spaces.base import NotApplicable, SearchSpace
from autotune_spaces.domains import BFLOAT16_FLAGS
from autotune_spaces.facts import JobFacts
from autotune_spaces.knobs import create
from autotune_spaces.machine import cpu
from autotune_trials.protocol.messages import Block, KnobChoice, Record

PROGRAMS = Path(__file__).parents[1] / "programs"
STEPS = 50
KNOBS = {"num_workers": 1, "optimizer_impl": "foreach", "amp_dtype": "bfloat16"}
# also withdrawn on this machine, where a CPU emulates bfloat16
HERE = set() if cpu()[1].intersection(BFLOAT16_FLAGS) else {"amp_dtype"}
Step = dict[str, float]


@dataclass(frozen=True)
class Style:
    """A program and its special properties."""

    name: str
    command: tuple[str, ...] = ()  # empty: python NAME.py
    withdrawn: dict[str, str] = field(default_factory=dict)  # knob -> words of the reason
    unit: str = "samples"
    backwards: float = 1.0  # per step
    outside: bool = False  # does something else between steps, and logs its time
    optimizers: tuple[str, ...] = ("AdamW",)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        return self.command or ("python", f"{self.name}.py")


NO_LOADER = {"num_workers": "DataLoader"}
STYLES = [
    Style("own_modules", optimizers=("SGD",)),
    Style("own_autocast", withdrawn={"amp_dtype": "autocast"}, facts={"own_autocast": "bfloat16"}),
    Style("own_scaler", withdrawn={"amp_dtype": "Scaler"}, facts={"own_scaler": True}),
    Style("own_compile", facts={"own_compile": True}),
    Style(
        "compiled_autocast",
        withdrawn={"amp_dtype": "autocast"},
        facts={"own_compile": True, "own_autocast": "bfloat16"},
    ),
    Style(
        "compiled_around_autocast",
        withdrawn={"amp_dtype": "autocast"},
        facts={"own_compile": True, "own_autocast": "bfloat16"},
    ),
    Style("accumulation", backwards=4),
    Style("no_sync", backwards=4),
    Style("several_optimizers", backwards=3, optimizers=("Adam", "Adam")),
    Style("closure", withdrawn={"optimizer_impl": ""}, backwards=0, optimizers=("LBFGS",)),
    Style("validation", outside=True),
    Style("evaluation_on_training_data", outside=True),
    Style(
        "forces",
        withdrawn={"amp_dtype": "float64"},
        outside=True,
        facts={"double_backward": True, "double_precision": True},
    ),
    Style("master_weights"),
    Style("iterable", withdrawn={"num_workers": "get_worker_info"}),
    Style("sharded_stream"),
    Style("batch_sampler"),
    Style("nested_batches"),
    Style("variable_length"),
    Style("two_loaders", facts={"mixture": "batches of several DataLoaders together"}),
    Style("turns", facts={"mixture": "batches of several DataLoaders in turn"}),
    Style("ppo_buffer", outside=True, optimizers=("Adam",)),
    Style("looks", outside=True),
    Style("distillation", outside=True),
    Style("gradient_cache", backwards=9),
    Style("cached_loss", backwards=6),
    Style("no_loader", withdrawn=NO_LOADER, unit="iterations", outside=True),
    Style("rollouts", withdrawn=NO_LOADER, unit="iterations", outside=True, optimizers=("Adam",)),
    Style("manual_marks", withdrawn={"optimizer_impl": ""}, optimizers=()),
    Style("by_hand", withdrawn={"optimizer_impl": ""}, optimizers=()),
    Style("functional", withdrawn={"optimizer_impl": ""}, optimizers=()),
    Style("meta_learning", backwards=3),
    Style(
        "raw_tensors",
        withdrawn={"optimizer_impl": "", "amp_dtype": "forward pass begins", **NO_LOADER},
        unit="iterations",
        backwards=2,
        optimizers=(),
    ),
    Style("checkpoints"),
    Style("spawned", withdrawn={"num_workers": "__main__"}),
    Style("notebook"),
    Style("module", ("python", "-m", "package.train")),
    Style("shell_script", ("sh", "train.sh")),
    Style("console_script", ("bin/train",)),
]

SCRIPTS = {
    "module": "package/train.py",
    "shell_script": "package/train.py",
    "console_script": "package/train.py",
}
Truth = Callable[[Style], list[Step]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """What a program logs without the agent."""
    folder = tmp_path_factory.mktemp("bare") / "job"
    shutil.copytree(PROGRAMS, folder)

    def truth(style: Style) -> list[Step]:
        run_bare(
            folder,
            SCRIPTS.get(style.name, style.name + ".py"),
            MAX_STEPS=str(STEPS),
            STEP_LOG=f"{style.name}.bare",
        )
        return steps_in(folder / f"{style.name}.bare")

    return truth


def steps_in(log: Path) -> list[Step]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@dataclass(frozen=True)
class Seen:
    """One run with the agent: its record, and what the program logged in the meantime."""

    record: Record
    job: JobFacts
    steps: list[Step]
    withdrawn: dict[str, str]
    left: list[str]  # new files


def executor(style: Style, tmp_path: Path, **env: str) -> LocalExecutor:
    folder = tmp_path / "a job's own place"
    shutil.copytree(PROGRAMS, folder)
    spec = JobSpec(
        "job",
        style.argv,
        folder,
        {"OMP_NUM_THREADS": "1", "STEP_LOG": str(folder / "steps.log"), **env},
        SearchSpace("test", tuple(create(name, {}) for name in KNOBS)),
        hang_timeout_s=60.0,
        startup_timeout_s=90.0,
        side_effects=SideEffects(keep=("steps.log",)),
    )
    return LocalExecutor(spec, tmp_path / "run")


def run(style: Style, tmp_path: Path, config: dict[str, Any]) -> Seen:
    tuner = executor(style, tmp_path)
    folder = tuner.spec.workdir
    before = {p for p in folder.rglob("*") if "__pycache__" not in p.parts}
    try:
        record = tuner.run_fixed(FixedRun(config, seed=0, steps=STEPS))
    finally:
        tuner.close()
    hello = tuner.last_hello
    assert hello is not None
    withdrawn = {}
    for knob in tuner.spec.search_space.knobs:
        try:
            knob.domain(hello.machine, hello.job)
        except NotApplicable as reason:
            withdrawn[knob.name] = str(reason)
    agent_log = next((tmp_path / "run" / "sessions").glob("*/agent.log"), None)
    said = agent_log.read_text() if agent_log is not None else ""
    # the session's end may reach a worker before the job, which then waits for the tuner; and no
    # earlier session has named the loader of a stream, which is then switched at its next epoch
    expected = ("is killed by signal: Terminated", "until its next epoch")
    assert not said or any(words in said for words in expected), said
    left = [p.name for p in folder.rglob("*") if "__pycache__" not in p.parts and p not in before]
    return Seen(record, hello.job, steps_in(folder / "steps.log"), withdrawn, left)


def check_losses_and_samples(style: Style, seen: Seen) -> None:
    """Compare with the program's log of the same run. The last step is recorded before the program
    can log it.
    """
    logged, record = seen.steps[: STEPS - 1], seen.record
    assert len(record.losses) == STEPS and len(logged) >= STEPS - 1
    assert list(record.losses)[: len(logged)] == [step["loss"] for step in logged]
    expected = [step["samples"] if style.unit == "samples" else 1 for step in logged]
    assert list(record.window.samples)[: len(logged)] == expected
    assert seen.job.sample_unit == style.unit


def check_time(style: Style, seen: Seen) -> None:
    """From the second step on, the agent and the program agree on the training time."""
    logged, window = seen.steps[1 : STEPS - 1], seen.record.window
    passed_s = logged[-1]["at"] - seen.steps[0]["at"]
    outside_s = sum(step["outside_s"] for step in logged)
    counted_s = sum(window.times_s[1 : STEPS - 1]) + sum(window.turnovers_s)
    assert counted_s == pytest.approx(passed_s - outside_s, rel=0.35, abs=0.1)
    if style.outside:
        assert outside_s > 0.1 * passed_s, "else this would prove nothing"


# Some seconds each: two run every time, the rest with the slow tests.
IN_FORCE = [s if s.name in ("shell_script", "by_hand") else slow(s) for s in STYLES]


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_losses_are_the_same_bits_as_without_the_agent(
    style: Style, bare: Truth, tmp_path: Path
) -> None:
    seen = run(style, tmp_path, {})
    assert [step["loss"] for step in bare(style)][: STEPS - 1] == list(seen.record.losses)[
        : STEPS - 1
    ]
    check_losses_and_samples(style, seen)
    check_time(style, seen)
    assert seen.left == ["steps.log"]


@pytest.mark.parametrize("style", IN_FORCE, ids=lambda style: style.name)
def test_knobs_are_in_force_and_the_job_is_seen_as_it_is(style: Style, tmp_path: Path) -> None:
    config = {name: value for name, value in KNOBS.items() if name not in style.withdrawn}
    seen = run(style, tmp_path, config)
    check_losses_and_samples(style, seen)
    job, record = seen.job, seen.record
    assert set(seen.withdrawn) | HERE == set(style.withdrawn) | HERE
    assert all(words in seen.withdrawn[name] for name, words in style.withdrawn.items())
    assert record.no_effect == {}
    force = record.notes["in_force"]
    assert (force["loader"] or {}).get("num_workers") == (
        config.get("num_workers", 0) if job.loader is not None else None
    )
    assert force["autocast"] == config.get("amp_dtype", "off") and (
        force["autocast_regions"] > 0
    ) == ("amp_dtype" in config)
    assert set(force["optimizers"]) == (
        {"foreach"} if "optimizer_impl" in config else {"default"} if style.optimizers else set()
    )
    assert tuple(o.name for o in job.optimizers) == style.optimizers
    if style.backwards:
        assert job.backwards_per_step == style.backwards
    for name, value in style.facts.items():
        assert getattr(job, name) == value
    assert seen.left == ["steps.log"]


@pytest.mark.slow
def test_workers_that_would_run_the_script_again_are_a_failed_trial_with_its_reason(
    tmp_path: Path,
) -> None:
    """The trial is requested nevertheless: unrefused, every worker would train as well, and the job
    would wait for their batches forever.
    """
    tuner = executor(Style("spawned"), tmp_path)
    with tuner.open_live() as live:
        refused, usual = live.measure(
            [Block("b", (KnobChoice("num_workers", 1),), 10), Block("a", (), 10)]
        )
    tuner.close()
    assert (
        refused.window is None
        and refused.error.startswith("knob:")
        and "each worker would re-run the whole training script" in refused.error
        and "__main__" in refused.error
    )
    assert usual.error == "" and len(usual.window.times_s) == 10


@pytest.mark.slow
def test_loaders_that_are_walked_together_end_together(tmp_path: Path) -> None:
    """zip(…, strict=True) raises if only one of them is kept from ending; 32 batches per epoch."""
    tuner = executor(Style("two_loaders"), tmp_path)
    with tuner.open_live() as live:
        report, cached, later = live.measure(
            [Block("a", (), 40), Block("ceiling", (), 10, cached_batches=True), Block("b", (), 40)]
        )
    tuner.close()
    assert report.error == later.error == "" and len(later.window.times_s) == 40
    assert cached.window is None and "several DataLoaders together" in cached.error
    assert set(report.window.samples) == {32.0}


def test_a_loop_no_hook_can_see_is_told_the_two_lines_it_needs(tmp_path: Path) -> None:
    """Told after 50 backwards, not at the job's end."""
    tuner = executor(Style("fresh_leaves"), tmp_path)
    with pytest.raises(SessionFailed) as caught:
        tuner.run_fixed(FixedRun({}, seed=0, steps=STEPS))
    assert caught.value.kind == "unhooked"
    assert len(steps_in(tuner.spec.workdir / "steps.log")) < 2000
    assert "import autotune" in caught.value.detail and "autotune.step(" in caught.value.detail
