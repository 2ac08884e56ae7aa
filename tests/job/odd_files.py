"""Files as written by a careless, unlucky or hostile person, and how reading them must end.

    bytes       anything
    mutated     a good file with something strange inserted at any position of its text
    replaced    a good file with any value at any place, or any key added anywhere

Nothing in a file is ever executed: every place that could name a program names one that creates a
canary.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from autotune.cli import main
from autotune.errors import AutotuneError, InputError

CANARY = "canary"
PATIENCE_S = 20.0  # for one file, on a busy machine
MANY = 400  # cases; smaller runs are deterministic
TOUCH = f"touch {CANARY}"

JOB: dict[str, Any] = {
    "name": "digits",
    "command": "python train.py --epochs 5 --width {width} --seed {seed}",
    "shell": False,
    "workdir": ".",
    "env": {"OMP_NUM_THREADS": 2, "HF_TOKEN": "hf_0123456789abcdef", "DATA": "~/data"},
    "search_space": {
        "preset": "quick",
        "num_workers": [0, 2],
        "batch_size": {"values": [32, 64], "lr_scaling": "sqrt"},
        "width": {"values": [8, 16], "default": 8, "numerics": "statistical"},
    },
    "objective": "throughput",
    "planned_steps": 20000,
    "constraints": {"device_memory_fraction": 0.9, "host_memory_gib": 16},
    "convergence": {
        "tolerance": "1%",
        "steps": 240,
        "metrics": {"val_acc": "val_acc=([0-9.]+)", "bleu": {"pattern": "", "tolerance": 0.02}},
    },
    "budget": {"minutes": 20, "trials": 60},
    "executor": "local",
    "tracking": {"uri": "sqlite:///mlflow.db", "experiment": "digits"},
    "side_effects": {"put_back": True, "keep": ["data", "cache/*.npy"]},
    "traces": "finalists",
    "hang_timeout_s": 120.0,
}
TUNED: dict[str, Any] = {
    "schema_version": 2,
    "name": "digits",
    "command": ["python", "train.py", "--token", "${HF_TOKEN}", "--out", "{trial_dir}"],
    "workdir": "/tmp",
    "env": {"OMP_NUM_THREADS": "2"},
    "env_from_launch": ["HF_TOKEN"],
    "knobs": {
        "num_workers": {"value": 2, "was": 0, "gain": {"estimate": 1.4, "low": 1.3, "high": 1.5}},
        "batch_size": {"value": 64, "was": 32, "options": {"lr_scaling": "sqrt"}},
        "amp_dtype": {"value": "bfloat16", "was": "off"},
        "dtype": {
            "value": "on",
            "was": "off",
            "options": {"via": "--dtype {}", "default": "off", "numerics": "rounding"},
        },
    },
    "provenance": {
        "created": "2026-11-21T10:00:00+00:00",
        "verdict": "tuned",
        "speedup": {"estimate": 1.5, "low": 1.4, "high": 1.6},
        "loss": "unchanged",
        "run_dir": "/tmp/run",
        "job_device": "cpu",
        "loader_key": "train.py:9#0",
        "machine": {"device": "cpu", "cores": 2},
        "footprint": {"processes": 1, "threads": 2, "host_memory_gib": 0.5},
    },
}

STRANGE = [
    f"!!python/object/apply:os.system ['{TOUCH}']",
    f"!!python/object/new:os.system ['{TOUCH}']",
    "!!python/name:os.system",
    "!!python/module:os",
    f"!!python/object/apply:subprocess.check_output [['touch', {CANARY}]]",
    "!!binary aGVsbG8=",
    "!!binary x",
    "!!bool maybe",
    "!!int x",
    "!!float x",
    "!!timestamp soon",
    "!!null x",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]",
    "!!str [a]",
    "!!map x",
    "!!seq {}",
    "!!merge x",
    "!local x",
    "!<x> y",
    "&a [*a]",
    "&a {<<: *a}",
    "*nothing",
    "<<: *a",
    "<<: x",
    "<<: [1]",
    "? [a, b]",
    "? {a: b}",
    "? !!binary aGk=",
    "- - - -",
    "--- x",
    "...",
    "%YAML 1.9",
    "%TAG ! !",
    "\x00",
    "\t",
    "\ufeff",
    "\x85",
    "\u2028",
    "\x07",
    '"\\ud800"',
    '"\\udc80"',
    '"\\U0010FFFF"',
    '"\\UFFFFFFFF"',
    '"\\0"',
    '"\\x00x"',
    "\\N{DASH}",
    "9" * 5000,
    "9" * 90,
    "0x" + "f" * 5000,
    "1e999",
    "-.inf",
    ".nan",
    "1" * 3000 + "x",
    "1_" * 50,
    "[" * 2000,
    "{a: " * 500,
    "- " * 2000,
    "? " * 500,
    "(" * 500,
    "a: &x [1]\nb: *x",
    "|\n  x",
    ">-\n  x",
    "'",
    '"',
    "\\",
    "#",
    ": ",
    ",",
    "{",
    "}",
    "[",
    "]",
    "@",
    "`",
    "%",
    "\r",
    "\r\n",
    "\n\n",
    "\n  ",
    "~",
    "no",
    "$(" + TOUCH + ")",
    "`" + TOUCH + "`",
    "; " + TOUCH,
    "| " + TOUCH,
    "&& " + TOUCH,
    "\n" + TOUCH,
    "${HOME}",
    "{seed}",
    "{nobody}",
    "../../../etc/passwd",
    "~nobody-at-all/x",
    "/" * 5000,
    "a" * 5000,
    "(a{65535}){65535}",
    "a{99999999999}",
    "(" * 300 + ")" * 300,
    "é漢😀",
    "</script><script>alert(1)</script>",
    "\x1b[31m",
]

words = st.one_of(
    st.sampled_from(STRANGE),
    st.text(max_size=20),
    st.text(alphabet="\x00\x85\u2028\ufeff\ud800\udc80 \n\t'\"{}[]:,#&*!|>%@`$;~-", max_size=12),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**120), 10**120),
    st.floats(),
    words,
    st.binary(max_size=8),
    st.dates(),
    st.datetimes(),
    st.sampled_from(
        [
            0,
            1,
            -1,
            10**18,
            2**63,
            1e-320,
            1e308,
            "auto",
            "off",
            "none",
            "values",
            "preset",
            "via",
            "1%",
            "-5%",
            "http://[",
            "sqlite:///",
            "sqlite:////\x00",
        ]
    ),
)
names = ["values", "preset", "default", "via", "env", "", "name", "<<", "="]
keys = st.one_of(
    words, st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(names)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


def cases(count: int) -> settings:
    checks = [
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ]
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count < MANY,
        suppress_health_check=checks,
    )


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in ``data``, including the whole."""
    yield at
    for key, value in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        yield from places(value, (*at, key))


def put(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    """``data`` with ``value`` at ``place``."""
    if not place:
        return value
    data = copy.deepcopy(data)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return data


def _text(data: Any) -> bytes:
    # Without tags: dates and bytes as a person would write them.
    return yaml.dump(data, Dumper=yaml.SafeDumper, sort_keys=False, width=100).encode(
        "utf-8", "surrogatepass"
    )


@st.composite
def replaced(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    place = draw(st.sampled_from(list(places(good))))
    data = put(good, place, draw(values))
    if draw(st.booleans()):
        inside = draw(
            st.sampled_from([p for p in places(data) if isinstance(at(data, p), dict)] or [None])
        )
        if inside is not None:
            data = put(data, (*inside, draw(keys)), draw(values))
    return _text(data)


def at(data: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        data = data[key]
    return data


@st.composite
def mutated(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    text = _text(good).decode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 5, 30])))
        text = text[:start] + draw(words) + text[end:]
    text = draw(
        st.sampled_from(
            [
                text,
                text,
                text,
                "\ufeff" + text,
                text.replace("\n", "\r\n"),
                text.replace("\n", "\r"),
            ]
        )
    )
    return text.encode("utf-8", "surrogatepass")


def files(good: dict[str, Any]) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.binary(max_size=300),
        mutated(good),
        mutated(good),
        replaced(good),
        replaced(good),
        replaced(good),
    )


@st.composite
def results(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """A result.json with random values at some places."""
    data, found = good, list(places(good))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(found))
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change removed it
            data = put(data, place, draw(values.filter(_is_json)))
    text = json.dumps(data)
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(text)))
        text = text[:cut] + draw(words) + text[cut + draw(st.integers(0, 5)) :]
    return text.encode("utf-8", "surrogatepass")


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


@contextlib.contextmanager
def refused_or_right(file: Path) -> Iterator[None]:
    """Either it works, or the error says what and where; soon, and nothing is executed."""
    started = time.monotonic()
    try:
        yield
    except AutotuneError as error:
        said = str(error)
        assert error.exit_code in (2, 3, 4)
        assert "Traceback" not in said
        if isinstance(error, InputError):
            assert error.where, f"no place: {said}"
        assert len(said) < 20_000, "an answer nobody reads"
    assert time.monotonic() - started < PATIENCE_S
    check_no_canary(file.parent)


def check_no_canary(folder: Path) -> None:
    assert not (folder / CANARY).exists() and not Path(CANARY).exists(), (
        "something in the file was carried out"
    )


def command_line(*arguments: str) -> tuple[int, str]:
    """(exit code, output) of a command that runs in this process, with streams as strict as
    Python's own.
    """
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors)
        for errors in ("strict", "backslashreplace")
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    said = ""
    for stream in (out, err):
        stream.flush()
        said += stream.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
    return code, said


def check_answered(file: Path, *arguments: str) -> None:
    """A command on an odd file ends with 0 or a documented code, and never with code 1 (a bug)."""
    started = time.monotonic()
    code, said = command_line(*arguments)
    assert code in (0, 2, 3, 4), said
    assert "Traceback" not in said and "unexpected" not in said.partition(": ")[0]
    assert time.monotonic() - started < PATIENCE_S
    check_no_canary(file.parent)
