"""The user's own knobs: the value reaches the program as one argument, whatever it contains."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import CPU, JOB

from autotune_spaces.base import NotApplicable, Numerics
from autotune_spaces.knobs import create
from autotune_spaces.knobs.via import ViaKnob
from autotune_spaces.shell_line import shell_line
from autotune_spaces.space import command_line

ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('DTYPE')]))"


def via(template: str, **options):  # type: ignore[no-untyped-def]
    return ViaKnob("dtype", ("a", "b"), {"via": template, "default": "a", **options})


@pytest.mark.parametrize(
    ("template", "argv", "expected"),
    [
        ("--dtype {}", "t.py", "t.py --dtype b"),
        ("--dtype {}", "t.py --dtype a --x 1", "t.py --dtype b --x 1"),
        ("--dtype {}", "t.py --dtype=a --x 1", "t.py --dtype b --x 1"),
        ("--dtype={}", "t.py --dtype a --x 1", "t.py --dtype=b --x 1"),
        ("--dtype={}", "t.py --dtype=a", "t.py --dtype=b"),
        # the last occurrence counts
        ("--dtype {}", "run --dtype 1 t.py --dtype a", "run --dtype 1 t.py --dtype b"),
        ("-d {}", "t.py -d a", "t.py -d b"),
        ("--dtype {}", "t.py --dtypes a", "t.py --dtypes a --dtype b"),
        ("--dtype {}", "t.py --dtype", "t.py --dtype --dtype b"),
        ("model.width={}", "t.py model.width=a seed=1", "t.py model.width=b seed=1"),
        ("--set lr {}", "t.py --set wd 1 --set lr a", "t.py --set wd 1 --set lr b"),
        ("--opt lr={}", "t.py --opt wd=1 --opt lr=a", "t.py --opt wd=1 --opt lr=b"),
        ("--opt lr={}", "t.py --opt wd=1", "t.py --opt wd=1 --opt lr=b"),
        ("--mem={}GB", "t.py --mem aGB", "t.py --mem=bGB"),
    ],
)
def test_on_the_command_line(template: str, argv: str, expected: str) -> None:
    knob = via(template)
    assert knob.command(argv.split(), "b") == expected.split()
    assert knob.command(expected.split(), "b") == expected.split(), "twice is once"
    assert knob.value_in(expected.split()) == "b"


@pytest.mark.parametrize(
    ("template", "argv", "value"),
    [
        ("--mem={}GB", "t.py --mem 4GB", "4"),
        ("--mem={}GB", "t.py --mem=4GB", "4"),
        ("--mem {}", "t.py --mem=4", "4"),
        ("--mem {}", "t.py --memory 4", None),
    ],
)
def test_the_jobs_own_value_is_read(template: str, argv: str, value: str | None) -> None:
    assert via(template).value_in(argv.split()) == value


def test_a_switch_is_there_or_not() -> None:
    knob = create("tf32", {"via": "--tf32", "default": False})
    assert knob.command(["t.py", "--x"], True) == ["t.py", "--x", "--tf32"]
    assert knob.command(["t.py", "--tf32", "--x"], True) == ["t.py", "--x", "--tf32"]
    assert knob.command(["t.py", "--tf32", "--x"], False) == ["t.py", "--x"]
    assert knob.check_value("on") is not None
    assert knob.domain(CPU, JOB).values == (False, True)


def test_in_the_environment() -> None:
    knob = via("env DTYPE")
    assert knob.environment("b") == {"DTYPE": "b"}
    assert knob.command(["t.py"], "b") == ["t.py"]


def test_a_placeholder_is_always_filled() -> None:
    knob = via("")
    argv = ["t.py", "--d={dtype}", "{other}"]
    assert command_line(argv, [knob], {}) == ["t.py", "--d=a", "{other}"], (
        "the baseline has the job's own value"
    )
    assert command_line(argv, [knob], {"dtype": "b"}) == ["t.py", "--d=b", "{other}"]


def test_a_placeholder_in_a_shell_line_stays_text() -> None:
    """Also where the user has quoted it."""
    text = """x'y"; echo $HOME `id` \\ """
    argv = ["env", "sh", "-ec", """printf '%s|' {dtype} "{dtype}" '{dtype}' # it's {dtype}\n"""]
    argv[-1] += 'printf "%s|" \'a {dtype}\' {dtype}"${dtype}"'
    out = subprocess.run(via("").command(argv, text), capture_output=True, text=True, timeout=60)
    assert out.stdout == "|".join([*[text] * 3, f"a {text}", text, ""])


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("sh -c L", 2),
        ("/bin/bash -lc L name", 2),
        ("bash -e -c L", 3),
        ("bash -euo pipefail -c -- L", 5),
        ("env A=1 bash -c L", 4),
        ("conda run -n x --no-capture-output bash -c L", 7),
        ("timeout 60 nice -n 5 sh -ec L", 7),
        ("bash train.sh -c L", None),
        ("bash -c", None),
        ("python -c L", None),
        ("env python t.py --by bash -c L", None),
    ],
)
def test_the_line_that_a_shell_reads(command: str, line: int | None) -> None:
    assert shell_line(command.split()) == line


@pytest.mark.parametrize(
    "text", ["b; touch x", "$(id)", "a b", "'", '"', "-x", "", "=", "{}", "ü\n"]
)
def test_no_shell_ever_reads_the_value(text: str) -> None:
    import json

    flag, variable = via("--dtype {}"), via("env DTYPE")
    line = flag.command([sys.executable, "-c", ECHO, "--dtype", "a"], text)
    done = subprocess.run(
        line,
        env={**os.environ, **variable.environment(text)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == [["--dtype", text], text]


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.lists(st.sampled_from(["--dtype", "--x", "--dtype=q", "v"]), max_size=6),
)
def test_value_comes_back_out_of_the_command(value: str, argv: list[str]) -> None:
    for template in ("--dtype {}", "--dtype={}"):
        knob = via(template)
        once = knob.command(argv, value)
        assert knob.command(once, value) == once
        assert once[: len(argv)] == argv or len(once) <= len(argv) + 1


def test_numerics_are_the_safest_unless_declared() -> None:
    assert via("--dtype {}").numerics is Numerics.STATISTICAL
    assert via("--dtype {}", numerics="exact").numerics is Numerics.EXACT


def test_survives_the_launch_config() -> None:
    knob = via("--dtype {}", numerics="rounding")
    again = create(knob.name, knob.options)
    assert again.command(["t.py"], "b") == ["t.py", "--dtype", "b"]
    assert again.numerics is Numerics.ROUNDING


@pytest.mark.parametrize(
    "template", ["dtype", "{}", "--a {} {}", "--a {} b", "env", "env 1X", "env A B", "--a '{}"]
)
def test_templates_that_make_no_sense(template: str) -> None:
    with pytest.raises(ValueError):
        via(template)


def test_a_flag_that_may_change_the_batch_needs_samples_that_can_be_counted() -> None:
    """Otherwise a smaller batch would look faster by the iteration."""
    uncounted = replace(JOB, sample_unit="iterations")
    with pytest.raises(NotApplicable, match="samples of this job cannot be counted"):
        via("--batch {}").candidates(CPU, uncounted)
    via("--batch {}").candidates(CPU, JOB)
    via("--dtype {}", numerics="rounding").candidates(CPU, uncounted)
