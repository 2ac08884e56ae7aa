"""The training data in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from autotune_spaces import staging
from autotune_spaces.base import (
    Card,
    Domain,
    Knob,
    NotApplicable,
    Numerics,
    Scope,
    Scratch,
    Start,
    Value,
)
from autotune_spaces.domains import off_word, one_of
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.machine import GIB, available_gib, shm_gib

WORDS = ("off", "shm")
# of what is free in /dev/shm: DataLoader workers hand over their batches there, too
SHM_SHARE = 0.8
# of the memory that is free while the job runs: larger batches and more workers are to have room as
# well
MEMORY_SHARE = 0.5
# of data found by itself: less than that is read once and stays in the system's cache
LEAST_MIB = 16


class DataStaging(Knob):
    """Which data: the option ``path``; or ``auto``, the words of the command that clearly name
    data.
    """

    name = "data_staging"
    scope = Scope.PROCESS
    numerics = Numerics.EXACT
    loader = True
    start_up_cost = True
    keeps_files = True
    ordered = False
    example = "shm"
    range = "off, shm"
    accepts = {"path": ()}
    card = Card(
        what=(
            "Before the job starts, the files that its command names as data are copied to"
            " /dev/shm, which is memory, and the command is given the copy's path. `path:"
            " data/train` says which; else it is what a flag such as --data or --train-dir names."
            " One copy serves all processes of a run, and is removed after the last. What the job"
            " writes into it goes back only under `autotune launch`."
        ),
        when_it_helps=(
            "Data on a network file system or a slow disk, and more of it, or more small files,"
            " than the system's cache keeps."
        ),
        when_it_does_not=(
            "Data that the system's cache holds after the first epoch: a local disk and enough"
            " memory. Copying takes time at every start, and the memory is gone for the rest. The"
            " job must find everything it reads below that path."
        ),
        changes_loss="No: the same files, listed in the same order.",
        source="https://docs.kernel.org/filesystems/tmpfs.html",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        return "off"

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        found = job.surveys.get(self.name) or {"trouble": "nobody looked at the command's words"}
        if found["trouble"]:
            raise NotApplicable(str(found["trouble"]))
        size_gib = found["bytes"] / GIB
        if why := no_room(size_gib, machine.shm_gib, machine.available_gib):
            raise NotApplicable(f"{' and '.join(found['paths'])}: {why}")
        return WORDS

    def domain(self, machine: Machine, job: JobFacts) -> Domain:
        # also where the user names the values: what does not fit does not fit
        self.candidates(machine, job)
        return super().domain(machine, job)

    def parse(self, value: Value) -> Value:
        return off_word(value)

    def check_value(self, value: Value) -> str | None:
        return one_of(value, WORDS)

    def survey(self, start: Start) -> Any:
        found, trouble = staging.named_by(start, self.wanted)
        total = 0
        for data in found:
            if staging.in_memory(data.path):
                trouble = f"{data.text} lies in memory already"
                break
            size = staging.size_of(data.path)
            trouble, total = size.trouble, total + size.bytes
            if trouble or not size.bytes:
                trouble = trouble or f"{data.text} holds no data"
                break
        if not trouble and self.wanted == "auto" and total < LEAST_MIB * 2**20:
            trouble = (
                f"{' and '.join(f.text for f in found)}: {total / 2**20:.1f} MiB stay in the"
                " system's cache anyway; path: insists"
            )
        return {"paths": [f.text for f in found], "bytes": total, "trouble": trouble}

    def prepare(self, start: Start, value: Value, scratch: Scratch) -> Start:
        if value == "off":
            return start
        found, trouble = staging.named_by(start, self.wanted)
        if not found:
            raise NotApplicable(trouble)
        try:
            copies = {data.path: self._copy(data, scratch) for data in found}
        except OSError as error:
            raise NotApplicable(
                f"{found[0].text} cannot be copied to {staging.SHM}: {error.strerror or error}"
            ) from None
        return staging.replaced(start, copies)

    def snippet(self, value: Value) -> str:
        if value == "off":
            return ""
        path = self.wanted
        source = "..." if path == "auto" else repr(path)
        name = "/data" if path == "auto" else "/" + os.path.basename(os.path.normpath(path))
        return (
            f"data = shutil.copytree({source}, tempfile.mkdtemp(dir={staging.SHM!r}) + {name!r})  #"
            " at the end: shutil.rmtree(data)"
        )

    @property
    def wanted(self) -> str:
        """The data to copy: a path, or "auto"."""
        return str(self.options.get("path") or "auto")

    def _copy(self, data: staging.Found, scratch: Scratch) -> str:
        folder = scratch.folder()
        if not staging.is_copied(data.path, folder):
            size = staging.size_of(data.path)
            why = size.trouble or no_room(size.bytes / GIB, shm_gib(), available_gib())
            if why:
                raise NotApplicable(f"{data.text}: {why}")
            scratch.say(
                f"staging {_amount(size.bytes / GIB)} of data to {staging.SHM}: {data.text},"
                f" {size.files} file{'s' if size.files != 1 else ''}"
            )
        return staging.copied(data.path, folder)


def no_room(size_gib: float, free_shm_gib: float, available_memory_gib: float) -> str:
    """Why ``size_gib`` of data do not fit into /dev/shm, with the figures; "" if they do. 0 for the
    memory: not known.
    """
    if size_gib > SHM_SHARE * free_shm_gib:
        return (
            f"{_amount(size_gib)} of data, and {staging.SHM} has {_amount(free_shm_gib)} free, of"
            f" which at most {SHM_SHARE:.0%} may be used (DataLoader workers need the rest)"
        )
    if available_memory_gib and size_gib > MEMORY_SHARE * available_memory_gib:
        return (
            f"{_amount(size_gib)} of data, and {_amount(available_memory_gib)} of memory are free,"
            f" of which at most {MEMORY_SHARE:.0%} may be used"
        )
    return ""


def _amount(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.1f} MiB"
