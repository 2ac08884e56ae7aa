"""Which library allocates host memory, and whether it keeps freed memory."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune_spaces import glibc
from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Start, Value
from autotune_spaces.facts import JobFacts, Machine

PRELOAD, SETTINGS_VARIABLE = "LD_PRELOAD", "MALLOC_CONF"
# as torch.backends.xeon.run_cpu sets them
JEMALLOC_SETTINGS = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
# Most specific first: names installed by distributions, conda and source builds.
FILES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": (
        "libtcmalloc.so.4",
        "libtcmalloc.so",
        "libtcmalloc_minimal.so.4",
        "libtcmalloc_minimal.so",
    ),
}
# Environment variables for what glibc.Heap sets in a running process.
RETAINING = {
    "MALLOC_TRIM_THRESHOLD_": str(glibc.MOST_TRIM),
    "MALLOC_MMAP_THRESHOLD_": str(glibc.MOST_MMAP),
    "MALLOC_TOP_PAD_": str(glibc.MOST_PAD),
}
GLIBC_VARIABLES = (*RETAINING, "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")
NOT_RETAINED = (
    "the C library did not apply the settings: something drops the variables before the"
    " job starts, or the job sets its own"
)
WORDS = ("default", "retain", *FILES)
FOLDERS = ("/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", "/lib", "/lib64")
TO_INSTALL = (
    "apt-get install libjemalloc2 libtcmalloc-minimal4, or conda install -c conda-forge jemalloc"
    " gperftools"
)


class Malloc(Knob):
    name = "malloc"
    scope = Scope.PROCESS
    live_values = ("retain",)
    # once switched back, the baseline still gets blocks from memory that is free in the heap
    live_errs_against = True
    numerics = Numerics.EXACT
    example = "retain"
    allowed = WORDS
    range = "default, retain (CPU, glibc), jemalloc, tcmalloc (where installed)"
    looked_up = ("default", *FILES)  # the library's path, and what is already preloaded
    card = Card(
        what=(
            "Which allocator provides host memory. retain: glibc's own malloc, configured"
            " by three variables to keep freed memory; the search tries it in the running"
            " job, with mallopt. jemalloc, tcmalloc: that library, preloaded instead;"
            " jemalloc gets the settings of PyTorch's own CPU launcher, unless the job"
            " has its own (MALLOC_CONF)."
        ),
        when_it_helps=(
            "Training on a CPU, especially convolutions, and several threads that"
            " allocate and free tensors: freed memory is reused instead of being returned"
            " to the system and cleared page by page in every iteration."
        ),
        when_it_does_not=(
            "GPU training, whose tensors come from torch's own allocator. The job holds more"
            " memory: with retain, as much as its peak (except blocks of more than 32 MiB)."
        ),
        changes_loss="No.",
        source="https://man7.org/linux/man-pages/man3/mallopt.3.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return preloaded(job.own_settings.get(PRELOAD, "")) or "default"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        own = self.current(machine, job)
        if own not in WORDS:
            raise NotApplicable(f"the job already preloads {own}, another allocator")
        found = job.surveys.get(self.name) or {}
        usable = [word for word in WORDS if word == "default" or word in found]
        if job.device != "cpu" or self.unusable("retain", machine, job):
            usable = [word for word in usable if word != "retain"]
        if usable == ["default"] == [own]:
            raise NotApplicable(
                self.unusable("retain", machine, job)
                or f"neither jemalloc nor tcmalloc was found where the job runs ({TO_INSTALL})"
            )
        return usable

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if value == "retain" and (own := _own_variables(job)):
            return f"the job sets {', '.join(own)} itself"
        if value == "retain" and (other := preloaded(job.own_settings.get(PRELOAD, ""))):
            return f"the job preloads {other}, but retain is a setting of glibc's malloc"
        if value == "default" or value in (job.surveys.get(self.name) or {}):
            return None
        if value == "retain":
            return (
                "the C library where the job runs is not glibc, and neither jemalloc nor tcmalloc"
                f" was found ({TO_INSTALL})"
            )
        return f"lib{value} was not found where the job runs ({TO_INSTALL})"

    def survey(self, start: Start) -> Any:
        """What is available: value -> the library's file, or glibc's version for retain."""
        own = {"retain": version} if (version := _glibc()) else {}
        return own | {word: path for word in FILES if (path := find(word, start))}

    def environment(self, value: Value) -> dict[str, str]:
        """Names the library without a path: the loader searches its usual folders."""
        if value == "default":
            return {}
        if value == "retain":
            return dict(RETAINING)
        return {
            PRELOAD: FILES[str(value)][0],
            **({SETTINGS_VARIABLE: JEMALLOC_SETTINGS} if value == "jemalloc" else {}),
        }

    def prepare(self, start: Start, value: Value) -> Start:
        rest = [
            entry
            for entry in entries(start.env.get(PRELOAD, ""))
            if not glibc.ALLOCATOR.search(entry)
        ]
        env = {**self.environment(value), **start.env}  # the job's own settings win
        if value in FILES:
            path = find(str(value), start)
            if path is None:
                raise NotApplicable(f"lib{value} was not found ({TO_INSTALL})")
            rest.insert(0, path)
        env[PRELOAD] = ":".join(rest)
        if not rest:
            del env[PRELOAD]
        return replace(start, env=env)

    def apply(self, live: LiveJob, value: Value) -> None:
        if value not in (*self.live_values, "default"):
            super().apply(live, value)
        live.control("malloc_retain").set(value == "retain")

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if value == "retain":
            return glibc.foreign() or (None if glibc.retains() else NOT_RETAINED)
        if value == "default":
            return None
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        if not re.search(rf"/lib{value}[^/\n]*\.so", maps):
            return (
                f"lib{value} is not loaded in the job's process: something drops"
                " LD_PRELOAD before it starts, or the library does not fit this program"
            )
        now = preloaded(os.environ.get(PRELOAD, ""))
        return None if now in (value, None) else f"the job preloads {now} itself"

    def snippet(self, value: Value) -> str:
        if value == "default":
            return ""
        shell = " ".join(f"{name}={text}" for name, text in self.environment(value).items())
        check = (
            "assert 'MALLOC_TRIM_THRESHOLD_' in os.environ"
            if value == "retain"
            else f"assert 'lib{value}' in open('/proc/self/maps').read()"
        )
        return f"# before Python starts, in the shell: {shell} python ...\n{check}"


def _own_variables(job: JobFacts) -> list[str]:
    """Variables by which the job itself sets glibc's malloc."""
    own = {name: job.own_settings.get(name, "") for name in GLIBC_VARIABLES}
    return [
        name
        for name, text in own.items()
        if text and (name != "GLIBC_TUNABLES" or "glibc.malloc." in text)
    ]


def _glibc() -> str:
    """The C library's version, such as "glibc 2.36"; "" if it is not glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""


def entries(preload: str) -> list[str]:
    """The libraries named in LD_PRELOAD, separated by colons or whitespace."""
    return [entry for entry in re.split(r"[:\s]+", preload) if entry]


def preloaded(preload: str) -> str | None:
    """The first allocator named in ``preload``, which is the one that takes effect."""
    return next(
        (match[1] for entry in entries(preload) if (match := glibc.ALLOCATOR.search(entry))), None
    )


def find(word: str, start: Start) -> str | None:
    """The library's file, in the job's own environment (conda, venv) or else in the system; None if
    not found.

    Not ``ctypes.util.find_library``: it ignores environments, and runs compilers and linkers if it
    finds nothing.
    """
    for folder in dict.fromkeys(_folders(start)):
        for name in FILES[word]:
            path = os.path.join(folder, name)
            # LD_PRELOAD cannot contain colons or whitespace in a path
            if os.path.isfile(path) and not re.search(r"[:\s]", path):
                return path
    return None


def _folders(start: Start) -> Iterator[str]:
    env = start.env
    yield from (
        folder for folder in env.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(folder)
    )
    program = start.argv[0] if start.argv else ""
    found = (
        os.path.join(start.workdir, program)
        if "/" in program
        else shutil.which(program, path=env.get("PATH"))
    )
    prefixes = [
        os.path.dirname(os.path.dirname(found)) if found else "",
        env.get("CONDA_PREFIX", ""),
        env.get("VIRTUAL_ENV", ""),
    ]
    yield from (os.path.join(prefix, "lib") for prefix in prefixes if prefix)
    yield f"/usr/lib/{os.uname().machine}-linux-gnu"
    yield from FOLDERS
