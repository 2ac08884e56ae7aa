"""Which words of a command are its data, whether a copy has room, and that the copy is what the
original was.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from machines import JOB, job, machine

from autotune_spaces import staging
from autotune_spaces.base import NotApplicable, Start
from autotune_spaces.knobs import create
from autotune_spaces.knobs.data_staging import LEAST_MIB, no_room


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = ("data/train/a.bin", "data/val/b.bin", "corpus.txt")
    for name in (
        *data,
        "runs/last/model.pt",
        "out/x",
        "conf/base.yaml",
        "train.py",
        "models/tiny/w.bin",
        "pkg/__init__.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def start(folder: Path, *words: str, **env: str) -> Start:
    return Start(("python", "train.py", *words), env, str(folder))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--data", "data/train"), ["data/train"]),
        (("--data=data/train",), ["data/train"]),
        (("--data-dir", "data/train", "--output-dir", "out"), ["data/train"]),
        (("--train_dir=./data/train", "--val-data", "data/val"), ["./data/train", "data/val"]),
        (("data.root=data/train", "+logdir=runs/last"), ["data/train"]),
        (("--input", "corpus.txt"), ["corpus.txt"]),
        (("data/train",), ["data/train"]),
        (("--data", "data", "--train-dir", "data/train"), ["data"]),
        # what is not clearly data
        (("data",), []),
        (("runs/last",), []),
        (("--out", "out"), []),
        (("--resume", "runs/last"), []),
        (("--model", "models/tiny"), []),
        (("--data-cache", "data/train"), []),
        (("--config", "conf/base.yaml"), []),
        (("--data", "conf/base.yaml"), []),
        (("--data", "not/there"), []),
        (("--data", "."), []),
        (("--train", "pkg"), []),
        (("--epochs", "5"), []),
    ],
)
def test_words_that_are_data(folder: Path, words: tuple[str, ...], found: list[str]) -> None:
    named, trouble = staging.named_by(start(folder, *words), "auto")
    assert [data.text for data in named] == found
    assert bool(trouble) == (not found)
    assert "path:" in trouble or found


def test_a_path_that_is_asked_for(folder: Path) -> None:
    def trouble(wanted: str, *words: str, **env: str) -> str:
        return staging.named_by(start(folder, *words, **env), wanted)[1]

    assert trouble("runs/last", "--from", "runs/last") == ""
    assert trouble("data", "--from", "data/train") == "", "something below it is named"
    assert trouble("data/train", DATA=str(folder / "data" / "train")) == "", "by a variable"
    assert "no word of the command and no variable names data/val" in trouble(
        "data/val", "--from", "data/train"
    )
    assert "there is no data/tain" in trouble("data/tain", "--data", "data/train")
    assert "the job's own directory" in trouble(".", "--data", ".")


def test_words_and_variables_name_the_copy(folder: Path) -> None:
    data = f"{folder}/data/train"
    variables = {"DATA_DIR": f"{data}/", "PWD": data, "NAME": "data/train"}
    before = start(
        folder,
        "--data",
        "data/train",
        "--list=./data/train/a.bin",
        "--out",
        "data/train2",
        **variables,
    )
    after = staging.replaced(before, {data: "/dev/shm/x/train"})
    assert after.argv == (
        "python",
        "train.py",
        "--data",
        "/dev/shm/x/train",
        "--list=/dev/shm/x/train/a.bin",
        "--out",
        "data/train2",
    )
    assert after.env == {**before.env, "DATA_DIR": "/dev/shm/x/train/"}


def test_a_line_for_a_shell(folder: Path) -> None:
    text = (
        "python train.py --data data/train --x=data/train/a.bin 'data/train' mydata/train"
        f" data/train2 {folder}/data/train"
    )
    line = Start(("/bin/sh", "-c", text), {}, str(folder))
    assert "a line for a shell" in staging.named_by(line, "auto")[1]
    assert staging.named_by(line, "data/train")[1] == ""
    moved = staging.replaced(line, {f"{folder}/data/train": "/m/t"}).argv[2]
    assert (
        moved == "python train.py --data /m/t --x=/m/t/a.bin '/m/t' mydata/train data/train2 /m/t"
    )


def test_the_copy_is_the_same_in_the_same_order(tmp_path: Path) -> None:
    source = tmp_path / "data set"
    names = [f"{(7 * i) % 50:02d}" for i in range(50)]
    for name in names:
        (source / f"class {name}").mkdir(parents=True)
        (source / f"class {name}" / "x.bin").write_bytes(os.urandom(100))
    (source / "linked").symlink_to(source / "class 07")
    os.utime(source / "class 07" / "x.bin", (1e9, 1e9))
    (tmp_path / "kept").mkdir()
    copy = Path(staging.copied(str(source), str(tmp_path / "kept")))
    assert copy.name == "data set"
    assert {p.relative_to(copy): p.read_bytes() for p in copy.rglob("*") if p.is_file()} == {
        p.relative_to(source): p.read_bytes()
        for p in [
            *source.rglob("*"),
            *(source / "linked" / n for n in os.listdir(source / "linked")),
        ]
        if p.is_file()
    }
    assert (copy / "class 07" / "x.bin").stat().st_mtime == 1e9
    assert not (copy / "linked").is_symlink(), "a copy stands by itself"
    before = (copy / "class 07" / "x.bin").stat().st_ino
    assert staging.copied(str(source), str(tmp_path / "kept")) == str(copy)
    assert (copy / "class 07" / "x.bin").stat().st_ino == before, "made once"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to")
def test_entries_are_listed_in_the_same_order_in_memory(tmp_path: Path) -> None:
    import tempfile

    for i in range(40):
        (tmp_path / "many" / f"{(11 * i) % 40:03d}").mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        copy = staging.copied(str(tmp_path / "many"), memory)
        assert os.listdir(copy) == os.listdir(tmp_path / "many")


def test_an_unfinished_copy_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("a")
    (tmp_path / "data" / "pipe").symlink_to("nowhere")
    with pytest.raises(OSError, match="nowhere|pipe"):
        staging.copied(str(tmp_path / "data"), str(tmp_path / "kept"))
    assert os.listdir(tmp_path / "kept") == []
    (tmp_path / "data" / "pipe").unlink()
    assert os.listdir(staging.copied(str(tmp_path / "data"), str(tmp_path / "kept"))) == ["a"]


def test_what_cannot_be_copied_is_said(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_bytes(b"x" * 1000)
    (data / "b").write_bytes(b"x" * 24)
    assert staging.size_of(str(data)) == staging.Size(1024, 2)
    assert staging.size_of(str(data / "a")).bytes == 1000
    (data / "back").symlink_to(data)
    assert "leads back" in staging.size_of(str(data)).trouble
    (data / "back").unlink()
    os.mkfifo(data / "pipe")
    assert "neither a file nor a directory" in staging.size_of(str(data)).trouble
    assert "takes more than" in staging.size_of(str(data), seconds=-1).trouble


def test_what_the_job_wrote_into_its_data_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "a").write_text("old")
    (data / "b").write_text("same")
    kept = tmp_path / "kept"
    kept.mkdir()
    copy = Path(staging.copied(str(data), str(kept)))
    assert staging.bring_back(str(kept)) == []
    time.sleep(0.01)
    (copy / "a").write_text("new")
    (copy / "sub" / "index").write_text("made")
    assert sorted(staging.bring_back(str(kept))) == [str(data / "a"), str(data / "sub" / "index")]
    assert (data / "a").read_text() == "new"
    assert (data / "sub" / "index").read_text() == "made"


def test_room_is_told_with_its_figures() -> None:
    assert no_room(1.0, 8.0, 32.0) == ""
    assert no_room(1.0, 8.0, 0.0) == "", "memory not known"
    assert no_room(7.0, 8.0, 32.0).startswith(
        "7.0 GiB of data, and /dev/shm has 8.0 GiB free, of which at most 80%"
    )
    assert no_room(0.25, 0.0625, 32.0).startswith(
        "256.0 MiB of data, and /dev/shm has 64.0 MiB free"
    )
    assert (
        no_room(5.0, 8.0, 8.0)
        == "5.0 GiB of data, and 8.0 GiB of memory are free, of which at most 50% may be used"
    )


def staged(
    folder: Path, *words: str, path: str | None = None, **where: float
) -> tuple[object, ...]:
    knob = create("data_staging", {"path": path} if path else {})
    survey = knob.survey(start(folder, *words))
    return knob.domain(
        machine(**{"available_gib": 16.0, **where}), job(JOB, surveys={"data_staging": survey})
    ).values


def out(folder: Path, *words: str, path: str | None = None, **where: float) -> str:
    with pytest.raises(NotApplicable) as caught:
        staged(folder, *words, path=path, **where)
    return str(caught.value)


def test_when_data_are_staged(folder: Path) -> None:
    assert staged(folder, "--from", "data/train", path="data/train") == ("off", "shm")
    assert "data/train: 0.0 MiB stay in the system's cache anyway" in out(
        folder, "--data", "data/train"
    )
    with (folder / "data" / "train" / "big").open("wb") as file:
        file.truncate((LEAST_MIB + 1) * 2**20)
    assert staged(folder, "--data", "data/train") == ("off", "shm")
    reason = out(folder, "--data", "data/train", shm_gib=0.015)
    assert reason.startswith("data/train: 17.0 MiB of data, and /dev/shm has 15.4 MiB free")
    assert "of memory are free" in out(folder, "--data", "data/train", available_gib=0.02)
    (folder / "empty").mkdir()
    assert "empty holds no data" in out(folder, "--data", "empty")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to")
def test_data_in_memory_need_no_copy(folder: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        Path(memory, "x").write_text("x")
        assert "lies in memory already" in out(folder, "--data", memory)


def test_the_option_is_text(folder: Path) -> None:
    from autotune_spaces.space import SpaceError, load_space

    (knob,) = load_space({"data_staging": {"path": "data/train"}}).knobs
    assert knob.options == {"path": "data/train"}
    assert load_space({"data_staging": "auto"}).knobs[0].options == {}
    for wrong in (3, "", None, ["a"]):
        with pytest.raises(SpaceError, match="path is"):
            load_space({"data_staging": {"path": wrong}})
    with pytest.raises(SpaceError, match="no option 'pth'") as caught:
        load_space({"data_staging": {"pth": "data"}})
    assert caught.value.nearest == "path"
