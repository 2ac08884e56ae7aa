"""Proposals: seeds first, no duplicates, conditions respected, failed settings left out, and the
same after a resume.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from autotune.job.configs import key_of, normalize
from autotune.results import Trial, TrialState, best_of
from autotune.search.proposer import Proposer
from autotune.search.sampler_stopping import PLATEAU_TRIALS, plateau
from autotune.search.seeds import guess, likely, seeds
from autotune_spaces import knobs
from autotune_spaces.base import SearchSpace

DOMAINS = {
    "num_workers": (0, 1, 2, 4),
    "prefetch_factor": (2, 4),
    "persistent_workers": (False, True),
    "amp_dtype": ("off", "bfloat16"),
    "intra_op_threads": (1, 2, 4),
}
DEFAULTS = {
    "num_workers": 0,
    "prefetch_factor": 2,
    "persistent_workers": False,
    "amp_dtype": "off",
    "intra_op_threads": 4,
}
SPACE = SearchSpace("test", tuple(knobs.create(name, {}) for name in DOMAINS))


def proposer(path: Path, seed: int = 0) -> Proposer:
    return Proposer(path / "optuna.log", SPACE, DOMAINS, DEFAULTS, seed)


def cost(config: dict) -> float:
    """A synthetic job: two workers and bfloat16 are best, two threads help a little."""
    full = {**DEFAULTS, **config}
    workers = {0: 1.0, 1: 0.8, 2: 0.6, 4: 0.65}[full["num_workers"]]
    return (
        workers
        * (0.5 if full["amp_dtype"] == "bfloat16" else 1.0)
        * (1 + 0.02 * abs(full["intra_op_threads"] - 2))
    )


def run(p: Proposer, count: int, start: int = 0) -> list[Trial]:
    trials = []
    for number in range(start, start + count):
        proposed = p.next()
        if proposed is None:
            break
        origin, config = proposed
        trial = Trial(
            number, config, "complete", math.log(cost(config) / cost({})), 0.01, 2, origin=origin
        )
        p.tell(trial)
        trials.append(trial)
    return trials


def test_nothing_is_proposed_twice_and_the_best_is_found(tmp_path: Path) -> None:
    trials = run(proposer(tmp_path), 30)
    keys = [key_of(t.config) for t in trials]
    assert len(set(keys)) == len(keys)
    best = best_of(trials)
    assert (
        best is not None
        and best.config["num_workers"] == 2
        and best.config["amp_dtype"] == "bfloat16"
    )


def test_a_knob_without_meaning_is_left_out(tmp_path: Path) -> None:
    configs = [trial.config for trial in run(proposer(tmp_path), 30)]
    without_workers = [config for config in configs if "num_workers" not in config]
    assert without_workers
    for config in without_workers:
        assert "prefetch_factor" not in config and "persistent_workers" not in config


def test_an_excluded_value_never_comes_again(tmp_path: Path) -> None:
    p = proposer(tmp_path)
    p.exclude("amp_dtype", "bfloat16")
    p.enqueue({"amp_dtype": "bfloat16"})
    trials = run(p, 25)
    assert len(trials) == 25 and all("amp_dtype" not in t.config for t in trials)


def test_a_small_space_is_exhausted_and_says_so(tmp_path: Path) -> None:
    small = {"amp_dtype": ("off", "bfloat16"), "num_workers": (0, 1)}
    p = Proposer(tmp_path / "optuna.log", SPACE, small, {k: DEFAULTS[k] for k in small}, 0)
    assert len(run(p, 50)) == 3


def test_what_was_tried_of_an_excluded_value_leaves_the_others_to_try(tmp_path: Path) -> None:
    small = {"amp_dtype": ("off", "bfloat16"), "intra_op_threads": (1, 2, 4)}
    p = Proposer(tmp_path / "optuna.log", SPACE, small, {k: DEFAULTS[k] for k in small}, 0)
    for number, threads in enumerate((1, 2)):
        config = {"intra_op_threads": threads, "amp_dtype": "bfloat16"}
        p.tell(Trial(number, config, TrialState.FAILED))
    p.tell(Trial(2, {"amp_dtype": "bfloat16"}, TrialState.FAILED))
    p.exclude("amp_dtype", "bfloat16")
    assert len(run(p, 50, start=3)) == 2


def test_all_of_a_space_is_proposed_however_sure_the_sampler_is(tmp_path: Path) -> None:
    """The more certain it is, the more often it proposes the best one again."""
    alike = {name: DOMAINS[name] for name in ("num_workers", "amp_dtype", "intra_op_threads")}
    p = Proposer(tmp_path / "optuna.log", SPACE, alike, {k: DEFAULTS[k] for k in alike}, 0)
    trials = run(p, 50)
    assert len({key_of(t.config) for t in trials}) == len(trials) == 4 * 2 * 3 - 1
    (tmp_path / "conditions").mkdir()
    trials = run(proposer(tmp_path / "conditions"), 200)
    assert len({key_of(t.config) for t in trials}) == len(trials) == (3 * 2 * 2 + 1) * 2 * 3 - 1, (
        "no prefetching without workers"
    )


def study_of(folder: Path) -> optuna.Study:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna.load_study(
        study_name="autotune",
        storage=JournalStorage(JournalFileBackend(str(folder / "optuna.log"))),
    )


def torn(folder: Path) -> None:
    with open(folder / "optuna.log", "ab") as file:
        file.write(b'{"op_code":4,"wor')


def locked(folder: Path) -> None:
    (folder / "optuna.log.lock").symlink_to(folder / "optuna.log")


def queued(folder: Path) -> None:
    """Killed after enqueueing the next trial, before asking for it."""
    study_of(folder).enqueue_trial({**DEFAULTS, "num_workers": 4})


@pytest.mark.parametrize("left", [torn, locked, queued])
def test_a_resumed_search_knows_what_was_measured(
    tmp_path: Path, left: Callable[[Path], None]
) -> None:
    first = proposer(tmp_path)
    trials = run(first, 6)
    lost = first.next()  # proposed, then the tuner died
    assert lost is not None
    left(tmp_path)
    began = time.monotonic()
    second = proposer(tmp_path)
    second.restore(trials)
    assert time.monotonic() - began < 10, "a lock of the dead is not waited for"
    told = study_of(tmp_path).trials
    assert [t.value for t in told] == [t.log_ratio for t in trials]
    for trial, remembered in zip(trials, told, strict=True):
        assert all(remembered.params[name] == value for name, value in trial.config.items()), (
            "each result with its own configuration"
        )
    again = run(second, 20, start=6)
    assert len(again) == 20
    assert not {key_of(t.config) for t in trials} & {key_of(t.config) for t in again}


def test_trials_that_optuna_never_heard_of_are_told_again(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    trials = run(proposer(tmp_path / "one"), 8)
    other = proposer(tmp_path / "two")  # its optuna.log is empty: lost with the disk
    other.restore(trials)
    again = run(other, 10)
    assert len(trials) == 8 and len(again) == 10
    assert not {key_of(t.config) for t in trials} & {key_of(t.config) for t in again}


def test_optuna_s_own_tools_open_the_study(tmp_path: Path) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    trials = run(proposer(tmp_path), 8)
    study = optuna.load_study(
        study_name="autotune",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "optuna.log"))),
    )
    assert {t.user_attrs["key"] for t in study.trials} >= {key_of(t.config) for t in trials}


def test_a_study_cut_off_anywhere_is_taken_up_again(tmp_path: Path) -> None:
    trials = run(proposer(tmp_path), 6)
    whole = (tmp_path / "optuna.log").read_bytes()
    for share in (0.2, 0.5, 0.9, 0.999):
        (tmp_path / "optuna.log").write_bytes(whole[: int(len(whole) * share)])
        second = proposer(tmp_path)
        second.restore(trials)
        again = run(second, 3)
        assert len(again) == 3
        assert not {key_of(t.config) for t in trials} & {key_of(t.config) for t in again}


def test_the_same_seed_proposes_the_same(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = (
        [t.config for t in run(proposer(tmp_path / name, 7), 12)] for name in ("one", "two")
    )
    assert len(one) == 12 and one == two


def test_infeasible_and_failed_trials_do_not_stop_the_search(tmp_path: Path) -> None:
    p = proposer(tmp_path)
    for state in ("infeasible", "failed", "pruned"):
        proposed = p.next()
        assert proposed is not None
        p.tell(Trial(0, proposed[1], state, 0.5 if state == "pruned" else None, reason="test"))
    assert run(p, 3)


@pytest.mark.parametrize(
    ("bottleneck", "first"), [("loader", "num_workers"), ("compute", "amp_dtype")]
)
def test_seeds_start_with_what_the_bottleneck_asks_for(bottleneck: str, first: str) -> None:
    plan = seeds(bottleneck, DOMAINS, DEFAULTS)
    assert list(plan[0]) == [first]
    assert {name for config in plan for name in config} == set(DOMAINS), (
        "every knob gets one fair try"
    )
    assert all("num_workers" in c for c in plan if "prefetch_factor" in c)


CUDA_KNOBS = {
    "pin_memory": (False, True),
    "non_blocking": (False, True),
    "compile_mode": ("off", "default", "reduce-overhead", "max-autotune"),
    "num_workers": (0, 2, 4),
    "in_order": (True, False),
}
CUDA_DEFAULTS = {
    "pin_memory": False,
    "non_blocking": False,
    "compile_mode": "off",
    "num_workers": 0,
    "in_order": True,
}


@pytest.mark.parametrize("bottleneck", ["loader", "compute", "optimizer", "overhead"])
def test_every_seed_changes_something_the_conditional_ones_too(bottleneck: str) -> None:
    space = SearchSpace("test", tuple(knobs.create(name, {}) for name in CUDA_KNOBS))
    for config in seeds(bottleneck, CUDA_KNOBS, CUDA_DEFAULTS):
        assert normalize(config, CUDA_DEFAULTS, space) == config
    pinned = seeds(bottleneck, CUDA_KNOBS, {**CUDA_DEFAULTS, "pin_memory": True})
    assert {"non_blocking": True} in pinned and {
        "non_blocking": True,
        "pin_memory": False,
    } not in pinned


def test_cuda_graphs_are_a_seed_and_the_first_guess_where_the_time_goes_between_kernels() -> None:
    def modes(bottleneck: str) -> list[object]:
        return [
            c["compile_mode"]
            for c in seeds(bottleneck, CUDA_KNOBS, CUDA_DEFAULTS)
            if "compile_mode" in c
        ]

    assert modes("compute") == ["default", "reduce-overhead"]
    assert modes("overhead") == ["reduce-overhead", "default"]
    values = CUDA_KNOBS["compile_mode"]
    assert (
        guess("compile_mode", values, "off"),
        guess("compile_mode", values, "off", "overhead"),
    ) == ("default", "reduce-overhead")
    assert guess("compile_mode", ("off", "default"), "off", "overhead") == "default", (
        "a CPU has no CUDA graphs"
    )
    for value in ("static", "dynamic"):
        assert guess("compile_mode", ("off", "default", "regional", value), "off") == value, (
            "it is there for a reason"
        )


def test_many_page_faults_bring_the_allocator_to_the_front() -> None:
    domains, defaults = (
        {**DOMAINS, "malloc": ("default", "retain")},
        {**DEFAULTS, "malloc": "default"},
    )
    for bottleneck in ("loader", "compute", "optimizer", "overhead"):
        assert seeds(bottleneck, domains, defaults, 5000.0)[0] == {"malloc": "retain"}
        few = seeds(bottleneck, domains, defaults, 300.0)
        assert few[0] != {"malloc": "retain"} and {"malloc": "retain"} in few


def test_a_trial_of_a_value_that_needed_a_new_process_is_not_told_to_the_sampler(
    tmp_path: Path,
) -> None:
    """On resume: ``malloc: jemalloc`` is not a value of the live search."""
    space = SearchSpace("test", (*SPACE.knobs, knobs.create("malloc")))
    domains, defaults = (
        {**DOMAINS, "malloc": ("default", "retain")},
        {**DEFAULTS, "malloc": "default"},
    )
    p = Proposer(tmp_path / "optuna.log", space, domains, defaults, 0)
    p.restore(
        [
            Trial(0, {"malloc": "jemalloc"}, "complete", -0.1, origin="process"),
            Trial(1, {"malloc": "retain"}, "complete", -0.2),
        ]
    )
    assert [t.params["malloc"] for t in p._study.trials] == ["retain"]


def test_a_guess_is_never_the_job_s_own_value() -> None:
    assert guess("amp_dtype", ("off", "bfloat16"), "bfloat16") == "off"
    assert guess("num_workers", (0, 1, 2), 2) == 1


def test_the_search_stops_on_a_plateau_only() -> None:
    flat = [
        Trial(n, {"intra_op_threads": n}, "complete", -0.1, origin="sampler")
        for n in range(PLATEAU_TRIALS + 1)
    ]
    assert plateau(flat)
    assert not plateau(flat[:-2])
    late = [*flat[:-1], Trial(99, {"amp_dtype": "bfloat16"}, "complete", -0.5, origin="sampler")]
    assert not plateau(late)


def test_bucket_sizes_near_torchs_own_are_tried_first() -> None:
    values = (1, 5, 10, 50, 100, 200)
    assert sorted(values, key=lambda v: likely("ddp_bucket_cap_mb", v))[:3] == [50, 100, 10]
