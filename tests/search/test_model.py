"""The search model finds planted effects, proposes what is allowed, and stops when done."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from autotune.search.model import ModelSearch, SearchKnob, Series
from autotune.search.model.judgement import worth

Cost = Callable[[dict], float]

KNOBS = (
    SearchKnob("num_workers", (0, 1, 2, 4, 8, 16, 32), 0, costly=True, loader=True, guess=16),
    SearchKnob("prefetch_factor", (2, 4), 2, costly=True, loader=True),
    SearchKnob("amp_dtype", ("off", "bfloat16"), "off", in_graph=True, price=0.01),
    SearchKnob("channels_last", (False, True), False, in_graph=True, price=0.01),
    SearchKnob("compile_mode", ("off", "default"), "off", compiled=True),
    SearchKnob("gc", ("default", "freeze"), "default"),
    SearchKnob("malloc", ("default", "keep", "keep-all"), "default"),
    SearchKnob("intra_op_threads", (1, 2, 4), 4),
    SearchKnob("optimizer_impl", ("for-loop", "foreach", "fused"), "for-loop"),
)
DEFAULTS = {knob.name: knob.default for knob in KNOBS}
PLANTED = {
    ("amp_dtype", "bfloat16"): -math.log(1.4),
    ("malloc", "keep"): -math.log(1.2),
    ("channels_last", True): -math.log(1.05),
    ("intra_op_threads", 1): 0.5,
}
SECONDS = 200.0


def normalize(config: dict) -> dict:
    kept = {k: v for k, v in config.items() if v != DEFAULTS[k] or type(v) is not type(DEFAULTS[k])}
    if not kept.get("num_workers"):
        kept.pop("prefetch_factor", None)
    return kept


def additive(effects: dict) -> Cost:
    return lambda config: -3.0 + sum(effects.get(item, 0.0) for item in config.items())


def search(**settings) -> ModelSearch:
    settings = {"bottleneck": "compute", "seed": 3, "noise": 0.05, **settings}
    return ModelSearch(KNOBS, normalize=normalize, **settings)


def run(
    s: ModelSearch,
    cost: Cost,
    *,
    noise: float = 0.05,
    seconds: float = SECONDS,
    fails: Cost | None = None,
    seed: int = 0,
) -> list[Series]:
    """A live session of ``seconds``; ``fails(config)`` is true if the block dies."""
    rng, clock, all_series = np.random.default_rng(seed), 0.0, []
    while True:
        series = s.next_series(
            elapsed_share=clock / seconds, seconds_left=seconds - clock, block_s=0.3, switch_s=2.0
        )
        if series is None:
            return all_series
        all_series.append(series)
        clock += 1.0
        for config in series.blocks:
            clock += 0.3
            if fails is not None and fails(config):
                s.failed(config)
                break
            s.measured(config, cost(config) + noise * rng.standard_normal())


def blocks(all_series: list[Series]) -> list[dict]:
    return [dict(config) for series in all_series for config in series.blocks]


@pytest.mark.parametrize("seed", range(4))
def test_planted_effects_are_found(seed: int) -> None:
    s = search(seed=seed)
    run(s, additive(PLANTED), seed=seed)
    answer = s.answer()
    assert {"amp_dtype": "bfloat16", "malloc": "keep"}.items() <= dict(answer.config).items()
    assert "intra_op_threads" not in answer.config and len(answer.config) <= 4
    assert answer.gain == pytest.approx(math.log(1.4 * 1.2), abs=0.15)
    assert 0.02 < s.noise < 0.1


def test_a_search_ends_early_where_nothing_is_to_be_gained_and_says_so() -> None:
    s = search(noise=0.02)
    all_series = run(s, additive({}), noise=0.01)
    assert s.answer().config == {}
    assert "no single change" in s.stopped
    assert len(blocks(all_series)) < 0.7 * SECONDS / 0.3


@pytest.mark.parametrize("seed", range(3))
def test_a_search_does_not_stop_while_a_knob_may_gain(seed: int) -> None:
    """What is left in doubt is tried in fresh processes, which take far longer than blocks."""
    s = search(seed=seed, noise=0.02)
    run(s, additive(PLANTED), noise=0.03, seconds=900.0, seed=seed)
    assert "no single change" in s.stopped
    for verdict in s.answer().knobs:
        if verdict.name != "compile_mode":  # other graphs say nothing of it
            assert verdict.kept or verdict.gain + 2 * verdict.sd < 0.02, verdict


def test_without_time_it_says_so() -> None:
    s = search()
    assert s.next_series(elapsed_share=1.0, seconds_left=0.1, block_s=0.3, switch_s=0.0) is None
    assert s.stopped == "its share of the budget is used up"


def test_it_tells_the_knobs_it_never_tried() -> None:
    """Without workers there is nothing to prefetch; a search of enough time has tried the rest."""
    s = search(compile_start_up_s={"default": 30.0})
    assert set(s.untried()) == set(DEFAULTS) - {"prefetch_factor"}
    run(s, additive(PLANTED | {("num_workers", 2): 1.0, ("num_workers", 1): 1.0}), seconds=25.0)
    assert s.untried() == ("compile_mode",)
    run(s, additive(PLANTED))
    assert s.untried() == ()
    short = search(compile_start_up_s={"default": 30.0}, planned_s=60.0)
    assert "compile_mode" not in short.untried(), "compiling would never pay"


def test_every_value_is_looked_at_in_a_block_with_nothing_else_new() -> None:
    s = search()
    seen: set = set()
    for config in blocks(run(s, additive(PLANTED))):
        new = set(config.items()) - seen
        assert len(new) <= 1, f"{new} at once"
        seen |= new
    cheap = [k for k in KNOBS if not k.costly and not k.compiled]
    assert seen >= {(k.name, v) for k in cheap for v in k.values if v != k.default}


def test_a_plot_keeps_its_dear_knobs_and_its_graph() -> None:
    all_series = run(search(compile_start_up_s={"default": 5.0}), additive(PLANTED))
    assert any("compile_mode" in config for config in blocks(all_series))
    for series in all_series:
        assert 2 <= len(series.blocks) <= 16
        for name in ("num_workers", "prefetch_factor", "compile_mode"):
            assert len({config.get(name) for config in series.blocks}) == 1, (name, series)
        if any("compile_mode" in config for config in series.blocks):
            assert len({(c.get("amp_dtype"), c.get("channels_last")) for c in series.blocks}) == 1


def test_what_is_excluded_is_never_proposed() -> None:
    s = search()
    s.exclude("amp_dtype", "bfloat16")
    s.exclude("malloc", "default")  # the job's own value cannot be excluded
    proposed = blocks(run(s, additive(PLANTED)))
    assert any("malloc" in config for config in proposed)
    assert all("amp_dtype" not in config for config in proposed)


def test_conditional_knobs_come_only_where_they_mean_something() -> None:
    proposed = blocks(
        run(search(), additive({("num_workers", 4): -0.3, ("prefetch_factor", 4): -0.1}))
    )
    assert all(config == normalize(config) for config in proposed)
    assert any("prefetch_factor" in config for config in proposed)


def test_the_value_that_fails_is_blamed_by_name() -> None:
    s, tried = search(), []

    def fails(config: dict) -> bool:
        tried.append(config)
        return config.get("malloc") == "keep"

    run(s, additive(PLANTED), fails=fails)
    assert sum(config.get("malloc") == "keep" for config in tried) == 1
    assert "malloc" not in s.answer().config
    assert s.answer().config["amp_dtype"] == "bfloat16", "what stood beside it is not blamed"


def test_a_compiler_that_fails_is_asked_once() -> None:
    s, deaths = search(compile_start_up_s={"default": 10.0}), []

    def fails(config: dict) -> bool:
        deaths.extend([config] * ("compile_mode" in config))
        return "compile_mode" in config

    run(s, additive(PLANTED), fails=fails)
    assert len(deaths) == 1 and s.answer().config["amp_dtype"] == "bfloat16"


def test_two_values_that_fail_together_are_kept_apart() -> None:
    s, deaths = search(), []

    def fails(config: dict) -> bool:
        dead = config.get("malloc") == "keep" and config.get("amp_dtype") == "bfloat16"
        deaths.extend([config] * dead)
        return dead

    run(s, additive(PLANTED), fails=fails)
    assert len(deaths) <= 3
    assert (
        s.answer().config["amp_dtype"] == "bfloat16" and s.answer().config.get("malloc") != "keep"
    )


def test_a_pair_that_fails_does_not_keep_the_search_open() -> None:
    """No change that completes it is a gain that could still be had."""
    s = search(seed=3, noise=0.02)

    def fails(config: dict) -> bool:
        return config.get("malloc") == "keep" and config.get("amp_dtype") == "bfloat16"

    effects = {**PLANTED, ("compile_mode", "default"): -0.15}
    effects.pop(("channels_last", True))
    run(s, additive(effects), fails=fails, seconds=300.0, seed=3, noise=0.02)
    assert "no single change" in s.stopped


def test_what_fails_alone_does_not_bar_what_works_with_more() -> None:
    """A batch size that fits only in bfloat16."""
    s = search(noise=0.02)
    for _ in range(4):
        s.measured({}, -3.0)
        s.measured({"amp_dtype": "bfloat16"}, -3.0)
        s.measured({"amp_dtype": "bfloat16", "malloc": "keep"}, -3.3)
    assert s.failed({"malloc": "keep"}) == (), "whoever excludes what is blamed would lose both"
    both = {"amp_dtype": "bfloat16", "malloc": "keep"}
    assert s.answer().config == both

    def fails(config: dict) -> bool:
        return config.get("malloc") == "keep" and "amp_dtype" not in config

    cost = additive({("malloc", "keep"): -0.3})
    assert {"malloc": "keep"} not in blocks(run(s, cost, noise=0.02, fails=fails))
    assert both.items() <= s.answer().config.items()


def test_failed_tells_whom_it_blames() -> None:
    s = search()
    s.measured({}, -3.0)
    s.measured({"gc": "freeze"}, -3.0)
    assert s.failed({"gc": "freeze", "malloc": "keep"}) == (("malloc", "keep"),)


def test_a_new_value_is_not_blamed_beside_what_was_never_measured_together() -> None:
    s = search()
    for config in ({}, {"gc": "freeze"}, {"amp_dtype": "bfloat16"}):
        s.measured(config, -3.0)
    s.failed({"gc": "freeze", "amp_dtype": "bfloat16", "malloc": "keep"})
    assert {"malloc": "keep"} in blocks(run(s, additive({("malloc", "keep"): -0.2})))


def test_what_is_known_to_be_slow_is_not_tried_again() -> None:
    proposed = blocks(run(search(), additive(PLANTED)))
    assert sum(config.get("intra_op_threads") == 1 for config in proposed) <= 3


def test_workers_are_climbed_by_evidence() -> None:
    """A loader that waits: each doubling gains 1.9x up to 32; most counts need not be tried."""
    speed = {0: 0.0, 1: 0.1, 2: 0.7, 4: 1.3, 8: 1.9, 16: 2.5, 32: 3.08}
    s = search(bottleneck="loader")
    all_series = run(s, lambda c: -speed[c.get("num_workers", 0)], seconds=60.0)
    assert s.answer().config["num_workers"] == 32
    assert s.answer().gain == pytest.approx(3.08, abs=0.2), (
        "a prior for small effects does not shrink a large one"
    )
    assert len({c.get("num_workers", 0) for c in blocks(all_series)}) <= 4


def test_a_guess_that_fails_gives_way_to_the_next_smaller_one() -> None:
    s, tried = search(bottleneck="loader"), []
    speed = {0: 0.0, 1: 0.1, 2: 0.7, 4: 1.3, 8: 1.9}

    def fails(config: dict) -> bool:
        tried.append(config.get("num_workers", 0))
        return tried[-1] >= 16

    run(s, lambda c: -speed[c.get("num_workers", 0)], seconds=60.0, fails=fails)
    assert list(dict.fromkeys(tried)) == [0, 16, 8, 4]
    assert s.answer().config["num_workers"] == 8


def test_compute_is_searched_behind_the_loader_that_is_fastest() -> None:
    def cost(config: dict) -> float:
        compute = (
            additive({("amp_dtype", "bfloat16"): -0.5, ("malloc", "keep"): -0.2})(config) + 3.0
        )
        workers = config.get("num_workers", 0)
        return (
            math.log(4.0 + math.exp(compute))
            if not workers
            else math.log(max(4.0 / workers, math.exp(compute)))
        )

    s = search(bottleneck="loader")
    run(s, cost)
    config = dict(s.answer().config)
    assert config.pop("num_workers") in (8, 16, 32) and config.pop("amp_dtype") == "bfloat16"
    assert config.pop("malloc") == "keep"


def test_workers_that_compute_are_tried_beside_fewer_threads() -> None:
    """Neither change is faster alone."""

    def competing(config: dict) -> float:
        workers, threads = config.get("num_workers", 0) > 0, config.get("intra_op_threads", 4)
        return -3.0 - (0.3 if threads == 1 else -0.2) * workers + 0.03 * (threads == 1)

    for seed in range(5):
        s = search(bottleneck="loader", reading=True, seed=seed)
        run(s, competing, seed=seed)
        leader = s.leader()
        assert leader.get("num_workers") and leader.get("intra_op_threads") == 1, (seed, leader)


def test_compile_is_bought_once_and_only_where_its_start_up_pays() -> None:
    effects = {**PLANTED, ("compile_mode", "default"): -0.15}
    long, short = (
        search(compile_start_up_s={"default": 10.0}, planned_s=p) for p in (20_000.0, 30.0)
    )
    all_series = run(long, additive(effects))
    assert long.answer().config["compile_mode"] == "default"
    assert 1 <= sum(series.purpose == "compile" for series in all_series) <= 3
    assert all(series.purpose != "compile" for series in run(short, additive(effects)))


def test_the_first_graph_is_of_the_guess() -> None:
    modes = ("off", "default", "reduce-overhead")
    for guess in ("reduce-overhead", "default"):
        knob = SearchKnob("compile_mode", modes, "off", compiled=True, guess=guess)
        knobs = tuple(knob if k.name == "compile_mode" else k for k in KNOBS)
        s = ModelSearch(
            knobs,
            normalize=normalize,
            bottleneck="overhead",
            seed=3,
            noise=0.05,
            planned_s=20_000.0,
            compile_start_up_s={"default": 10.0, "reduce-overhead": 12.0},
        )
        all_series = [series for series in run(s, additive(PLANTED)) if series.purpose == "compile"]
        assert all_series[0].blocks[0]["compile_mode"] == guess


@pytest.mark.parametrize("seed", range(5))
def test_what_a_gpu_hides_while_it_waits_for_launches_is_found_in_a_graph(seed: int) -> None:
    modes = ("off", "default", "reduce-overhead")
    launching_s = dict(zip(modes, (0.010, 0.005, 0.0008), strict=True))

    def cost(config: dict) -> float:
        half, mode = config.get("amp_dtype") == "bfloat16", config.get("compile_mode", "off")
        casting_s = 0.0015 if half and mode == "off" else 0.0
        return math.log(max(0.003 if half else 0.006, launching_s[mode] + casting_s))

    s = ModelSearch(
        (
            SearchKnob("amp_dtype", ("off", "bfloat16"), "off", in_graph=True, guess="bfloat16"),
            SearchKnob("compile_mode", modes, "off", compiled=True, guess="default"),
            SearchKnob("gc", ("default", "freeze"), "default"),
        ),
        normalize=normalize,
        bottleneck="compute",
        seed=seed,
        noise=0.02,
        planned_s=20_000.0,
        compile_start_up_s={"default": 10.0, "reduce-overhead": 12.0},
        on_gpu=True,
    )
    all_series = run(s, cost, noise=0.01, seed=seed)
    best = {"amp_dtype": "bfloat16", "compile_mode": "reduce-overhead"}
    assert best.items() <= dict(s.answer().config).items()
    assert sum(series.purpose == "compile" for series in all_series) <= 5


def test_a_doubtful_gain_is_kept_and_nothing_is_not() -> None:
    """A gain of 1.2x known to ±8% may become "not proven"; 0.5% ± 3% is one of many."""
    assert worth(math.log(1.2), 0.08, 0.15, 0.007).expected > 0.02
    assert worth(0.005, 0.03, 0.15, 0.007).expected < 0.002
    assert worth(-0.1, 0.02, 0.15, 0.007).expected < 0


def test_a_resumed_search_goes_on_as_it_would_have() -> None:
    first = search(seed=11)
    run(first, additive(PLANTED), seconds=60.0)
    evidence = first._evidence
    second = search(seed=11)
    for index, cost, weight in zip(
        evidence.indices, evidence.log_costs, evidence.weights, strict=True
    ):
        second.measured(first._columns.decode(index), cost, weight)
    assert second.answer() == first.answer() and second.noise == first.noise
    ask = {"elapsed_share": 0.3, "seconds_left": 100.0, "block_s": 0.3, "switch_s": 0.0}
    assert second.next_series(**ask) == first.next_series(**ask)


def test_a_burst_of_other_load_is_no_effect() -> None:
    s = search()
    for i in range(30):
        s.measured({"gc": "freeze"} if i % 2 else {}, -3.0 + 0.01 * (-1) ** (i // 2))
    s.measured({"gc": "freeze"}, -1.0)
    assert abs(s.gain({"gc": "freeze"})[0]) < 0.02


def test_the_noise_is_that_of_the_blocks_and_not_what_was_seen_first() -> None:
    found = []
    for first in (0.19, 0.01):
        s = search(noise=first)
        run(s, additive(PLANTED), noise=0.06, seconds=100.0)
        found.append(s.noise)
    assert 0.04 < statistics.fmean(found) < 0.08 and abs(found[0] - found[1]) < 0.02


def test_nothing_is_measured_where_no_value_is_left() -> None:
    s = search()
    for knob in KNOBS:
        for value in knob.values:
            if value != knob.default:
                s.exclude(knob.name, value)
    assert run(s, additive({})) == [] and s.stopped == "no value is left to try"
