"""tuned.yaml: a job with the settings proven for it, and the provenance of the proof.

It contains no secrets. A variable that looks like one is listed by name under ``env_from_launch``
and taken from the environment at launch; its value in the command is replaced by ``${NAME}``, in a
shell line by what its shell expands.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.job.package import shipped_with_job
from autotune.job.spec import JobSpec
from autotune.job.yaml_text import Inline, yaml_block
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
    url_secrets,
)
from autotune.words import clean
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
SPEED_VARIABLES = re.compile(
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
    # speed_variables() of the tuner's environment; None: unknown
    environment: Mapping[str, str] | None = None
    footprint: Footprint = Footprint()
    compile_cache: CompileCache = CompileCache()  # beside this file
    sites: JobSites = JobSites()  # where in the job's source the settings belong

    @property
    def gain(self) -> str:
        """``1.50x faster (1.40 to 1.60)``; "" if nothing was gained."""
        if self.speedup is None:
            return ""
        said = self.reason.partition(",")[0]
        better = said if said in BETTER.values() else BETTER["throughput"]
        it = self.speedup
        return f"{it.estimate:.2f}x {better} ({it.low:.2f} to {it.high:.2f})"


@dataclass(frozen=True)
class TunedConfig:
    name: str
    command: tuple[str, ...]
    workdir: Path  # absolute
    env: Mapping[str, str] = field(default_factory=dict)
    env_from_launch: tuple[str, ...] = ()
    knobs: Mapping[str, TunedKnob] = field(default_factory=dict)
    provenance: Provenance = Provenance()


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
        environment=speed_variables(os.environ) if spec.executor.kind == "local" else None,
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


def speed_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables in ``env`` that affect a job's speed, without secrets."""
    return {
        name: value
        for name, value in sorted(env.items())
        if SPEED_VARIABLES.fullmatch(name) and not is_secret(name) and mask_url(value) == value
    }


def _fingerprint(machine: Machine) -> dict[str, Any]:
    facts = encode(replace(machine, memory_gib=round(machine.memory_gib, 2)))
    return {name: facts[name] for name in FINGERPRINT if facts[name] not in ("", 0, 0.0, [])}


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
    for index, word in enumerate(words):
        for value, pattern in url_secrets(word):
            name = free_name("URL_SECRET", value, {**env, **secrets})
            secrets[name] = value
            if index == line:
                words[index] = expanding(words[index], pattern, name)
            else:
                words[index] = re.sub(pattern, f"${{{name}}}", words[index])
    return {n: v for n, v in env.items() if n not in secrets}, tuple(words), tuple(sorted(secrets))


# -- text ------------------------------------------------------------------------------------------


def write_tuned(tuned: TunedConfig, path: Path) -> None:
    """Write tuned.yaml (write, flush, rename)."""
    publish(path, to_yaml(tuned))


def embedded_yaml(tuned: TunedConfig) -> str:
    """The text of tuned.yaml for embedding, without what `launch` can do without: the compile cache
    (a separate file), and the sites, which may be longer than a variable of the environment.
    """
    launched = replace(tuned.provenance, compile_cache=CompileCache(), sites=JobSites())
    return to_yaml(replace(tuned, provenance=launched))


def to_yaml(tuned: TunedConfig) -> str:
    """The text of tuned.yaml; deterministic, so that two files can be compared line by line."""
    p = tuned.provenance
    parts = [f"# {line}" for line in _headline(tuned)]
    parts += [
        "#     autotune launch tuned.yaml                     run the job with these settings",
        "#     autotune export tuned.yaml --format diff       a patch that writes them into your own"
        " source instead",
        yaml_block({"schema_version": TUNED_SCHEMA_VERSION, "name": tuned.name}),
        "",
        yaml_block({"command": list(tuned.command)}),
    ]
    if not tuned.workdir.is_absolute():
        parts += ["# Relative to this file: put it next to the job file."]
    parts += [yaml_block({"workdir": str(tuned.workdir), "env": dict(tuned.env)})]
    if tuned.env_from_launch:
        parts += [
            "",
            "# These look like secrets. Their values are not kept here: set them where you launch.",
            yaml_block({"env_from_launch": list(tuned.env_from_launch)}),
        ]
    parts += [
        "",
        "# value: what to use; was: the job's own; gain: of this knob alone"
        if tuned.knobs
        else "# Nothing to change: the job runs as it is.",
        "knobs:" if tuned.knobs else "knobs: {}",
    ]
    for name, knob in tuned.knobs.items():
        said: dict[str, Any] = {"value": knob.value, "was": knob.was}
        if knob.gain:
            said["gain"] = _interval(knob.gain)
        if knob.options:
            said["options"] = dict(knob.options)
        parts += [yaml_block({name: said}, 2)]
        if name in knob_registry.names():
            remark = knob_registry.get(name).remark(knob.value, knob.was)
            if remark:
                parts += [f"    # {remark}"]
    parts += [
        "",
        "# Where these settings come from. They hold for this machine and this software.",
        "provenance:",
    ]
    plain = "created autotune verdict reason loss loss_reason run_dir job_device loader_key".split()
    record: dict[str, Any] = {name: getattr(p, name) for name in plain}
    if p.speedup:
        record["speedup"] = _interval(p.speedup)
    record["machine"] = dict(p.machine)
    if p.environment is not None:
        record["environment"] = dict(p.environment)
    parts += [yaml_block({**record, "footprint": encode(p.footprint)}, 2)]
    if p.compile_cache.file:
        parts += [
            "",
            "  # Compiled kernels: `autotune launch` uses them if hardware and software are the"
            " same.",
            yaml_block({"compile_cache": encode(p.compile_cache)}, 2),
        ]
    if p.sites != JobSites():
        parts += [
            "",
            "  # Where in the source: what `autotune export --format diff` looks for.",
            yaml_block({"sites": _without_defaults(p.sites)}, 2),
        ]
    return "\n".join(parts) + "\n"


def _headline(tuned: TunedConfig) -> list[str]:
    p = tuned.provenance
    if not tuned.knobs:
        return [
            f"{clean(tuned.name)}: keep your settings. Nothing was proven faster with the loss"
            " unchanged."
        ]
    gain = f"{p.gain}, " if p.gain else ""
    return [f"{clean(tuned.name)}: {gain}loss {p.loss or 'not checked'}."]


def _without_defaults(record: Any) -> Any:
    """A record as :func:`encode` writes it, without fields that have their default; what holds only
    scalars is for one line.
    """
    if isinstance(record, tuple):
        items = [_without_defaults(item) for item in record]
        return items if any(isinstance(item, (dict, list)) for item in items) else tuple(items)
    if not is_dataclass(record):
        return record
    told = {
        f.name: _without_defaults(value)
        for f in fields(record)
        if (value := getattr(record, f.name)) != f.default
    }
    flat = not any(isinstance(value, (dict, list, tuple)) for value in told.values())
    return Inline(told) if flat else told


def _interval(interval: Interval) -> Inline:
    return Inline({name: float(f"{figure:.6g}") for name, figure in encode(interval).items()})
