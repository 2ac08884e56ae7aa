"""Checks whether the settings of a tuned.yaml still fit the machine they are launched on.

Nothing here imports torch, which would cost every launch a second: the torch version is read from
its files, and GPUs are detected by their device files. MIG slices have none that name them: if a
variable shows one to the job, nvidia-smi is asked for its name.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.export.tuned import TunedConfig, speed_variables
from autotune_spaces import machine as machines
from autotune_spaces.base import Knob, NotApplicable, Start
from autotune_spaces.facts import (
    DdpFacts,
    JobFacts,
    LoaderFacts,
    Machine,
    ModelFacts,
    OptimizerFacts,
)
from autotune_spaces.knobs import create

PROBE_TIMEOUT_S = 20
UNKNOWN = "unknown"  # counts as there
MIG = " MIG "  # between the names of a card and its slice
_PROBE = """
import importlib.util, json, os, platform, sysconfig
places = [sysconfig.get_path("include", s) for s in (sysconfig.get_default_scheme(), "posix_prefix")]
found = {"python_version": platform.python_version(), "include": places}
spec = importlib.util.find_spec("torch")
if spec and spec.submodule_search_locations:
    names = {}
    with open(os.path.join(spec.submodule_search_locations[0], "version.py")) as file:
        exec(file.read(), names)
    found.update(torch_version=str(names.get("__version__", "")), cuda_version=names.get("cuda") or "", hip=names.get("hip") or "")
print(json.dumps(found))
"""
# Compared fields and their labels. Others (Python patch release, exact memory size) do not matter.
COMPARED = {
    "device_name": "device",
    "device_count": "devices",
    "cpu_model": "CPU",
    "cores": "cores",
    "torch_version": "torch",
    "cuda_version": "CUDA",
}
OF_GPUS = ("device_name", "device_count", "cuda_version")  # compared only if both jobs run on a GPU


def current(tuned: TunedConfig, env: Mapping[str, str]) -> Machine:
    """The machine as the job will see it; what only CUDA could tell is taken from ``tuned``."""
    # if unknown, assume a GPU that supports the knobs that depend on it
    capability = tuned.provenance.machine.get("compute_capability") or (8, 0)
    return here(tuned.command, env, tuned.workdir, tuple(capability))


def here(
    command: Sequence[str],
    env: Mapping[str, str],
    workdir: Path,
    capability: tuple[int, ...] = (8, 0),
) -> Machine:
    """This machine, with the software ``command`` uses. ``capability``: of its GPUs, if any."""
    model, flags = machines.cpu()
    software: dict[str, Any] = {}  # what is unknown counts as equal
    if program := interpreter(command, env, workdir):
        software = ask_python(program, _PROBE, env, workdir) or {}
    for_cpus = software.get("torch_version") and not (
        software.get("cuda_version") or software.get("hip")
    )
    names = [] if for_cpus else gpu_names(env)
    include = software.get("include", ())
    facts: dict[str, Any] = {}
    if names:
        facts = {
            "device_count": len(names),
            "compute_capability": capability,
            "device_memory_gib": 1024.0,
        }
    return Machine(
        cores=machines.cores(),
        memory_gib=machines.memory_gib(),
        shm_gib=machines.shm_gib(),
        available_gib=machines.available_gib(),
        device="cuda" if names else "cpu",
        device_name=(slice_name(env) or names[0]) if names else model,
        torch_version=software.get("torch_version", ""),
        python_version=software.get("python_version", ""),
        cpu_model=model,
        cpu_flags=flags,
        cuda_version=software.get("cuda_version", ""),
        cxx_compiler=machines.cxx_compiler(env, include) if software else UNKNOWN,
        c_compiler=machines.c_compiler(env, include) if software else UNKNOWN,
        **facts,
    )


def differences(tuned: TunedConfig, now: Machine, env: Mapping[str, str]) -> list[str]:
    """How this machine differs from the one tuned on, as text. ``env``: the job's variables."""
    found = []
    nodes = tuned.provenance.footprint.nodes
    if nodes > 1 and "PET_NNODES" not in env:  # torchrun's --nnodes
        found.append(f"tuned as one job across {nodes} nodes, started on this one only")
    on_gpu = tuned.provenance.job_device == "cuda"
    if on_gpu and now.device != "cuda":
        found.append("tuned on a GPU, none here")
    then = as_here(tuned.provenance.machine, now)
    unlike = compared(then, now, gpu=on_gpu and now.device == "cuda")
    return found + [f"{word}: {before} when tuned, {after} here" for word, before, after in unlike]


def other_variables(tuned: TunedConfig, env: Mapping[str, str]) -> list[str]:
    """Speed-relevant environment variables that differ from tuning time, as text.

    ``env``: the job's variables.
    """
    then = tuned.provenance.environment
    if then is None:
        return []
    now = speed_variables(env)
    names = [n for n in sorted({*then, *now}) if n not in tuned.env and then.get(n) != now.get(n)]
    return [
        f"{n}: {then.get(n, 'not set')} when tuned, {now.get(n, 'not set')} here" for n in names
    ]


def as_here(then: Mapping[str, Any], now: Machine) -> dict[str, Any]:
    """A machine described with CUDA, as :func:`here` describes ``now``: if that names a card, perhaps
    without knowing of a slice, then so.
    """
    name = str(then.get("device_name") or "")
    return {**then, "device_name": name if MIG in now.device_name else name.partition(MIG)[0]}


def compared(then: Mapping[str, Any], now: Machine, *, gpu: bool) -> list[tuple[str, Any, Any]]:
    """(label, before, now) of each difference that makes two machines' figures incomparable."""
    found = []
    for name, word in COMPARED.items():
        if name in OF_GPUS and not gpu:
            continue
        if name == "cores" and not now.python_version:
            continue  # the command starts python through something else, perhaps taskset
        before, after = then.get(name), getattr(now, name)
        if before and after and str(before) != str(after):
            found.append((word, before, after))
    return found


ANY_BATCH = 1 << 20  # samples; the imaginary data set has one more: its last batch is smaller


def obstacles(tuned: TunedConfig, now: Machine, env: Mapping[str, str]) -> dict[str, str]:
    """Knob -> why it cannot be applied here.

    Each knob is asked about an imaginary job that supports every setting. ``env``: the job's
    variables.
    """
    device = "cuda" if tuned.provenance.job_device == "cuda" and now.device == "cuda" else "cpu"
    willing = JobFacts(
        pid=0,
        device=device,
        loader=LoaderFacts(
            "", "", "", ANY_BATCH, 0, None, False, False, False, False, None, ANY_BATCH + 1, False
        ),
        optimizers=(OptimizerFacts("", "default", ("for-loop", "foreach", "fused"), (1.0,), 1),),
        models=(),
        ddp=(DdpFacts("", gradients_mib=math.inf, find_unused_parameters=True),),
        copy_share=1.0,
        device_memory_share=1.0,
        backend="nccl",
        attention=("flash", "efficient", "cudnn"),
    )
    found = {}
    start = Start(tuned.command, dict(env), str(tuned.workdir))
    for name, choice in tuned.knobs.items():
        knob: Knob = create(name, choice.options)
        varying = ModelFacts(
            "", 1, 1, repeated_blocks=2, input_shapes=2 if choice.value == "dynamic" else 1
        )
        willing = replace(willing, surveys={name: knob.survey(start)}, models=(varying,))
        try:
            knob.candidates(now, willing)
        except NotApplicable as reason:
            found[name] = str(reason)
            continue
        trouble = knob.unusable(choice.value, now, willing)
        if trouble:
            found[name] = trouble
    return found


def interpreter(command: Sequence[str], env: Mapping[str, str], workdir: Path) -> str:
    """The Python that will run the job; "" if unknown (a shell, ``uv run``, ``conda run``).

    It is the command itself, or the interpreter in its script's shebang (torchrun, accelerate).
    """
    program = _program(command[0], env, workdir)
    if re.fullmatch(r"(python|pypy)[\d.]*", Path(program).name):
        return program
    words = _shebang(program)
    if not words or "run" in command[1:2]:  # `conda run` etc.: the shebang is the tool's own Python
        return ""
    word = words[1] if Path(words[0]).name == "env" and len(words) == 2 else words[0]
    return _program(word, env, workdir) if re.search(r"python[\d.]*$", word) else ""


def _program(word: str, env: Mapping[str, str], workdir: Path) -> str:
    """The file that ``word`` refers to as a command; "" if there is none."""
    return str(workdir / word) if "/" in word else shutil.which(word, path=env.get("PATH")) or ""


def ask_python(program: str, code: str, env: Mapping[str, str], workdir: Path) -> Any:
    """The JSON that ``code`` prints as its last line in the Python ``program``; None: there is none.

    If that Python is broken, the job itself will report it.
    """
    try:
        answer = subprocess.run(
            [program, "-c", code],
            cwd=workdir,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
        )
        return json.loads(answer.stdout.decode().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None


def gpu_names(
    env: Mapping[str, str],
    devices: Path = Path("/dev"),
    driver: Path = Path("/proc/driver/nvidia/gpus"),
) -> list[str]:
    """Names of the GPUs the job will see ("" for a GPU known only by its
    device file, or among others of unlike names)."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (
        not visible.strip() or visible.strip().startswith("-") or visible == "NoDevFiles"
    ):
        return []
    files = [p for p in devices.glob("nvidia*") if p.name.removeprefix("nvidia").isdigit()] or [
        p for p in (devices / "dxg", devices / "kfd") if p.exists()
    ]
    names = (
        [_model(path) for path in sorted(driver.glob("*/information"))] if driver.is_dir() else []
    )
    if len(set(names)) > 1:  # which of them the job sees is known to CUDA alone
        names = []
    names = names[: len(files)] + [""] * (len(files) - len(names))
    return names[: len(visible.split(","))] if visible else names


def slice_name(env: Mapping[str, str]) -> str:
    """CUDA's name of the MIG slice that a variable shows to the job; "": it names none.

    CUDA_VISIBLE_DEVICES is set by a person, Slurm or Ray, NVIDIA_VISIBLE_DEVICES in a container.
    """
    words = [env.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")]
    uuid = next((w.partition(",")[0].strip() for w in words if w.startswith("MIG-")), "")
    card = ""
    for line in _listed(env).splitlines() if uuid else ():
        if found := re.match(r"GPU \d+: (.+) \(UUID: ", line):
            card = found[1]
        elif found := re.match(r"\s*MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line):
            if found[2].startswith(uuid):
                return f"{card}{MIG}{found[1]}"
    return ""


def _listed(env: Mapping[str, str]) -> str:
    """The GPUs and their slices, as nvidia-smi lists them."""
    try:
        return subprocess.run(
            ["nvidia-smi", "-L"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            text=True,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _model(path: Path) -> str:
    try:
        match = re.search(r"^Model:\s*(.+?)\s*$", path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return match[1] if match else ""


def _shebang(path: str) -> list[str]:
    """The words of a script's shebang line, [] if there is none."""
    try:
        with open(path, "rb") as file:
            line = file.readline(512)
    except OSError:
        return []
    return line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
