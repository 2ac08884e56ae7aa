"""The keys of job.yaml: their types, bounds, defaults and descriptions.

One set of models serves three readers: the validator, the JSON Schema for editors
(:func:`json_schema`), and the comments of ``autotune init``. Units are in the name or the
description of a key.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from autotune.errors import InputError
from autotune.job.mistakes import listing, nearest
from autotune.job.spec import EXECUTORS, MOST_MINUTES
from autotune.objectives import MOST, OBJECTIVES, WHOLE_TRAINING, Objective
from autotune.secrets import mask_url
from autotune.words import clean

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
RAY_ADDRESSES = ("auto", "local")
LAST_PORT = 65535
WORKDIRS = ("ship", "shared")
SEARCHES = ("model", "tpe", "random")
TRACES = ("none", "finalists", "all")


def wrong(found: str, expected: str, nearest: str = "", remedy: str = "") -> PydanticCustomError:
    """A validation error in our own words; :mod:`autotune.job.load` adds the place."""
    # pydantic cannot put bytes that are not text into a message
    said = found.encode("utf-8", "backslashreplace").decode()
    return PydanticCustomError(
        "autotune",
        "{found}",
        {"found": said, "expected": expected, "nearest": nearest, "remedy": remedy},
    )


def shown(value: object) -> str:
    """A value as quoted in an error message: spelled as in YAML, short, on one line."""
    if isinstance(value, str):
        text = f"'{mask_url(value)}'"
    elif value is None:
        text = "nothing"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, (int, float)):
        text = repr(value)
    else:
        text = "a list" if isinstance(value, (list, tuple)) else "a mapping"
    text = text.replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}…"


def _one_of(words: tuple[str, ...], what: str) -> Any:
    def check(value: object) -> object:
        if value not in words or not isinstance(value, str):
            raise wrong(f"{what} is {shown(value)}", listing(words), nearest(value, words))
        return value

    return BeforeValidator(check)


def _command(value: object) -> tuple[str, ...] | str:
    if isinstance(value, str):
        if not value.strip():
            raise wrong(
                "the command is empty", "what you type to start the job, such as: python train.py"
            )
        if "\0" in value:
            raise wrong("the command contains a NUL character", "text")
        return value
    if (
        isinstance(value, list)
        and value
        and all(isinstance(v, (str, int, float)) and not isinstance(v, bool) for v in value)
    ):
        if any("\0" in str(v) for v in value):
            raise wrong("the command contains a NUL character", "text")
        return tuple(str(v) for v in value)
    if isinstance(value, list) and any(isinstance(word, bool) for word in value):
        word = next(word for word in value if isinstance(word, bool))
        raise wrong(f"a word of the command is {shown(word)}", "text and numbers: put it in quotes")
    raise wrong(
        f"the command is {shown(value) if value else 'empty'}",
        "a line of text, or a list of words (text and numbers)",
    )


def _env_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise wrong(
            f"{shown(value)} cannot be the name of an environment variable", "letters, digits and _"
        )
    return value


def _env_value(value: object) -> str | int | float:
    if isinstance(value, bool):
        raise wrong(
            f"the value is {shown(value)}",
            "text or a number",
            remedy=f'write "{shown(value)}" or "1", with the quotes',
        )
    if not isinstance(value, (str, int, float)) or "\0" in str(value):
        raise wrong(f"the value is {shown(value)}", "text or a number")
    return value


def _search_space(value: object) -> str | dict[str, Any]:
    if isinstance(value, str) or (isinstance(value, dict) and value):
        return value
    raise wrong(f"search_space is {shown(value)}", "the name of a preset, or a mapping of knobs")


def _objectives(value: object) -> tuple[str, ...]:
    """The first objective decides; the figures of the second are only reported."""
    several: list[Any] = value if isinstance(value, list) else [value]
    for each in several:
        if each not in OBJECTIVES:
            raise wrong(
                f"objective is {shown(each)}", listing(OBJECTIVES), nearest(each, OBJECTIVES)
            )
    if not 1 <= len(several) <= MOST or len(set(several)) < len(several):
        raise wrong(f"objective lists {len(several)}", "one objective, or two different ones")
    if set(several) == set(WHOLE_TRAINING):
        raise wrong(
            f"objective names {' and '.join(several)}, which go together: cost is price times time",
            "one of them",
        )
    return tuple(several)


def _executor(value: object) -> object:
    """Convert a name, or a mapping from name to settings, to the fields of :class:`Executor`."""
    if isinstance(value, Executor):
        return value
    name = next(iter(value), None) if isinstance(value, dict) else value
    if (
        not isinstance(name, str)
        or name not in EXECUTORS
        or (isinstance(value, dict) and len(value) != 1)
    ):
        raise wrong(f"executor is {shown(name)}", listing(EXECUTORS), nearest(name, EXECUTORS))
    if name not in Executor.model_fields:
        if isinstance(value, dict):
            raise wrong(f"the {name} executor takes no settings", f"executor: {name}")
        return {"name": name}
    settings = value[name] if isinstance(value, dict) else None
    return {"name": name, name: {} if settings is None else settings}


def _address(value: object) -> str:
    expected = (
        "auto (the cluster of this machine), local (a new one on this machine), HOST:PORT or"
        f" ray://HOST:PORT, with a port of at most {LAST_PORT}"
    )
    if not isinstance(value, str) or not value:
        raise wrong(f"address is {shown(value)}", expected)
    found = re.fullmatch(r"(?:ray://)?(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})", value)
    if value in RAY_ADDRESSES or (found and 0 < int(found[1]) <= LAST_PORT):
        return value
    raise wrong(f"address is {shown(value)}", expected, nearest(value, RAY_ADDRESSES))


def _tolerance(value: object) -> float:
    expected = 'a share of the loss: "1%" or 0.01, above 0 and at most 20%'
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str) and (match := re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", value)):
        number = float(match[1]) / 100
    if number is None or not math.isfinite(number) or not 0 < number <= 0.2:
        raise wrong(f"tolerance is {shown(value)}", expected)
    return number


def _metric(value: object) -> object:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"pattern": value}
    if not isinstance(value, (dict, Metric)):
        raise wrong(
            f"a metric is {shown(value)}",
            "a regular expression with one group, or pattern and tolerance",
        )
    return value


def _pattern(value: str) -> str:
    expected = "a regular expression whose one group is the number: val_acc=([0-9.]+)"
    try:
        groups = re.compile(value).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise wrong(
            f"pattern {shown(value)} is not a regular expression: {error}", expected
        ) from None
    if value and groups != 1:
        raise wrong(f"pattern {shown(value)} has {groups} groups", expected)
    return value


def _uri(value: object) -> str | None:
    from autotune.tracking.stores import EXPECTED, resolve

    if value is None or value == "none":
        return None
    if not isinstance(value, str) or not value:
        raise wrong(f"uri is {shown(value)}", EXPECTED)
    if value != "auto":
        try:
            resolve(value)
        except InputError as error:
            found, remedy = clean(error.found, 200), clean(error.remedy, 200)
            raise wrong(f"uri: {found}", error.expected, remedy=remedy) from None
    return value


_EnvName = Annotated[str, PlainValidator(_env_name, json_schema_input_type=str)]
_EnvValue = Annotated[
    str | int | float, PlainValidator(_env_value, json_schema_input_type=str | int | float)
]


def _whole(value: object) -> object:
    """1e4, which YAML reads as a fraction, is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Whole = Annotated[int, BeforeValidator(_whole)]
_WholeOrNone = Annotated[int | None, BeforeValidator(_whole)]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, title=None
    )


class Constraints(_Model):
    """Limits no configuration may exceed."""

    device_memory_fraction: float = Field(
        0.9, gt=0, le=1, description="Share of the GPU's memory a configuration may use, 0 to 1."
    )
    host_memory_gib: float | None = Field(
        None,
        gt=0,
        description=(
            "Host memory that the whole job may use, in GiB; default: all that the machine has."
        ),
    )


class Metric(_Model):
    """One of your own metrics, held to the same rule."""

    pattern: Annotated[str, AfterValidator(_pattern)] = Field(
        "",
        description=(
            "Regular expression searched in each line of the job's output; its group is the number."
            " Default: the job calls autotune.metric(NAME, value)."
        ),
        examples=["val_acc=([0-9.]+)"],
    )
    tolerance: Annotated[
        float | None,
        PlainValidator(
            lambda value: None if value is None else _tolerance(value),
            json_schema_input_type=float | str | None,
        ),
    ] = Field(
        None, description="How far it may differ, as a share. Default: the tolerance of the loss."
    )


class Convergence(_Model):
    """How closely the loss curves must agree."""

    tolerance: Annotated[float, PlainValidator(_tolerance, json_schema_input_type=float | str)] = (
        Field(
            0.01,
            description="How far the loss may differ, as a share of it: 1% or 0.01.",
            examples=["1%"],
        )
    )
    steps: _Whole = Field(
        240,
        ge=40,
        le=100_000,
        description=(
            "Optimizer steps over which seeded runs are compared. Knobs that only change rounding"
            " need 60 (float16: 240), knobs that change the trajectory (batch_size, in_order, via:"
            " by default) 240."
        ),
    )
    metrics: dict[str, Annotated[Metric, BeforeValidator(_metric)]] = Field(
        default_factory=dict,
        description=(
            "Your own metrics, held to the same rule: for each, a name and a pattern for the"
            " job's output."
        ),
        examples=[{"val_acc": "val_acc=([0-9.]+)"}],
    )


class Budget(_Model):
    """How much the run may spend."""

    minutes: float = Field(
        20.0,
        gt=0,
        le=MOST_MINUTES,
        description=(
            "Wall time of the run, in minutes; it may take a tenth longer. A first proof (five"
            " pairs, their loss check, profiles) is always finished; on one machine, a run that"
            " needs more time says so before it searches (already after the job's first run, if"
            " that is a long one), and the time announced then replaces the limit. If the loss has"
            " changed, one knob is tried alone and one milder configuration is proven, even beyond"
            " the budget."
        ),
    )
    trials: _WholeOrNone = Field(
        None,
        ge=1,
        le=100_000,
        description=(
            "Maximum number of configurations to try in the search; default: as many as time"
            " allows and seem worth it."
        ),
    )


class Tracking(_Model):
    """Where the run is recorded in MLflow."""

    uri: Annotated[str | None, PlainValidator(_uri, json_schema_input_type=str | None)] = Field(
        "auto",
        description=(
            "auto (MLFLOW_TRACKING_URI if set, else sqlite next to the run directory), none,"
            " sqlite:///FILE.db (relative to this file), or a server's address."
        ),
        examples=["sqlite:///mlflow.db", "http://localhost:5000"],
    )
    experiment: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        None, description="MLflow experiment; default: the job's name."
    )


class SideEffects(_Model):
    """What happens to the files the job writes during trials."""

    put_back: bool = Field(
        True,
        description=(
            "After every trial, restore the files it changed and remove those it created; false"
            " leaves them as they are."
        ),
    )
    keep: list[Annotated[str, StringConstraints(min_length=1)]] = Field(
        default_factory=list,
        description=(
            "Files and directories the job may write during trials, relative to workdir, * and ?"
            " allowed: they are left alone."
        ),
        examples=[["data", "cache/*.npy"]],
    )


class Ray(_Model):
    """Where sessions run on a Ray cluster."""

    address: Annotated[str, PlainValidator(_address, json_schema_input_type=str)] = Field(
        "auto",
        description=(
            "auto: the cluster this machine belongs to; local: a new one on this machine;"
            " HOST:PORT; or ray://HOST:PORT."
        ),
        examples=["ray://head:10001"],
    )
    slots: _WholeOrNone = Field(
        None,
        ge=1,
        le=10_000,
        description=(
            "Maximum number of slots to use at once, each for one trial; default: all of them."
        ),
    )
    gpus_per_slot: _WholeOrNone = Field(
        None,
        ge=1,
        le=64,
        description=("GPUs per slot, with their share of the node's cores; default: a whole node."),
    )
    cpus_per_slot: _WholeOrNone = Field(
        None, ge=1, le=4096, description="Cores per slot; default: its share of the node."
    )
    nodes_per_slot: _WholeOrNone = Field(
        None,
        ge=1,
        le=10_000,
        description=(
            "Nodes per slot: a torchrun command runs on all of them as one job; default: 1."
        ),
    )
    resource: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = Field(
        None,
        description=(
            "Ray resource that marks nodes for tuning: a node has one slot per unit of it, and none"
            " without it."
        ),
    )
    workdir: Annotated[Literal["ship", "shared"], _one_of(WORKDIRS, "workdir")] = Field(
        "ship",
        description=(
            "ship: every slot gets its own copy of workdir; shared: it is at the same path on"
            " every node."
        ),
    )


class Executor(_Model):
    """Where the job runs."""

    name: SkipJsonSchema[str] = "local"
    ray: Ray | None = Field(None, description="On a Ray cluster.")


class JobFile(_Model):
    """A training job and how to tune it (autotune's job.yaml)."""

    model_config = ConfigDict(title="autotune job.yaml")

    name: Annotated[str, StringConstraints(pattern=NAME)] | None = Field(
        None,
        description=(
            "Names the run directory; letters, digits, dot, dash, underscore. Default: the file's"
            " name, or the folder's for job.yaml."
        ),
    )
    command: Annotated[
        tuple[str, ...] | str,
        PlainValidator(_command, json_schema_input_type=str | list[str | int | float]),
    ] = Field(
        description=(
            "What you type to start the job, as a line or a list. {seed} and {trial_dir} may be"
            " used in it."
        )
    )
    shell: bool = Field(False, description="Run the command line through /bin/sh -c.")
    workdir: str = Field(
        ".", min_length=1, description="Where the command is run, relative to this file."
    )
    env: dict[_EnvName, _EnvValue] = Field(
        default_factory=dict,
        description="Environment variables added for the job; text or numbers.",
    )
    search_space: Annotated[
        str | dict[str, Any],
        PlainValidator(_search_space, json_schema_input_type=str | dict[str, Any]),
    ] = Field(
        "auto",
        description=(
            "A preset (auto, cpu, cuda, quick, thorough, loader), or a mapping of knobs, optionally"
            " with 'preset'."
        ),
    )
    search: Annotated[Literal["model", "tpe", "random"], _one_of(SEARCHES, "search")] = Field(
        "model",
        description=(
            "model: a regression model learns about all knobs from every measured block. tpe,"
            " random: Optuna's samplers, one configuration after another."
        ),
    )
    objective: Annotated[
        tuple[str, ...],
        PlainValidator(_objectives, json_schema_input_type=Objective | list[Objective]),
    ] = Field(
        "throughput",
        validate_default=True,
        description=(
            "throughput: samples per second. time_to_train: the time for planned_steps, with"
            " start-up, compilation and evaluation. cost: the same, in money. energy: joules per"
            " sample, where the machine measures them. A list of two: the first decides, and the"
            " report shows which configurations no other beats in both."
        ),
    )
    price: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Price of this machine per hour, in any currency; for the objective cost.",
    )
    planned_steps: _Whole = Field(
        20_000,
        ge=1,
        le=10**12,
        description=(
            "Optimizer steps of a full training run: start-up cost is weighed against them, and the"
            " report says how long they take."
        ),
    )
    constraints: Constraints = Field(default_factory=lambda: Constraints())
    convergence: Convergence = Field(default_factory=lambda: Convergence())
    budget: Budget = Field(default_factory=lambda: Budget())
    executor: Annotated[
        Executor, BeforeValidator(_executor, json_schema_input_type=Literal[*EXECUTORS] | Executor)
    ] = Field(
        default_factory=lambda: Executor(),
        description=(
            "local: on this machine. ray, or ray with settings: on a Ray cluster, see docs/ray.md."
        ),
        examples=[{"ray": {"address": "auto"}}],
    )
    tracking: Tracking = Field(default_factory=lambda: Tracking())
    side_effects: SideEffects = Field(default_factory=lambda: SideEffects())
    traces: Annotated[Literal["none", "finalists", "all"], _one_of(TRACES, "traces")] = Field(
        "finalists",
        description=(
            "Profiler traces kept: none, of baseline and winner, or also of the trials, fastest"
            " first, as long as the budget lasts."
        ),
    )
    hang_timeout_s: float | None = Field(
        None,
        ge=1,
        le=86_400,
        description=(
            "Seconds without a finished iteration or evaluation batch after which the job counts as"
            " hung, even if it is busy. Default: 120, or three times the longest such time so far"
            " if that is more. If all its processes are idle, it counts as hung sooner: after 50"
            " times that time, but not before 15 s (60 s for the unchanged job)."
        ),
    )
    startup_timeout_s: float = Field(
        600.0, ge=1, le=86_400, description="Seconds allowed until the first optimizer step."
    )


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of job.yaml, for editors."""
    schema = JobFile.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
