"""Describe this machine: :func:`probe` fills in :class:`~autotune_spaces.facts.Machine`.

Runs where the job runs, with the job's own torch. What cannot be read stays 0 or "".
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune_spaces.facts import Machine

FLAGS = frozenset(
    {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"}
)
GIB = 1024.0**3
CGROUP = Path("/sys/fs/cgroup")

_before_binding: frozenset[int] | None = None
_INCLUDE_SCHEMES = (sysconfig.get_default_scheme(), "posix_prefix")


def probe(device: Any = None, start_cuda: bool = True) -> Machine:
    """The machine this process runs on. Imports torch if installed.

    Args:
        device: the CUDA device used for training, as a torch.device; None: the current one.
        start_cuda: initialize CUDA if it is available, which takes time and memory. False: describe
            a GPU only if this process uses CUDA already.
    """
    model, flags = cpu()
    facts: dict[str, Any] = {
        "cores": cores(),
        "memory_gib": memory_gib(),
        "shm_gib": shm_gib(),
        "available_gib": available_gib(),
        "device": "cpu",
        "device_name": model,
        "torch_version": "",
        "python_version": platform.python_version(),
        "cpu_model": model,
        "cpu_flags": flags,
        "cxx_compiler": cxx_compiler(),
        "c_compiler": c_compiler(),
        "platform": platform.platform(),
    }
    try:
        import torch
    except ImportError:
        return Machine(**facts)
    facts["torch_version"] = str(torch.__version__)
    if torch.cuda.is_initialized() or (start_cuda and torch.cuda.is_available()):
        facts.update(_cuda(torch, device))
    return Machine(**facts)


def note_cpus() -> None:
    """Note the CPUs that this process may use, before OpenMP binds its main thread to one."""
    global _before_binding
    _before_binding = frozenset(os.sched_getaffinity(0))


def cpus() -> frozenset[int]:
    """The CPUs this process may use, by its affinity mask."""
    return _before_binding or frozenset(os.sched_getaffinity(0))


def cores() -> int:
    """Cores this process may use, by its affinity mask and its cgroup's CPU quota; at least 1."""
    quotas = (*map(_quota_v2, _cgroup_dirs("")), *map(_quota_v1, _cgroup_dirs("cpu")))
    return max(1, min([len(cpus()), *(int(quota) for quota in quotas if quota)]))


def memory_gib() -> float:
    """Memory this process may use: the machine's, limited by the cgroup's limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    files = [d / "memory.max" for d in _cgroup_dirs("")] + [
        d / "memory.limit_in_bytes" for d in _cgroup_dirs("memory")
    ]
    limits += [int(text) for text in map(_read, files) if text.isdigit()]
    return min(limits) / GIB


def available_gib() -> float:
    """Memory this process can still allocate without swapping or kills; 0 if the system does not
    say.
    """
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    free = [int(found[1]) * 1024] if found else []
    rooms = map(_cgroup_room, (*_cgroup_dirs(""), *_cgroup_dirs("memory")))
    return max(0, min([*free, *(room for room in rooms if room is not None)], default=0)) / GIB


def shm_gib() -> float:
    """Free space in /dev/shm; 0 if there is none."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0.0
    return stat.f_bavail * stat.f_frsize / GIB


def cpu() -> tuple[str, frozenset[str]]:
    """(model, the flags that knobs check)."""
    fields: dict[str, str] = {}
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if not line.strip() and fields:
            break  # the first core stands for all
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name") or fields.get("Model") or platform.machine()
    return model, FLAGS.intersection(fields.get("flags", fields.get("Features", "")).split())


def cxx_compiler(env: Mapping[str, str] | None = None, include: Sequence[str] | None = None) -> str:
    """Path of the C++ compiler that torch.compile would use on a CPU; "" if it could not build.

    Inductor uses CXX, else g++ (torch._inductor.config.cpp.cxx), and its kernels include Python.h.

    Args:
        env: the job's variables; None: this process's.
        include: where Python.h may be; None: where this Python has it; (): assume that it is there.
    """
    return _compiler("CXX", ("g++",), env, include)


def c_compiler(env: Mapping[str, str] | None = None, include: Sequence[str] | None = None) -> str:
    """Path of the C compiler that torch.compile would use on a GPU; "" if it could not build.

    Triton uses CC, else gcc or clang (triton/runtime/build.py), and its launchers include Python.h.
    Arguments as of :func:`cxx_compiler`.
    """
    return _compiler("CC", ("gcc", "clang"), env, include)


def _compiler(
    variable: str,
    names: tuple[str, ...],
    env: Mapping[str, str] | None,
    include: Sequence[str] | None,
) -> str:
    env = os.environ if env is None else env
    if include is None:  # as torch and Triton look for it; Debian's own scheme may have none
        include = [sysconfig.get_path("include", scheme) for scheme in _INCLUDE_SCHEMES]
    if include and not any(Path(place, "Python.h").is_file() for place in include):
        return ""
    if own := env.get(variable):
        names = (own,)
    found = (shutil.which(name, path=env.get("PATH")) for name in names)
    return next(filter(None, found), "")


def _cuda(torch: Any, device: Any) -> dict[str, Any]:
    index = torch.cuda.current_device() if device is None else device.index or 0
    properties = torch.cuda.get_device_properties(index)
    return {
        "device_index": index,
        "device": "cuda",
        "device_name": properties.name,
        "device_count": torch.cuda.device_count(),
        "device_memory_gib": properties.total_memory / GIB,
        "compute_capability": (properties.major, properties.minor),
        "cuda_version": torch.version.cuda or "",
        "cudnn_version": _cudnn(torch),
        "nccl_version": _nccl(torch),
    }


def _cudnn(torch: Any) -> int:
    try:
        return torch.backends.cudnn.version() or 0
    except RuntimeError:  # it does not suit every GPU or this torch; the job may not need it
        return 0


def _nccl(torch: Any) -> tuple[int, ...]:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_nccl_available()):
        return ()
    return tuple(torch.cuda.nccl.version()[:3])


def _cgroup_dirs(controller: str) -> list[Path]:
    """Directories of this process's cgroup and its visible parents; ``controller`` "" means cgroup
    version 2.
    """
    path = ""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, where = (line.split(":", 2) + ["", ""])[:3]
        if controller in controllers.split(","):
            path = where.strip("/")
            break
    root = CGROUP / controller
    here = root / path
    return [d for d in (here, *here.parents) if d.is_relative_to(root)]


def _cgroup_room(directory: Path) -> int | None:
    """Bytes left below this cgroup's limit. Its file cache counts as free, because the kernel
    reclaims it first.
    """
    limit = _read(directory / "memory.max") or _read(directory / "memory.limit_in_bytes")
    used = _read(directory / "memory.current") or _read(directory / "memory.usage_in_bytes")
    if not (limit.isdigit() and used.isdigit()):
        return None
    stat = _read(directory / "memory.stat")
    # version 1 has the figures of the whole hierarchy besides those of this directory
    total = "total_" if "total_active_file" in stat else ""
    cached = sum(map(int, re.findall(rf"^{total}(?:in)?active_file (\d+)$", stat, re.MULTILINE)))
    return int(limit) - int(used) + cached


def _quota_v2(directory: Path) -> float | None:
    quota, _, period = _read(directory / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(directory: Path) -> float | None:
    quota, period = _read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
