"""tuned.yaml: a job with the settings proven for it, and the provenance of the proof.

It contains no secrets. A variable that looks like one is listed by name under ``env_from_launch``
and taken from the environment at launch; its value in the command is replaced by ``${NAME}``, in a
shell line by what its shell expands.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.job.package import shipped_with_job
from autotune.job.spec import JobSpec
from autotune.objectives import BETTER
from autotune.results import CompileCache, Interval, Result
from autotune.secrets import (
    SHORTEST_IN_TEXT,
    free_name,
    hide_secret_flags,
    is_secret,
    mask_secrets,
    mask_url,
    secret_values,
    split_secret_flags,
)
from autotune_spaces import knobs as knob_registry
from autotune_spaces.base import Value
from autotune_spaces.codec import encode
from autotune_spaces.facts import Machine
from autotune_spaces.shell_line import expanding, shell_line
from autotune_spaces.sites import JobSites
from autotune_spaces.space import command_line
from autotune_trials.paths import publish

TUNED_SCHEMA_VERSION = 2  # 2: provenance has sites and footprint
FILE_NAME = "tuned.yaml"
# Fields of facts.Machine that decide whether the settings still fit.
FINGERPRINT = """
    device device_name device_count compute_capability cpu_model cores memory_gib torch_version
    cuda_version cudnn_version python_version platform
""".split()
# Environment variables that affect a job's speed and may differ between shells.
TELLING = re.compile(
    "OMP_NUM_THREADS|MKL_NUM_THREADS|LD_PRELOAD|NCCL_.*|PYTORCH(_CUDA)?_ALLOC_CONF|GLIBC_TUNABLES"
)


@dataclass(frozen=True)
class TunedKnob:
    value: Value
    was: Value = None  # the job's own value
    gain: Interval | None = None  # this knob's own gain, if it was measured
    # e.g. lr_scaling; via, for a knob of the job's own
    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Footprint:
    """What the job uses with its own settings, its memory also with the tuned ones; 0: unknown."""

    processes: int = 1  # training processes on all nodes
    num_workers: int = 0  # of the training DataLoader
    threads: int = 0  # compute threads per process
    host_memory_gib: float = 0.0  # peak of all processes together; known only for CPU jobs
    nodes: int = 1  # on which a cluster executor started the job


@dataclass(frozen=True)
class Provenance:
    """How the settings were found, for people and for comparison with the launching machine."""

    created: str = ""  # UTC, ISO 8601
    autotune: str = ""  # version
    verdict: str = ""  # "tuned", "keep-baseline"
    reason: str = ""
    speedup: Interval | None = None
    loss: str = ""  # "unchanged", "not-needed", …
    loss_reason: str = ""
    run_dir: str = ""
    job_device: str = "cpu"  # where the model was
    loader_key: str = ""  # which of the job's DataLoaders is tuned
    machine: Mapping[str, Any] = field(default_factory=dict)  # FINGERPRINT fields
    # telling() of the tuner's environment; None: unknown
    environment: Mapping[str, str] | None = None
    footprint: Footprint = Footprint()
    compile_cache: CompileCache = CompileCache()  # beside this file
    sites: JobSites = JobSites()  # where in the job's source the settings belong

    @property
    def better(self) -> str:
        """What the speed-up is of, in words."""
        said = self.reason.partition(",")[0]
        return said if said in BETTER.values() else BETTER["throughput"]


@dataclass(frozen=True)
class TunedConfig:
    name: str
    command: tuple[str, ...]
    workdir: Path  # absolute
    env: Mapping[str, str] = field(default_factory=dict)
    env_from_launch: tuple[str, ...] = ()
    knobs: Mapping[str, TunedKnob] = field(default_factory=dict)
    provenance: Provenance = Provenance()
    schema_version: int = TUNED_SCHEMA_VERSION


def build_tuned(result: Result, spec: JobSpec, run_dir: Path | None = None) -> TunedConfig:
    """The tuned.yaml of a finished run; with the verdict keep-baseline, the job as it is."""
    # Unchanged knobs are not in the file, so fill their placeholders with the job's own values now.
    unchanged = [k for k in spec.search_space.knobs if k.name not in result.knobs]
    env, command, secrets = _without_secrets(spec.env, command_line(spec.command, unchanged, {}))
    # a lower bound is no estimate with an interval
    gains = {g.knob: g.speedup for g in result.gains if g.kept and not g.at_least}
    own = {k.name: k for k in spec.search_space.knobs}
    knobs = {
        name: TunedKnob(
            value,
            result.baseline.get(name),
            gains.get(name),
            dict(own[name].options) if name in own else {},
        )
        for name, value in result.knobs.items()
    }
    observation = result.observation
    tuned = result.verdict == "tuned"
    provenance = Provenance(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        autotune=__version__,
        verdict=result.verdict,
        reason=result.reason,
        speedup=result.speedup if tuned else None,
        loss=result.loss.verdict,
        loss_reason=result.loss.reason,
        run_dir="" if run_dir is None else str(run_dir),
        job_device=observation.job.device,
        loader_key=observation.job.loader.key if observation.job.loader else "",
        machine=_fingerprint(observation.machine),
        environment=telling(os.environ) if spec.executor.kind == "local" else None,
        footprint=_footprint(result, spec),
        compile_cache=result.compile_cache,
        sites=observation.job.sites,
    )
    return TunedConfig(spec.name, command, _workdir(spec), env, secrets, knobs, provenance)


def _workdir(spec: JobSpec) -> Path:
    """Where the job runs. Seen from its file if both were sent to a cluster, where they are not
    kept.
    """
    if spec.source is None or not shipped_with_job():
        return spec.workdir
    return Path(os.path.relpath(spec.workdir, spec.source.parent))


def telling(env: Mapping[str, str]) -> dict[str, str]:
    """The variables in ``env`` that affect a job's speed, without secrets."""
    return {
        name: value
        for name, value in sorted(env.items())
        if TELLING.fullmatch(name) and not is_secret(name) and mask_url(value) == value
    }


def _fingerprint(machine: Machine) -> dict[str, Any]:
    known = {
        name: value
        for name, value in encode(machine).items()
        if name in FINGERPRINT and value not in ("", 0, 0.0, [])
    }
    return {
        name: round(known[name], 2) if name == "memory_gib" else known[name]
        for name in FINGERPRINT
        if name in known
    }


def _footprint(result: Result, spec: JobSpec) -> Footprint:
    """The job's own footprint, with the larger memory of before and after tuning.

    Tuning may add workers, which need memory of their own.
    """
    observation, job = result.observation, result.observation.job
    tuned = result.confirmation.anatomy if result.knobs and result.confirmation else None
    seen_gib = [side.peak_memory_gib for side in (observation.anatomy, tuned) if side is not None]
    return Footprint(
        processes=job.world_size,
        num_workers=job.loader.num_workers if job.loader else 0,
        threads=job.intra_op_threads,
        host_memory_gib=round(max(seen_gib), 2) if job.device == "cpu" else 0.0,
        nodes=int(str(spec.executor.options.get("nodes_per_slot") or 1)),
    )


def _without_secrets(
    env: Mapping[str, str], command: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """The environment without secrets, the command with ``${NAME}`` in their place, their names."""
    texts = secret_values(env)
    secrets = {
        name: value
        for name, value in env.items()
        if is_secret(name) or mask_secrets(value, texts) != value
    }
    words = list(command)
    line = shell_line(words)  # its shell looks them up itself
    if line is not None:
        words[line], hidden = hide_secret_flags(words[line], env)
        secrets |= hidden
    for index, prefix, name in split_secret_flags(words):
        value = words[index].removeprefix(prefix)
        same = next((n for n, v in secrets.items() if v == value), None)
        name = same or free_name(name, value, {**env, **secrets})
        words[index] = f"{prefix}${{{name}}}"
        secrets[name] = value
    for name, value in secrets.items():
        if len(value) >= SHORTEST_IN_TEXT:
            if line is not None:
                words[line] = expanding(words[line], re.escape(value), name)
            words = [w.replace(value, f"${{{name}}}") for w in words]
    return {n: v for n, v in env.items() if n not in secrets}, tuple(words), tuple(sorted(secrets))


# -- text ------------------------------------------------------------------------------------------


def write_tuned(tuned: TunedConfig, path: Path) -> None:
    """Write tuned.yaml (write, flush, rename)."""
    publish(path, to_yaml(tuned))


def embedded_yaml(tuned: TunedConfig) -> str:
    """The text of tuned.yaml for embedding, without the compile cache (a separate file)."""
    return to_yaml(
        replace(tuned, provenance=replace(tuned.provenance, compile_cache=CompileCache()))
    )


def to_yaml(tuned: TunedConfig) -> str:
    """The text of tuned.yaml; deterministic, so that two files can be compared line by line."""
    p = tuned.provenance
    lines = [f"# {line}" for line in _headline(tuned)]
    lines += [
        "#     autotune launch tuned.yaml                     run the job with these settings",
        (
            "#     autotune export tuned.yaml --format diff       a patch that writes them into"
            " your own source instead"
        ),
        f"schema_version: {tuned.schema_version}",
        f"name: {_scalar(tuned.name)}",
        "",
        "command:",
    ]
    lines += [f"  - {_scalar(word)}" for word in tuned.command]
    if not tuned.workdir.is_absolute():
        lines += ["# Seen from this file: put it beside the job file."]
    lines += [f"workdir: {_scalar(str(tuned.workdir))}"]
    lines += _mapping("env", tuned.env)
    if tuned.env_from_launch:
        lines += [
            "",
            "# These look like secrets. Their values are not kept here: set them where you launch.",
        ]
        lines += ["env_from_launch:", *(f"  - {_scalar(name)}" for name in tuned.env_from_launch)]
    lines += [
        "",
        (
            "# value: what to use; was: the job's own; gain: of this knob alone"
            if tuned.knobs
            else "# Nothing to change: the job runs as it is."
        ),
        "knobs:" if tuned.knobs else "knobs: {}",
    ]
    for name, knob in tuned.knobs.items():
        lines += [
            f"  {_scalar(name)}:",
            f"    value: {_scalar(knob.value)}",
            f"    was: {_scalar(knob.was)}",
        ]
        lines += [f"    gain: {_interval(knob.gain)}"] if knob.gain else []
        remark = (
            knob_registry.get(name).remark(knob.value, knob.was)
            if name in knob_registry.names()
            else ""
        )
        lines += [f"    # {remark}"] if remark else []
        lines += _mapping("options", knob.options, "    ") if knob.options else []
    lines += [
        "",
        "# Where these settings come from. They hold for this machine and this software.",
        "provenance:",
    ]
    for name in ("created", "autotune", "verdict", "reason"):
        lines += [f"  {name}: {_scalar(getattr(p, name))}"]
    lines += [f"  speedup: {_interval(p.speedup)}"] if p.speedup else []
    for name in ("loss", "loss_reason", "run_dir", "job_device", "loader_key"):
        lines += [f"  {name}: {_scalar(getattr(p, name))}"]
    lines += _mapping("machine", p.machine, "  ")
    if p.environment is not None:
        lines += _mapping("environment", p.environment, "  ")
    lines += _mapping("footprint", encode(p.footprint), "  ")
    if p.compile_cache.file:
        lines += [
            "",
            (
                "  # Compiled kernels: `autotune launch` uses them if hardware and software are the"
                " same."
            ),
        ]
        lines += _mapping("compile_cache", encode(p.compile_cache), "  ")
    if p.sites != JobSites():
        lines += [
            "",
            "  # Where in the source: what `autotune export --format diff` looks for.",
            "  sites:",
            *_tree(_told(p.sites), "    "),
        ]
    return "\n".join(lines) + "\n"


def _headline(tuned: TunedConfig) -> list[str]:
    p = tuned.provenance
    if not tuned.knobs:
        return [
            f"{_one_line(tuned.name)}: keep your settings. Nothing was proven faster with the loss"
            " unchanged."
        ]
    gain = (
        f"{p.speedup.estimate:.2f}x {p.better} ({p.speedup.low:.2f} to {p.speedup.high:.2f}), "
        if p.speedup
        else ""
    )
    return [f"{_one_line(tuned.name)}: {gain}loss {p.loss or 'not checked'}."]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _mapping(key: str, values: Mapping[str, Any], indent: str = "") -> list[str]:
    if not values:
        return [f"{indent}{key}: {{}}"]
    return [
        f"{indent}{key}:",
        *(f"{indent}  {_scalar(name)}: {_scalar(value)}" for name, value in values.items()),
    ]


def _told(record: Any) -> Any:
    """A record as :func:`encode` writes it, without fields that have their default."""
    if isinstance(record, tuple):
        return [_told(item) for item in record]
    if not is_dataclass(record):
        return record
    return {
        f.name: _told(value)
        for f in fields(record)
        if (value := getattr(record, f.name)) != f.default
    }


def _tree(data: Mapping[str, Any], indent: str) -> list[str]:
    """Nested mappings as lines; a mapping of scalars goes on one line."""
    lines = []
    for key, value in data.items():
        items = value if isinstance(value, list) else [value]
        if not any(isinstance(item, dict) for item in items):
            lines.append(f"{indent}{key}: {_scalar(value)}")
        elif not isinstance(value, list):
            lines.append(f"{indent}{key}: {_flow(value)}" if _flat(value) else f"{indent}{key}:")
            lines += [] if _flat(value) else _tree(value, indent + "  ")
        else:
            lines.append(f"{indent}{key}:")
            for item in items:
                first, *rest = [_flow(item)] if _flat(item) else _tree(item, "")
                lines += [f"{indent}  - {first}", *(f"{indent}    {line}" for line in rest)]
    return lines


def _flat(data: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, (dict, list)) for value in data.values())


def _flow(data: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in data.items()) + "}"


def _interval(interval: Interval) -> str:
    figures = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
    return _flow({name: float(f"{figure:.6g}") for name, figure in figures.items()})


_BARE = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*")
# Words that some YAML reader does not read as text.
_SPECIAL = re.compile(r"true|false|null|yes|no|on|off|y|n|~|\.inf|\.nan|\.", re.IGNORECASE)


def _scalar(value: Any) -> str:
    """A scalar (or a list of them) that YAML 1.1 and 1.2 read alike."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_scalar(v) for v in value) + "]"
    if not isinstance(value, str):
        return _number(value) if isinstance(value, float) else json.dumps(value)
    if (
        _BARE.fullmatch(value)
        and not _SPECIAL.fullmatch(value)
        and not re.match(r"\.?\d|\.\.?$", value)
    ):
        return value
    text = json.dumps(value, ensure_ascii=False)
    # Escape what YAML does not allow literally, such as surrogates from undecodable file names.
    return "".join(
        c if c == " " or c.isprintable() and ord(c) < 0x10000 else _escaped(c) for c in text
    )


def _number(value: float) -> str:
    """A float with all its digits, as YAML 1.1 reads it.

    With an exponent it needs a decimal point; non-finite values have their own words.
    """
    if math.isfinite(value):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
    return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"


def _escaped(char: str) -> str:
    return f"\\U{ord(char):08x}" if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
