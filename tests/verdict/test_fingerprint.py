"""Undeclared settings are found wherever they are; declared ones are ignored."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from autotune.verdict.fingerprint import fingerprint_differences
from autotune_spaces.knobs import create

BASE = {
    "optimizers": [
        {
            "name": "AdamW",
            "groups": [
                {"lr": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.999]},
                {"lr": 1e-4, "weight_decay": 0.0},
            ],
        }
    ],
    "parameters": {"trainable": 1234, "dtypes": {"torch.float32": 10}},
    "dropout": {"drop1": 0.1},
    "training": True,
    "loader": {"batch_size": 32, "sampler": "RandomSampler"},
    "scaler": None,
}


def with_change(change):
    other = copy.deepcopy(BASE)
    change(other)
    return other


def test_equal_settings_have_no_differences():
    assert fingerprint_differences(BASE, json.loads(json.dumps(BASE))) == []
    assert fingerprint_differences({"betas": (0.9, 0.99)}, {"betas": [0.9, 0.99]}) == []
    assert fingerprint_differences({"lr": 0.1}, {"lr": 0.1 * (1 + 1e-15)}) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (
            lambda f: f["optimizers"][0]["groups"][0].update(weight_decay=0.1),
            "optimizers.0.groups.0.weight_decay: 0.01 in",
        ),
        (
            lambda f: f["optimizers"][0]["groups"][0]["betas"].__setitem__(0, 0.0),
            "optimizers.0.groups.0.betas.0",
        ),
        (
            lambda f: f["optimizers"][0]["groups"].pop(),
            "optimizers.0.groups: 2 entries in the baseline, 1 entries",
        ),
        (lambda f: f["parameters"].update(trainable=1000), "parameters.trainable"),
        (
            lambda f: f["parameters"].update(dtypes={"torch.bfloat16": 10}),
            "parameters.dtypes.torch.bfloat16: missing in",
        ),
        (
            lambda f: f["dropout"].update(drop1=0.3),
            "dropout.drop1: 0.1 in the baseline, 0.3 in the candidate",
        ),
        (lambda f: f.update(training=1), "training"),
        (
            lambda f: f.update(scaler="GradScaler"),
            "scaler: None in the baseline, 'GradScaler' in the candidate",
        ),
        (lambda f: f["loader"].update(sampler="SequentialSampler"), "loader.sampler"),
        (lambda f: f.pop("dropout"), "dropout"),
    ],
)
def test_each_change_is_found_and_named(change, path):
    found = fingerprint_differences(BASE, with_change(change))
    assert any(line.startswith(path) for line in found), found


def both(f):
    f["loader"]["batch_size"] = 128
    for group in f["optimizers"][0]["groups"]:
        group["lr"] *= 4


def test_what_a_knob_declares_may_differ_and_nothing_else():
    other = with_change(both)
    assert fingerprint_differences(BASE, other, ["batch_size", "optimizers.*.lr"]) == []
    assert fingerprint_differences(BASE, other, ["loader", "lr"]) == []
    left = fingerprint_differences(BASE, other, ["batch_size"])
    assert len(left) == 2
    assert all(".lr:" in line for line in left)
    assert len(fingerprint_differences(BASE, other, ["batch", "l", "optimizers.*.l"])) == 3


def test_a_schedule_over_the_length_of_the_loader_is_declared_by_the_batch_size() -> None:
    def settings(lr: float, momentum: float, decay: float = 0.01) -> dict[str, Any]:
        group = {"lr": lr, "betas": [momentum, 0.999], "weight_decay": decay}
        return {"optimizers": [{"name": "AdamW", "groups": [group]}]}

    declared = create("batch_size").declares
    one, two = settings(4.0106e-5, 0.95), settings(4.0427e-5, 0.9498)
    assert fingerprint_differences(one, two, declared) == []
    other = settings(4.0427e-5, 0.9498, decay=0.1)
    assert len(fingerprint_differences(one, other, declared)) == 1
