"""Guarantees of every registered knob."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import pytest
import torch
from knob_settings import SETTINGS
from machines import CPU, CUDA, CUDA_JOB, JOB, OLD_CUDA
from small_job import SmallJob

from autotune_spaces import docs
from autotune_spaces.base import Knob, NotApplicable, Numerics, Scope
from autotune_spaces.codec import decode, encode
from autotune_spaces.knobs import create, get, names
from autotune_trials.protocol.messages import KnobChoice

# For a process knob with live values, the first of them.
LIVE = {
    n: (*get(n).live_values, SETTINGS[n].other)[0]
    for n in names()
    if get(n).scope is Scope.LIVE or get(n).live_values
}
PROCESS = [n for n in names() if get(n).scope is Scope.PROCESS]
# Their effect needs CUDA (test_on_cuda.py, test_agent_gpu.py), a compiler or a certain CPU
# (test_effects.py), or attention (test_attention.py).
ELSEWHERE = (
    "sdpa_backend",
    "compile_mode",
    "pin_memory",
    "non_blocking",
    "cuda_prefetch",
    "matmul_precision",
)
every = pytest.mark.parametrize("name", names())


@pytest.fixture(autouse=True)
def _torch_settings():  # type: ignore[no-untyped-def]
    """Restore the process's own torch settings after each test."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(2)
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cuda.enable_flash_sdp(True)


def test_each_knob_has_one_settings_entry() -> None:
    assert sorted(SETTINGS) == sorted(names())


@every
def test_is_what_it_says(name: str) -> None:
    knob = get(name)
    assert isinstance(knob, Knob)
    assert knob.name == name
    assert isinstance(knob.scope, Scope)
    assert isinstance(knob.numerics, Numerics)
    assert knob.range


@every
def test_card_is_complete(name: str) -> None:
    card = get(name).card
    for field in ("what", "when_it_helps", "when_it_does_not", "changes_loss", "source"):
        text = getattr(card, field)
        assert len(text) >= 3, field
        assert text == text.strip(), field
    assert card.source.startswith("https://")
    assert 20 < len(docs.first_sentence(get(name))) < 160


@every
def test_domain_holds_the_jobs_own_value(name: str) -> None:
    settings = SETTINGS[name]
    domain = get(name).domain(settings.machine, settings.job)
    own = get(name).current(settings.machine, settings.job)
    assert any(type(v) is type(own) and v == own for v in domain.values)
    assert domain.default == own
    assert len(domain.values) > 1
    assert len({json.dumps(v) for v in domain.values}) == len(domain.values)
    assert all(get(name).check_value(v) is None for v in domain.values)


@every
@pytest.mark.parametrize(("machine", "job"), [(CPU, JOB), (CUDA, CUDA_JOB), (OLD_CUDA, CUDA_JOB)])
def test_has_a_domain_or_says_why_not(name: str, machine, job) -> None:  # type: ignore[no-untyped-def]
    try:
        assert get(name).domain(machine, job).values
    except NotApplicable as reason:
        assert len(str(reason)) > 15
        assert "\n" not in str(reason)


@every
def test_a_users_values_are_kept_beside_the_jobs_own(name: str) -> None:
    settings = SETTINGS[name]
    own = get(name).current(settings.machine, settings.job)
    other = next(v for v in get(name).domain(settings.machine, settings.job).values if v != own)
    values = create(name, values=[other]).domain(settings.machine, settings.job).values
    assert sorted(map(str, values)) == sorted(map(str, [own, other]))


@every
def test_values_survive_json(name: str) -> None:
    settings = SETTINGS[name]
    for value in (
        *get(name).domain(settings.machine, settings.job).values,
        settings.own,
        settings.other,
    ):
        choice = KnobChoice(name, value, {"option": 1})
        back = decode(KnobChoice, json.loads(json.dumps(encode(choice))))
        assert back == choice
        assert type(back.value) is type(value)


@every
def test_wrong_values_are_refused_in_words(name: str) -> None:
    for value in SETTINGS[name].wrong:
        reason = get(name).check_value(value)
        assert reason, value
        assert repr(value) in reason
    assert get(name).check_value(SETTINGS[name].other) is None


@every
def test_snippet_is_python(name: str) -> None:
    snippet = get(name).snippet(SETTINGS[name].other)
    assert snippet
    compile(snippet, name, "exec")
    knob = get(name)
    for value in knob.domain(SETTINGS[name].machine, SETTINGS[name].job).values:
        compile(knob.snippet(value), name, "exec")


@pytest.mark.parametrize("name", LIVE)
def test_apply_then_revert_restores(name: str) -> None:
    job, knob, settings = SmallJob(), create(name), SETTINGS[name]
    before = job.state()
    knob.apply(job, LIVE[name])
    assert job.state() != before, f"{name} = {LIVE[name]!r} changed nothing"
    knob.apply(job, settings.own)
    after = job.state()
    # a job without workers has none; torch uses 2 once there are workers
    if name == "prefetch_factor":
        assert after["loader"].pop("prefetch_factor") == 2
        before["loader"].pop("prefetch_factor")
    assert after == before


@pytest.mark.parametrize("name", LIVE)
def test_apply_twice_is_once(name: str) -> None:
    job, knob = SmallJob(), create(name)
    knob.apply(job, LIVE[name])
    once = job.state()
    knob.apply(job, LIVE[name])
    assert job.state() == once


@pytest.mark.parametrize("name", [n for n in LIVE if n not in ELSEWHERE])
def test_job_trains_with_it_and_it_took_hold(name: str) -> None:
    job, knob = SmallJob(), create(name)
    knob.apply(job, LIVE[name])
    losses = [job.step() for _ in range(2)]
    assert all(map(torch.isfinite, map(torch.tensor, losses)))
    assert knob.effect(job, LIVE[name]) is None
    assert knob.scope_of(LIVE[name]) is Scope.LIVE


@pytest.mark.parametrize("name", PROCESS)
def test_process_knob_sets_only_the_environment(name: str) -> None:
    knob, settings = get(name), SETTINGS[name]
    assert knob.scope_of(settings.other) is Scope.PROCESS
    with pytest.raises(TypeError, match="before the process starts"):
        knob.apply(SmallJob(), settings.other)
    variables = knob.environment(settings.other)
    assert variables, "nothing would tell the process"
    assert all(isinstance(v, str) for v in variables.values())
    assert knob.command(["python", "train.py"], settings.other) == ["python", "train.py"]


def test_registry_creates_without_torch() -> None:
    """The agent imports the knobs in the job's process before the job imports torch."""
    code = (
        "import sys; from autotune_spaces.knobs import get, names; [get(n) for n in names()];"
        " import autotune_spaces.space, autotune_spaces.machine, autotune_spaces.knobs.via; bad ="
        " {'torch', 'numpy', 'yaml', 'psutil'} & set(sys.modules); sys.exit(repr(bad) if bad"
        " else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
