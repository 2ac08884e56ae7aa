"""Similar jobs order the search and shift its expectations; its findings rest on its own blocks."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from played import Played
from test_recalled import FACTORS, TABLE
from test_store import RUN

from autotune.history.effects import effects_of, expected_effects
from autotune.history.keys import SCALES, likeness
from autotune.history.records import Measured
from autotune.history.store import Store
from autotune.search.model import RECALLED, ModelSearch, SearchKnob
from autotune.search.model.judgement import worth
from autotune.stages import prove

PHASES = {"data": 0.05, "forward": 0.4, "backward": 0.5, "optimizer": 0.03, "other": 0.02}
# it does not wait for batches, so all knobs are searched together
BUSY = replace(TABLE, phases=PHASES)
DOMAINS = {"num_workers": (0, 1, 2), "amp_dtype": ("off", "bfloat16"), "gc": ("default", "freeze")}


def test_likeness_is_one_for_the_same_and_falls_with_each_scale() -> None:
    a = dict.fromkeys(SCALES, 0.5) | {"gpu": 0.0}
    assert likeness(a, a) == 1.0
    for name, scale in SCALES.items():
        near, far = {**a, name: 0.5 + scale}, {**a, name: 0.5 + 2 * scale}
        assert likeness(a, near) == likeness(near, a) == pytest.approx(math.exp(-0.5))
        assert likeness(a, far) == pytest.approx(math.exp(-2))
    assert likeness(a, {**a, "gpu": 1.0}) == 0.0
    unknown = {k: v for k, v in a.items() if k != "waiting"}
    assert likeness(a, unknown) == pytest.approx(math.exp(-0.5))


def test_every_feature_is_documented_with_its_scale() -> None:
    page = (Path(__file__).parents[2] / "docs" / "history.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)`: .* \| ([\d.]+) \|$", page, re.MULTILINE))
    assert {name: float(scale) for name, scale in rows.items()} == SCALES


def test_effects_are_taken_apart() -> None:
    truth = {"num_workers": -0.3, "amp_dtype": -0.5, "gc": 0.02}
    values = {"num_workers": 2, "amp_dtype": "bfloat16", "gc": "freeze"}
    configs = [
        ("num_workers",),
        ("num_workers", "amp_dtype"),
        ("num_workers", "amp_dtype", "gc"),
        ("amp_dtype",),
        ("gc",),
    ]
    run = replace(
        RUN,
        measured=tuple(
            Measured({k: values[k] for k in c}, "live", sum(truth[k] for k in c), 0.01, 9)
            for c in configs
        ),
    )
    found = effects_of(run, DOMAINS)
    for knob, effect in truth.items():
        mean, error = found[knob, values[knob]]
        assert mean == pytest.approx(effect, abs=0.02) and error < 0.03
    assert effects_of(replace(run, measured=(Measured({"gc": "freeze"}, "failed"),)), DOMAINS) == {}


def test_the_less_alike_a_job_is_the_less_it_says() -> None:
    item = ("amp_dtype", "bfloat16")
    said = [expected_effects([(like, {item: (-0.4, 0.01)})])[item] for like in (1.0, 0.6, 0.3, 0.1)]
    assert said == sorted(said) and said[0] == pytest.approx(-0.4, abs=0.02) and -0.1 < said[-1] < 0
    of_two = expected_effects([(1.0, {item: (-0.4, 0.01)}), (0.2, {item: (0.4, 0.01)})])[item]
    assert said[0] < of_two < 0


def test_what_was_made_up_is_bounded() -> None:
    run = replace(RUN, measured=(Measured({"num_workers": 2}, "live", -50.0, 1e-9, 9),))
    ((effect, _),) = effects_of(run, DOMAINS).values()
    assert -1.6 < effect < 0


# ---------------------------------------------------------------------------------------- the model

KNOBS = (
    SearchKnob("num_workers", (0, 1, 2, 4), 0, costly=True, loader=True),
    SearchKnob("amp_dtype", ("off", "bfloat16"), "off", in_graph=True, price=0.01),
    SearchKnob("gc", ("default", "freeze"), "default"),
    SearchKnob("malloc", ("default", "keep", "retain"), "default"),
)
DEFAULTS = {knob.name: knob.default for knob in KNOBS}


def _search(expected: dict) -> ModelSearch:
    def normalize(config: dict) -> dict:
        return {k: v for k, v in config.items() if v != DEFAULTS[k]}

    return ModelSearch(
        KNOBS, normalize=normalize, bottleneck="compute", seed=1, noise=0.03, expected=expected
    )


def _blocks(search: ModelSearch, effects: dict, count: int, noise: float = 0.03) -> list:
    rng, seen = np.random.default_rng(0), []
    for number in range(count):
        series = search.next_series(
            elapsed_share=0.02 * number, seconds_left=200.0 - number, block_s=0.3, switch_s=0.0
        )
        if series is None:
            break
        seen.append(series)
        for config in series.blocks:
            search.measured(
                config,
                sum(effects.get(item, 0.0) for item in config.items()) + rng.normal(0, noise),
            )
    return seen


def test_the_expected_best_is_the_first_proposal() -> None:
    expected = {
        ("amp_dtype", "bfloat16"): -0.4,
        ("malloc", "keep"): -0.1,
        ("gc", "freeze"): 0.2,
        ("num_workers", 4): -0.001,
    }
    first, second, *_ = _blocks(_search(expected), expected, 3)
    assert set(map(str, first.blocks)) == {"{}"}
    assert second.purpose == RECALLED
    assert second.blocks[0] == {"amp_dtype": "bfloat16", "malloc": "keep"}


def test_without_a_history_nothing_changes() -> None:
    truth = {("amp_dtype", "bfloat16"): -0.4}
    assert _blocks(_search({}), truth, 6) == _blocks(_search({("unknown", 1): -1.0}), truth, 6)


def test_a_false_history_is_outweighed_and_seen_through() -> None:
    lies = {
        ("gc", "freeze"): -0.6,
        ("malloc", "keep"): -0.5,
        ("malloc", "retain"): -0.4,
        ("amp_dtype", "bfloat16"): 0.5,
    }
    search = _search(lies)
    _blocks(search, {("amp_dtype", "bfloat16"): -0.4}, 12)
    assert set(search.mispredicted()) == set(lies)
    answer = search.answer().config
    assert answer["amp_dtype"] == "bfloat16" and not {"gc", "malloc"} & answer.keys()


def test_what_a_knob_is_worth_is_judged_without_the_history() -> None:
    """The same blocks have the same worth under either prior mean."""
    sd, prior_sd, data_sd = 0.03, 0.15, (1 / 0.03**2 - 1 / 0.15**2) ** -0.5
    data = 0.05

    def posterior(prior: float) -> float:
        return sd**2 * (data / data_sd**2 + prior / prior_sd**2)

    plain = worth(posterior(0.0), sd, prior_sd, 0.007)
    recalled = worth(posterior(0.8), sd, prior_sd, 0.007, expected=0.8)
    assert recalled.expected == pytest.approx(plain.expected)


# --------------------------------------------------------------------------------------- whole runs


def test_an_alike_job_is_tried_first_with_what_was_best(tmp_path: Path) -> None:
    store = tmp_path / "history.sqlite"
    first = Played(tmp_path / "first", BUSY, store)
    another = replace(BUSY, cost_s=BUSY.cost_s * 1.5)
    alike = Played(tmp_path / "alike", another, store, code="# another job", seed=1)
    assert alike.result.recalled.kind == "near" and alike.result.recalled.outcome == "prior"
    assert (
        next(config for config in alike.tried if config) == first.result.knobs == alike.result.knobs
    )


def test_a_run_that_only_proved_again_hides_nothing(tmp_path: Path) -> None:
    """It measured only one configuration; the search before it measured all others."""
    store = tmp_path / "history.sqlite"
    first = Played(tmp_path / "first", BUSY, store)
    Played(tmp_path / "again", BUSY, store, seed=1)
    one, two = (run.measured for run in Store(store).runs())
    assert len(one) == 1 < len(two)
    alike = Played(
        tmp_path / "alike", replace(BUSY, cost_s=BUSY.cost_s * 1.5), store, code="# another job"
    )
    assert next(config for config in alike.tried if config) == first.result.knobs
    stored = json.loads(
        next(
            line
            for line in (tmp_path / "alike/run/journal.jsonl").read_text().splitlines()
            if '"recall"' in line
        )
    )
    assert {e["knob"] for e in stored["data"]["expected"]} > set(first.result.knobs)


@pytest.mark.slow
def test_after_three_mispredictions_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the number of pairs that narrow the interval is chance, and would hide the comparison
    monkeypatch.setattr(prove, "sharpen", lambda context, observation, confirmed, *_: confirmed)
    store = tmp_path / "history.sqlite"
    Played(tmp_path / "first", BUSY, store)
    (record,) = Store(store).runs()
    lies = tuple(
        replace(m, log_ratio=-0.9, error=0.001) for m in record.measured if len(m.config) == 1
    )
    Store(store).forget([record.id])
    Store(store).add([replace(record, measured=lies, keys=replace(record.keys, job="another"))])
    run = Played(tmp_path / "fooled", BUSY, store)
    assert run.result.recalled.outcome == "dropped"
    assert "mispredicted" in run.said[-1]
    plain = Played(tmp_path / "plain", BUSY, None)
    assert run.result.knobs == plain.result.knobs
    assert run.wall_s < 1.1 * plain.wall_s


def test_a_history_of_nothing_but_losses_adopts_nothing(tmp_path: Path) -> None:
    store = tmp_path / "history.sqlite"
    Played(tmp_path / "first", BUSY, store)
    useless = replace(
        BUSY, factors={knob: dict.fromkeys(values, 1.0) for knob, values in FACTORS.items()}
    )
    run = Played(tmp_path / "useless", useless, store, code="# nothing to gain")
    assert run.result.verdict == "keep-baseline"
