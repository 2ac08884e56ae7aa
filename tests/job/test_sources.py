"""A resumed run notices that the job's own code has changed in the meantime."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.job.sources import MOST_BYTES, changed, digests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "train.py",
        "train.sh",
        "model.py",
        "conf/base.yaml",
        "pkg/train.py",
        "pkg/trainer.py",
        "app/__main__.py",
        "notes.txt",
        "data.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "data.json").write_bytes(bytes(MOST_BYTES + 1))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (
            ("python", "train.py", "--config", "conf/base.yaml"),
            {"train.py", "model.py", "conf/base.yaml"},
        ),
        (
            ("python", "train.py", "--config=conf/base.yaml", "notes.txt", "data.json"),
            {"train.py", "model.py", "conf/base.yaml"},
        ),
        (("python", "-m", "pkg.train"), {"pkg/train.py", "pkg/trainer.py"}),
        (("python", "-um", "pkg.train"), {"pkg/train.py", "pkg/trainer.py"}),
        (("python", "-m", "app"), {"app/__main__.py"}),
        (("python", "app", "--fast"), {"app/__main__.py"}),
        (("bash", "train.sh"), {"train.sh", "train.py", "model.py"}),
        (("torchrun", "--nproc-per-node=2", "train.py"), {"train.py", "model.py"}),
        (("/bin/sh", "-c", "cd . && python train.py | tee 'a log'"), {"train.py", "model.py"}),
        (("./run", "x" * 5000, "a\0b.py", "{seed}.yaml"), set()),
    ],
)
def test_what_is_looked_at(command: tuple[str, ...], files: set[str], folder: Path) -> None:
    assert set(digests(command, folder)) == files


def test_what_has_changed_is_named(folder: Path) -> None:
    before = digests(("python", "train.py"), folder)
    (folder / "new.py").touch()
    (folder / "train.py").touch()
    assert changed(before, digests(("python", "train.py"), folder)) == []
    (folder / "model.py").write_text("other")
    (folder / "train.py").unlink()
    assert changed(before, digests(("python", "model.py"), folder)) == ["model.py", "train.py"]


def test_a_program_elsewhere_is_looked_at_too(folder: Path) -> None:
    command = ("python", str(folder / "train.py"))
    assert set(digests(command, folder / "conf")) == {"../train.py", "../model.py"}
