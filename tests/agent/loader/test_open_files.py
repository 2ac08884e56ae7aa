"""A file that the dataset keeps open: forked workers would share its position."""

from __future__ import annotations

import io
import mmap
import os
import sqlite3
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data.dataloader as data
from torch.utils.data import DataLoader, Dataset, Subset

from autotune_spaces.base import NotApplicable
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.knobs import create
from autotune_trials.agent.dataloader.facts import describe


class Records(Dataset[bytes]):
    def __init__(self, file: Any) -> None:
        self.file = file

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> bytes:
        self.file.seek(index)
        return bytes(self.file.read(1))


class PerProcess(Records):
    def __getitem__(self, index: int) -> bytes:
        with open(f"/proc/{os.getpid()}/cmdline", "rb") as own:
            return own.read(1)


class Wrapped(Records):
    def __init__(self, reader: Records) -> None:
        self.reader = reader


def found(dataset: Any, **more: Any) -> str:
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=2, **more)
    return describe(data, loader, "k#0", "k:1", 2).open_file


def test_it_is_found_where_the_dataset_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"0" * 16)
    with path.open("rb") as file, path.open("rb") as closed, path.open("ab") as written:
        closed.close()
        assert found(Records(file)) == "Records.file"
        assert found(Subset(Wrapped(Records(file)), [1])) == "Records.file"
        assert found(PerProcess(file)) == found(Records(closed)) == found(Records(written)) == ""
        assert found(Records(file), worker_init_fn=print) == "", "the job opens it in workers"


def test_readers_of_files_count_but_not_what_is_in_memory(tmp_path: Path) -> None:
    assert found(Records(io.BytesIO(b"0" * 16))) == ""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"0")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert found(Records(archive)) == "Records.file"
    with zipfile.ZipFile(io.BytesIO((tmp_path / "a.zip").read_bytes())) as archive:
        assert found(Records(archive)) == ""
    connection = sqlite3.connect(tmp_path / "a.db")
    assert found(Records(connection)) == "Records.file"
    connection.close()


def test_such_a_loader_gets_no_workers(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"0" * 16)
    with path.open("rb") as file:
        loader: DataLoader[Any] = DataLoader(Records(file), batch_size=2)
        facts = describe(data, loader, "k#0", "k:1", 2)
    machine = Machine(4, 16.0, 4.0, "cpu", "", "2.13", "3.11")
    with pytest.raises(NotApplicable, match=r"Records\.file"):
        create("num_workers").candidates(machine, JobFacts(1, "cpu", facts, (), ()))


class Mapped(Records):
    """Keeps the file of a memory map open, and reads its head once."""

    def __init__(self, file: Any) -> None:
        self.file, self.head = file, file.read(4)
        self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def __getitem__(self, index: int) -> bytes:
        return self.map[index : index + 1]


class AtPlaces(Records):
    def __getitem__(self, index: int) -> bytes:
        return os.pread(self.file.fileno(), 1, index)


def test_files_that_no_worker_reads_by_position_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"0" * 16)
    with path.open("rb") as file:
        assert found(AtPlaces(file)) == found(Mapped(file)) == ""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"0")
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.close()
    assert found(Records(archive)) == found(Records(connection)) == "", "they are closed"


KEPT: Any = None


class Global(Records):
    def __getitem__(self, index: int) -> bytes:
        KEPT.seek(index)
        return bytes(KEPT.read(1))


class Sharded(Records):
    def __getitem__(self, index: int) -> bytes:
        self.file[index % 2].seek(index)
        return bytes(self.file[index % 2].read(1))


def test_a_list_of_files_a_global_one_and_a_temporary_one_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"0" * 16)
    with path.open("rb") as file, tempfile.NamedTemporaryFile() as temporary:
        assert found(Sharded([file, file])) == found(Sharded({0: file})) == "Sharded.file"
        assert found(Records(temporary)) == "Records.file"
        assert found(Global(None)) == ""
        monkeypatch.setitem(globals(), "KEPT", file)
        assert found(Global(None)) == "KEPT"
