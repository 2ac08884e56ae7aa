"""Which files of a folder are sent, and that they arrive unchanged."""

from __future__ import annotations

import os
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.job.package import LIMIT_MIB, survey


def folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_git_would_keep_is_sent(tmp_path: Path) -> None:
    """git itself interprets its ignore files, including nested ones and exceptions."""
    folder(
        tmp_path,
        {
            "job.yaml": "",
            "train.py": "",
            "data/a.bin": "",
            "data/keep/b.bin": "",
            "notes.log": "",
            "important.log": "",
            "pkg/__init__.py": "",
            "pkg/build/x": "",
            "build": "",
            "pkg/deep/secret.txt": "",
            "pkg/deep/open.txt": "",
            "with space/ü.txt": "",
            "with space/10.00\u202fAM.png": "",  # a screenshot, as macOS names it
            "pkg/deep/kept.log": "",
            "pkg/deep/again.log": "",
            ".gitignore": "*.log\n!important.log\n/data/*.bin\nbuild/\n# comment\n",
            "pkg/deep/.gitignore": "secret.*\n!kept.log\n",
        },
    )
    git = ["git", "-C", str(tmp_path), "-c", "core.quotePath=false"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert sorted(survey(tmp_path).files) == sorted(listed.stdout.splitlines())
    assert set(survey(tmp_path, gitignore=False).files) - set(survey(tmp_path).files) == {
        "data/a.bin",
        "notes.log",
        "pkg/build/x",
        "pkg/deep/again.log",
        "pkg/deep/secret.txt",
    }
    (tmp_path / ".rayignore").write_text("*.log\n")
    assert not [name for name in survey(tmp_path).files if name.endswith(".log")]


def test_the_repositorys_ignore_files_count_in_a_folder_below(tmp_path: Path) -> None:
    files = {".git/HEAD": "", ".gitignore": "*.bin\n/jobs/a/data/\n", "jobs/.gitignore": "a/\n"}
    files |= {f"jobs/a/{name}": "" for name in ("job.yaml", "x.bin", "data/y", "b/data/z")}
    folder(tmp_path / "repository", files)
    folder(tmp_path, {".gitignore": "*\n"})  # outside the repository
    root = tmp_path / "repository" / "jobs" / "a"
    assert survey(root).files == ("b/data/z", "job.yaml")


def test_what_need_not_travel_stays(tmp_path: Path) -> None:
    folder(
        tmp_path,
        {
            "job.yaml": "",
            ".git/config": "",
            "submodule/.git": "gitdir: ../.git/modules/submodule",
            ".venv/bin/python": "",
            "a/__pycache__/a.pyc": "",
            "autotune-runs/x/journal.jsonl": "",
            "mlruns/0/meta": "",
            "wandb/run": "",
            ".env": "TOKEN=1",
            ".env.local": "TOKEN=1",
            "id_ecdsa": "",
            "server.key": "",
            ".git-credentials": "",
            "keys/server.pem": "",
            ".netrc": "",
            "a/id_rsa": "",
            "data.csv": "",
            ".rayignore": "data.csv\n",
        },
    )
    assert survey(tmp_path).files == (".rayignore", "job.yaml")
    assert survey(tmp_path, ["!*.pem", "job.yaml"]).files == (".rayignore", "keys/server.pem")


def test_a_whole_data_set_is_refused_with_where_it_lies(tmp_path: Path) -> None:
    folder(tmp_path, {"job.yaml": "", "images/train/a": "", "src/b.py": ""})
    os.truncate(tmp_path / "images" / "train" / "a", (LIMIT_MIB + 1) * 2**20)
    with pytest.raises(InputError) as refused:
        survey(tmp_path)
    said = str(refused.value)
    assert f"images/ {LIMIT_MIB + 1} MiB" in said
    assert f"at most {LIMIT_MIB} MiB" in said
    assert "--no-ship" in said and "--exclude" in said
    assert survey(tmp_path, ["images/"]).files == ("job.yaml", "src/b.py")


def test_the_archive_holds_the_files_as_they_are(tmp_path: Path) -> None:
    root = folder(
        tmp_path / "job",
        {"job.yaml": "command: ./run.sh\n", "run.sh": "#!/bin/sh\n", "sub/data.bin": "x" * 100_000},
    )
    (root / "run.sh").chmod(0o755)
    (root / "linked.txt").symlink_to(root / "job.yaml")
    (root / "to-nowhere").symlink_to(root / "gone")
    (root / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    (root / "sub" / "empty").mkdir()
    package = survey(root)
    assert package.linked_folders == ("elsewhere",)
    package.write(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == [
            "job.yaml",
            "linked.txt",
            "run.sh",
            "sub/data.bin",
            "sub/empty/",
        ]
        assert archive.read("linked.txt") == b"command: ./run.sh\n"
        assert archive.read("sub/data.bin") == b"x" * 100_000
        assert stat.S_IMODE(archive.getinfo("run.sh").external_attr >> 16) == 0o755


def test_the_same_content_is_the_same_archive(tmp_path: Path) -> None:
    """The cluster names a package by its hash, so it recognizes what is sent again."""
    archives = []
    for name, order in (("one", ["a", "b"]), ("two", ["b", "a"])):
        root = folder(tmp_path / name, {file: file for file in order})
        os.utime(root / "a", (1, 1) if name == "one" else (2, 2))
        survey(root).write(tmp_path / f"{name}.zip")
        archives.append((tmp_path / f"{name}.zip").read_bytes())
    assert archives[0] == archives[1]


@pytest.mark.parametrize("name", ["back\\slash.py", "new\nline.py", "bad\udcff.py"])
def test_a_name_that_would_not_arrive_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match="this name cannot be sent"):
        survey(tmp_path)
    assert survey(tmp_path, ["*"]).files == ()


def test_links_in_a_circle_are_refused_by_name_unless_left_out(tmp_path: Path) -> None:
    folder(tmp_path, {"a": ""})
    (tmp_path / "loop").symlink_to("pool")
    (tmp_path / "pool").symlink_to("loop")
    with pytest.raises(InputError, match="cannot be read: Too many levels") as refused:
        survey(tmp_path)
    assert refused.value.where == str(tmp_path / "loop") and "--exclude" in refused.value.remedy
    assert survey(tmp_path, ["?oo?"]).files == ("a",)


def test_a_pattern_that_is_none(tmp_path: Path) -> None:
    folder(tmp_path, {"a": ""})
    with pytest.raises(InputError, match="--exclude"):
        survey(tmp_path, ["!"])


def test_a_file_that_goes_away_meanwhile(tmp_path: Path) -> None:
    root = folder(tmp_path / "job", {"a": "", "b": ""})
    package = survey(root)
    (root / "b").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        package.write(tmp_path / "a.zip")
