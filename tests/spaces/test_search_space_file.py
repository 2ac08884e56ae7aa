"""What ``search_space`` may contain, and the message for each mistake."""

from __future__ import annotations

import json

import pytest
import yaml

from autotune_spaces.base import Scope
from autotune_spaces.knobs import get, names
from autotune_spaces.space import SpaceError, load_preset, load_space, preset_names

COMMAND = ("python", "train.py", "--dtype", "float32", "--width={width}")


def space(text: str, command=COMMAND):  # type: ignore[no-untyped-def]
    return load_space(yaml.safe_load(text), command=command)


def knob(text: str, name: str):  # type: ignore[no-untyped-def]
    return next(k for k in space(text).knobs if k.name == name)


def test_the_presets() -> None:
    assert set(preset_names()) == {"auto", "cpu", "cuda", "quick", "thorough", "loader"}
    assert preset_names()[0] == "auto"
    for name in preset_names():
        knobs = load_space(name).knobs
        assert {k.name for k in knobs} == set(load_preset(name).knobs)
        assert ("batch_size" in {k.name for k in knobs}) == (name == "thorough")
        assert load_preset(name).description.endswith(".")
    assert {k.name for k in load_space("thorough").knobs} == set(names())
    assert all(k.scope is Scope.LIVE for k in load_space("quick").knobs)


def test_nothing_means_auto() -> None:
    assert load_space(None).preset == "auto"


def test_preset_with_changes() -> None:
    found = space(
        "{preset: auto, exclude: [compile_mode], num_workers: [0, 4, 8], batch_size: auto}"
    )
    have = [k.name for k in found.knobs]
    assert found.preset == "auto"
    assert "compile_mode" not in have
    assert "batch_size" in have
    assert found.knobs[have.index("num_workers")].values == (0, 4, 8)
    assert have == [n for n in names() if n in have], "in the registry's order"


def test_mapping_of_knobs() -> None:
    found = space(
        "{num_workers: [0, 2, 4], batch_size: {values: [32, 64], lr_scaling: sqrt}, amp_dtype:"
        " auto, prefetch_factor: }"
    )
    assert found.preset == "custom"
    assert [k.name for k in found.knobs] == [
        "num_workers",
        "prefetch_factor",
        "batch_size",
        "amp_dtype",
    ]
    assert found.knobs[2].options == {"lr_scaling": "sqrt"}
    assert found.knobs[2].values == (32, 64)
    assert found.knobs[3].values is None


def test_yaml_reads_off_as_false() -> None:
    assert "compile_mode" not in {k.name for k in space("{preset: auto, compile_mode: off}").knobs}
    assert "compile_mode" not in {
        k.name for k in space("{preset: auto, compile_mode: 'off'}").knobs
    }
    assert knob("{compile_mode: [off, default]}", "compile_mode").values == ("off", "default")
    assert knob("{amp_dtype: [no, bfloat16]}", "amp_dtype").values == ("off", "bfloat16")
    assert knob("{persistent_workers: [off, on]}", "persistent_workers").values == (False, True)


def test_one_value() -> None:
    assert knob("{amp_dtype: bfloat16}", "amp_dtype").values == ("bfloat16",)
    assert knob("{num_workers: 0}", "num_workers").values == (0,)
    assert knob("{pin_memory: true}", "pin_memory").values == (True,)


MISTAKES = [
    ("atuo", (), "auto"),
    ("{preset: thorogh}", ("preset",), "thorough"),
    ("{preset: auto, num_worker: [1]}", ("num_worker",), "num_workers"),
    ("{preset: auto, exclude: [compile_mod]}", ("exclude", 0), "compile_mode"),
    ("{preset: auto, exclude: 3}", ("exclude",), ""),
    ("{exclude: [num_workers]}", ("exclude",), ""),
    ("{num_workers: [0, two]}", ("num_workers", 1), ""),
    ("{num_workers: many}", ("num_workers",), ""),
    ("{num_workers: []}", ("num_workers",), ""),
    ("{amp_dtype: [off, bfloat61]}", ("amp_dtype", 1), "bfloat16"),
    ("{amp_dtype: {values: [float32]}}", ("amp_dtype", "values", 0), "float16"),
    ("{batch_size: {values: [32], lr_scalng: sqrt}}", ("batch_size", "lr_scalng"), "lr_scaling"),
    ("{batch_size: {values: [32], lr_scaling: squirt}}", ("batch_size", "lr_scaling"), "sqrt"),
    ("{batch_size: {values: 32}}", ("batch_size", "values"), ""),
    ("{num_workers: off}", (), ""),
    ("{num_workers: {via: '--w {}', values: [1]}}", ("num_workers", "via"), ""),
    ("{3: [1]}", (3,), ""),
    ("[num_workers]", (), ""),
    ("{}", (), ""),
    ("{dtype: {via: '--dtype {}'}}", ("dtype",), ""),
    ("{dtype: {via: '--dtype {}', values: [on, off]}}", ("dtype", "values", 0), ""),
    (
        "{dtype: {via: '--dtype {}', values: [a, b], numerics: rouding}}",
        ("dtype", "numerics"),
        "rounding",
    ),
    ("{dtype: {via: '--dtype {} {}', values: [a]}}", ("dtype", "via"), ""),
    ("{dtype: {via: 'env A B', values: [a]}}", ("dtype", "via"), ""),
    ("{dtype: {via: '--dtype \"{}', values: [a]}}", ("dtype", "via"), ""),
    ("{lr: {via: '--lr {}', values: [a]}}", ("lr",), ""),
    ("{dtype: {via: '--dtype {}', value: [a]}}", ("dtype", "value"), "values"),
    ("{attention: {via: '--attention', values: [a]}}", ("attention", "values", 0), ""),
]


@pytest.mark.parametrize(("text", "path", "nearest"), MISTAKES)
def test_mistakes_are_placed_and_named(text: str, path: tuple, nearest: str) -> None:
    with pytest.raises(SpaceError) as caught:
        space(text)
    error = caught.value
    assert error.path == path
    assert error.nearest == nearest
    assert error.found
    assert error.expected


def test_the_mistakes_of_all_knobs_are_named_at_once() -> None:
    with pytest.raises(SpaceError) as caught:
        space("{preset: auto, batch_size: [0], num_worker: [1], gc: auto, amp_dtype: [bf16]}")
    assert {e.path for e in caught.value.each()} == {
        ("batch_size", 0),
        ("num_worker",),
        ("amp_dtype", 0),
    }


def test_via_in_a_search_space() -> None:
    dtype = knob(
        "{preset: quick, dtype: {via: '--dtype {}', values: [float32, bfloat16], numerics:"
        " rounding}}",
        "dtype",
    )
    assert dtype.scope is Scope.PROCESS
    assert dtype.options == {"via": "--dtype {}", "default": "float32", "numerics": "rounding"}, (
        "found in the command"
    )
    (found,) = load_space(
        {"lr": {"via": "--lr {}", "values": [1e-3, 3e-3]}}, command=("t.py", "--lr", "1e-3")
    ).knobs
    assert found.values == (0.001, 0.003), "the job's own value, spelled differently"
    width = knob("{width: {values: [32, 64], default: 64}}", "width")
    assert width.numerics.value == "statistical", "the safest unless declared"
    json.dumps(dict(width.options))


@pytest.mark.parametrize("shell", [("/bin/sh", "-c"), ("env", "bash", "-lc")])
def test_no_flag_can_be_added_to_a_shell_line(shell: tuple[str, ...]) -> None:
    with pytest.raises(SpaceError, match="shell") as caught:
        space(
            "{dtype: {via: '--dtype {}', values: [a], default: a}}", (*shell, "cd x && python t.py")
        )
    assert caught.value.path == ("dtype", "via")


def test_user_knobs_do_not_leak_into_the_registry() -> None:
    with pytest.raises(KeyError):
        get("dtype")
