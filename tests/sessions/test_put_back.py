"""A trial's writes are undone when its session ends: every way of writing, by real processes, and
even if everything was killed.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from session_paths import PYTHONPATH
from session_waits import gone_within, wait_for

from autotune.run_directory import move_aside
from autotune_trials.file_restore import left_behind, restore
from autotune_trials.file_restore.backups import Backups, CannotKeep
from autotune_trials.file_restore.ledger import RestoreOptions, path_scope
from autotune_trials.file_restore.log import SHARED, Log
from autotune_trials.file_restore.recorder import Recorder
from autotune_trials.file_restore.restore import leftovers, put_back
from autotune_trials.file_restore.scope import PathScope
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts

pytestmark = pytest.mark.usefixtures("nothing_is_left")

WAYS = {
    "overwritten": "open('mine.txt', 'w').write('theirs')",
    "overwritten twice": "open('mine.txt', 'w').write('a'); open('mine.txt', 'w').write('b')",
    "appended": "open('mine.txt', 'a').write('theirs')",
    "opened to append, then cut": (
        "f = open('mine.txt', 'a'); f.truncate(0); f.write('x'); f.close()"
    ),
    "appended, then overwritten": (
        "open('mine.txt', 'a').write('x'); open('mine.txt', 'w').write('y')"
    ),
    "changed in place": "f = open('mine.txt', 'r+'); f.write('XX'); f.close()",
    "truncated": "os.truncate('mine.txt', 1)",
    "removed": "os.remove('mine.txt')",
    "removed and written anew": "os.remove('mine.txt'); open('mine.txt', 'w').write('x')",
    "replaced in one step": "open('t', 'w').write('x'); os.replace('t', 'mine.txt')",
    "renamed": "os.rename('mine.txt', 'old.txt'); open('mine.txt', 'w').write('x')",
    "renamed, and its new name overwritten": (
        "os.rename('mine.txt', 'old.txt'); open('old.txt', 'w').write('x')"
    ),
    "through a link": "os.symlink('mine.txt', 'l'); open('l', 'w').write('x')",
    "by its descriptor": "os.write(os.open('mine.txt', os.O_WRONLY | os.O_TRUNC), b'x')",
    "by pathlib": "pathlib.Path('mine.txt').write_text('x'); pathlib.Path('folder/other').unlink()",
    "directory removed": "shutil.rmtree('folder')",
    "directory removed and made anew": (
        "shutil.rmtree('folder'); os.makedirs('folder/deep'); open('folder/other', 'w').write('x')"
    ),
    "directory renamed": (
        "os.rename('folder', 'folder.bak'); os.mkdir('folder'); open('folder/new', 'w').write('x')"
    ),
    "directory renamed into a new one, then removed with it": (
        "os.mkdir('t'); os.rename('folder', 't/f'); open('t/f/n', 'w').write('x');"
        " shutil.rmtree('t')"
    ),
    "directory renamed onto a new one, then removed": (
        "os.mkdir('t'); os.rename('folder', 't'); shutil.rmtree('t')"
    ),
    "directory renamed into a new one, which is renamed": (
        "os.mkdir('t'); os.rename('folder', 't/f'); os.rename('t', 'u'); open('u/f/n',"
        " 'w').write('x')"
    ),
    "directory renamed at the second attempt": (
        "os.mkdir('b'); os.mkdir('b/x')\ntry: os.rename('folder', 'b')\nexcept OSError:"
        " os.rename('folder', 'c')"
    ),
    "directory renamed there, back and away": (
        "os.rename('folder', 'b'); os.rename('b', 'folder'); os.rename('folder', 'c');"
        " open('c/other', 'w').write('x')"
    ),
    "directory renamed onto a new one, and on": (
        "os.mkdir('t'); os.rename('folder', 't'); os.rename('t', 'u'); shutil.rmtree('u')"
    ),
    "directory rotated twice": (
        "exec(2 * \"shutil.rmtree('o', True); os.rename('folder', 'o'); os.mkdir('folder');"
        " open('folder/n', 'w').write('x');\")"
    ),
    "copied over": "shutil.copy('folder/other', 'mine.txt'); shutil.move('folder/other', 'moved')",
    "renamed, then appended to": (
        "os.rename('mine.txt', 'old.txt'); open('old.txt', 'a').write('x')"
    ),
    "renamed there and back, then changed": (
        "os.rename('mine.txt', 'o'); os.rename('o', 'mine.txt'); f = open('mine.txt', 'r+');"
        " f.write('XX'); f.close()"
    ),
    "renamed into a new directory, then copied over": (
        "os.mkdir('old'); os.rename('mine.txt', 'old/m'); shutil.copy('folder/other', 'old/m')"
    ),
    "read, cut and written anew": (
        "f = open('mine.txt', 'a+'); f.truncate(0); f.write('x' * 99); f.close()"
    ),
    "made": (
        "open('new', 'w').write('x'); os.makedirs('out/deep'); open('out/deep/log',"
        " 'a').write('x'); os.symlink('new', 'l')"
    ),
    "made, renamed": (
        "os.mkdir('tmp-1'); open('tmp-1/w', 'w').write('x'); os.rename('tmp-1', 'checkpoint-1')"
    ),
    "mode and times changed": (
        "os.chmod('mine.txt', 0o600); os.utime('empty', (1, 1)); os.chmod('folder', 0o700)"
    ),
    "linked, then changed by its second name": (
        "os.link('mine.txt', 'twin'); f = open('twin', 'r+'); f.write('XX'); f.close();"
        " os.remove('mine.txt')"
    ),
    "from a forked child": (
        "p = os.fork() or (open('mine.txt', 'w').write('x'), os._exit(0)); os.waitpid(p, 0)"
    ),
    "from another Python": (
        'subprocess.run([sys.executable, \'-c\', \'open("mine.txt", "w").write("x")\'], check=True)'
    ),
}
HEAD = "import os, pathlib, shutil, subprocess, sys\n"


def state(folder: Path) -> dict[str, object]:
    """Everything in ``folder`` except the sessions: contents, modes, times of files."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(("session", "job", "fake")):
            continue
        stat = path.lstat()
        found[name] = (
            stat.st_mode,
            (
                None
                if path.is_dir()
                else (hashlib.sha256(path.read_bytes()).hexdigest(), stat.st_mtime_ns)
            ),
        )
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "mine.txt").write_text("the user's own\n" * 3)
    (tmp_path / "mine.txt").chmod(0o640)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other").write_text("another")
    (tmp_path / "empty").write_text("")
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
def test_everything_is_again_what_it_was(make_session, home, way):
    before = state(home)
    session = make_session(HEAD + WAYS[way] + "\nopen('done', 'w').close()", keep=())
    wait_for((home / "done").exists)
    assert state(home) != before, "the job must have found the files it wrote"
    session.close()
    assert state(home) == before
    assert (
        session.outcome is not None
        and not session.outcome["failed"]
        and not session.outcome["unkept"]
    )
    assert session.outcome["restored"] or session.outcome["removed"]
    assert not session.paths.written.exists()


def test_the_job_finds_what_it_wrote_itself(make_session, home):
    """A checkpoint can be written in two steps, listed, loaded again and rotated as usual."""
    job = (
        HEAD
        + """
for number in range(3):
    open(f'ckpt-{number}.tmp', 'w').write(str(number))
    os.replace(f'ckpt-{number}.tmp', f'ckpt-{number}')
    assert open(f'ckpt-{number}').read() == str(number)
    if number:
        os.remove(f'ckpt-{number - 1}')
assert sorted(n for n in os.listdir('.') if n.startswith('ckpt')) == ['ckpt-2']
assert open('mine.txt').read().startswith('the user')
os.rename('mine.txt', 'mine.bak'); open('mine.txt', 'w').write('x')
assert open('mine.bak').read().startswith('the user') and open('mine.txt').read() == 'x'
open('done', 'w').close()
"""
    )
    before = state(home)
    session = make_session(job, keep=())
    wait_for((home / "done").exists)
    assert (home / "ckpt-2").read_text() == "2"
    session.close()
    assert state(home) == before


@pytest.mark.parametrize("name", ["unseen", "other"])
def test_a_directory_that_is_to_get_its_name_back_where_another_program_has_made_one(
    make_session, home, name
):
    job = (
        "import os\nos.mkdir('out'); os.rename('folder', 'out/f'); os.mkdir('folder');"
        f" os.system('echo x > folder/{name}')\nopen('done', 'w').close()"
    )
    session = make_session(job, keep=())
    wait_for((home / "done").exists)
    session.close()
    theirs = home / "folder" / ("unseen" if name == "unseen" else "other.during-trial")
    assert (home / "folder" / "other").read_text() == "another" and theirs.read_text() == "x\n"
    assert (
        not session.outcome["failed"]
        and not (home / "out").exists()
        and session.outcome["left"] == [str(theirs)]
    )


FOREIGN = {
    "written there": ("os.mkdir('out')", "out/theirs"),
    "written deep in there": (
        "os.makedirs('out/a/b'); open('out/a/b/log', 'w').write('x')",
        "out/a/b/theirs",
    ),
    "renamed there by another program": (
        "os.mkdir('out'); open('out/log', 'w').write('x')",
        "out/theirs",
    ),
    "where one of the job's was before": (
        "os.mkdir('out'); open('out/theirs', 'w').write('x'); os.remove('out/theirs')",
        "out/theirs",
    ),
    "where one of the job's was, which it renamed": (
        "os.mkdir('out'); open('out/theirs', 'w').write('x'); os.replace('out/theirs', 'out/b')",
        "out/theirs",
    ),
}


@pytest.mark.parametrize("way", FOREIGN)
def test_what_another_program_wrote_into_a_directory_of_the_jobs_stays(make_session, home, way):
    job, theirs = FOREIGN[way]
    session = make_session(HEAD + job + "\nopen('done', 'w').close()", keep=())
    wait_for((home / "done").exists)
    (home / theirs).write_text("theirs")
    session.close()
    assert (home / theirs).read_text() == "theirs"
    assert [p for p in (home / "out").rglob("*") if p.is_file()] == [home / theirs]
    assert session.outcome["left"] == [str(home / theirs)] and not session.outcome["failed"]


@pytest.mark.parametrize(
    "after",
    [
        "os.remove('lock')",
        "os.rename('lock', 'old')",
        "os.remove('lock'); open('lock', 'w').write('x'); os.remove('lock')",
    ],
)
def test_what_another_program_made_where_the_job_had_a_file_stays(make_session, home, after):
    before = state(home)
    session = make_session(
        HEAD + f"open('lock', 'w').write('x'); {after}\nopen('done', 'w').close()", keep=()
    )
    wait_for((home / "done").exists)
    (home / "lock").write_text("theirs")
    session.close()
    assert (home / "lock").read_text() == "theirs"
    (home / "lock").unlink()
    assert state(home) == before


def test_what_is_made_again_where_it_was_removed_goes(make_session, home):
    before = state(home)
    again = (
        "open('c.tmp', 'w').write('x'); os.replace('c.tmp', 'c'); open('lock', 'w').close();"
        " os.remove('lock')"
    )
    session = make_session(
        HEAD + f"{again}; {again}; os.remove('c'); {again}; open('lock', 'w').close()\nopen('done',"
        " 'w').close()",
        keep=(),
    )
    wait_for((home / "done").exists)
    session.close()
    assert state(home) == before and session.outcome["left"] == []


def test_a_directory_where_a_file_of_the_users_was_is_not_removed_with_what_another_program_put_there(
    make_session, home
):
    job = (
        HEAD + "os.remove('mine.txt'); os.makedirs('mine.txt/a'); open('mine.txt/a/b',"
        " 'w').write('x')\nopen('done', 'w').close()"
    )
    session = make_session(job, keep=())
    wait_for((home / "done").exists)
    (home / "mine.txt" / "theirs").write_text("theirs")
    session.close()
    assert [p.name for p in (home / "mine.txt.during-trial").iterdir()] == [
        "theirs"
    ] and not session.outcome["failed"]
    assert session.outcome["left"] == [str(home / "mine.txt.during-trial")] and (
        home / "mine.txt"
    ).read_text().startswith("the user's own")


def test_what_another_program_wrote_is_back_where_it_wrote_it(make_session, home):
    job = (
        HEAD
        + """
os.makedirs('out/keep'); open('ready', 'w').close()
import time
while not os.path.exists('out/keep/theirs'): time.sleep(0.01)
os.rename('out/keep/theirs', 'out/keep/renamed'); os.rename('out', 'later'); open('later/mine', 'w').write('x')
open('done', 'w').close()
"""
    )
    session = make_session(job, keep=())
    wait_for((home / "ready").exists)
    (home / "theirs").write_text("theirs")
    (home / "theirs").rename(home / "out" / "keep" / "theirs")
    wait_for((home / "done").exists)
    session.close()
    assert (home / "out" / "keep" / "theirs").read_text() == "theirs", (
        "under the name that program knows"
    )
    assert not (home / "later").exists() and not session.outcome["failed"]


INSIDE = {
    "by every call there is": (
        "os.makedirs('out/a'); open('out/a/f', 'w').write('x'); os.link('out/a/f', 'out/g');"
        " os.symlink('a', 'out/l'); os.rename('out/a', 'out/b'); os.replace('out/b/f', 'out/k');"
        " pathlib.Path('out/b/h').touch()"
    ),
    "by way of temporary files": (
        "import tempfile; os.mkdir('out'); f = tempfile.NamedTemporaryFile(dir='/tmp',"
        " delete=False); f.write(b'x'); f.close(); shutil.move(f.name, 'out/m'); d ="
        " tempfile.mkdtemp(dir='/tmp'); open(d + '/w', 'w').write('x'); shutil.move(d, 'out/d')"
    ),
    "from another disk, twice": (
        "os.mkdir('out'); import tempfile; d = tempfile.mkdtemp(dir='/dev/shm')\nfor _ in 'ab':\n"
        "    open(d + '/m', 'w').write('x'); shutil.move(d + '/m', 'out/m')\nos.rmdir(d)"
    ),
    "by renaming at the second attempt": (
        "open('t', 'w').write('x')\ntry: os.rename('t', 'out/t')\nexcept OSError: os.mkdir('out');"
        " os.rename('t', 'out/t')"
    ),
    "by copying": (
        "shutil.copytree('folder', 'out/copied'); shutil.copy('mine.txt', 'out/copied/more')"
    ),
    "by renaming from beside it": (
        "open('t', 'w').write('x'); os.mkdir('out'); os.replace('t', 'out/t');"
        " os.rename('mine.txt', 'out/mine')"
    ),
    "by a child": (
        "os.mkdir('out'); p = os.fork() or (open('out/c', 'w').write('x'), os._exit(0));"
        " os.waitpid(p, 0); os.rename('out/c', 'out/d')"
    ),
    "by importing": (
        "os.mkdir('out'); open('out/made.py', 'w').write('x = 1'); sys.path.insert(0, 'out');"
        " sys.dont_write_bytecode = False; import made"
    ),
}


@pytest.mark.parametrize("way", INSIDE)
def test_what_the_job_wrote_into_a_directory_of_its_own_goes(make_session, home, way):
    before = state(home)
    session = make_session(HEAD + INSIDE[way] + "\nopen('done', 'w').close()", keep=())
    wait_for((home / "done").exists)
    session.close()
    assert state(home) == before and not session.outcome["left"] and not session.outcome["failed"]


MOVED_IN = {
    "renamed": "os.rename(O + '/theirs', 'mine')",
    "renamed into a directory of its own": "os.mkdir('out'); os.rename(O + '/theirs', 'out/mine')",
    "in the place of a file of the user's": "os.replace(O + '/theirs', 'mine.txt')",
    "renamed, then overwritten and removed": (
        "os.rename(O + '/theirs', 'mine'); open('mine', 'w').write('x'); os.remove('mine')"
    ),
    "renamed, then appended to": "os.rename(O + '/theirs', 'mine'); open('mine', 'a').write('x')",
    "renamed, and another one made in its place": (
        "os.rename(O + '/theirs', 'mine'); open(O + '/theirs', 'w').write('x')"
    ),
    "linked, and its first name removed": (
        "os.link(O + '/theirs', 'mine'); os.unlink(O + '/theirs')"
    ),
    "a directory": (
        "os.rename(O, 'out'); open('out/theirs', 'w').write('x'); open('out/mine', 'w').write('x')"
    ),
    "a directory that is then renamed, then removed": (
        "os.rename(O, 'out'); os.rename('out', 'later'); shutil.rmtree('later')"
    ),
    "from another disk": "shutil.move(S + '/theirs', 'mine')",
    "from another disk, by way of a link to a file of the user's": (
        "os.symlink('mine.txt', 'link'); shutil.move(S + '/theirs', 'link')"
    ),
    "a directory from another disk": "shutil.move(S, 'out'); shutil.rmtree('out')",
}


@pytest.mark.parametrize("way", MOVED_IN)
def test_what_the_job_moves_to_itself_is_back_where_it_was(make_session, home, way):
    outside = home.parent / f"{home.name}-outside"
    disk = Path(
        tempfile.mkdtemp(
            prefix="autotune-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else "/var/tmp"
        )
    )
    try:
        for folder in (outside, disk):
            folder.mkdir(exist_ok=True)
            (folder / "theirs").write_text("theirs")
        before = state(home), state(outside), state(disk)
        paths = f"O, S = {str(outside)!r}, {str(disk)!r}\n"
        session = make_session(
            HEAD + paths + MOVED_IN[way] + "\nopen('done', 'w').close()", keep=()
        )
        wait_for((home / "done").exists)
        session.close()
        assert (state(home), state(outside), state(disk)) == before
        assert not session.outcome["failed"] and not session.outcome["left"]
    finally:
        shutil.rmtree(disk, ignore_errors=True)


@pytest.mark.parametrize(
    "change",
    [
        "open(T, 'w').write('x')",
        "open(T, 'a').write('x')",
        "f = open(T, 'r+'); f.write('x'); f.close()",
        "os.remove(T)",
        "open('t', 'w').write('x'); os.replace('t', T)",
        "os.rename(T, 'mine')",
        "shutil.rmtree('out')",
    ],
)
def test_what_another_program_wrote_into_a_directory_of_the_jobs_is_kept_when_the_job_changes_it(
    make_session, home, change
):
    job = (
        "T = 'out/theirs'; os.mkdir('out'); open('ready', 'w').close()\nimport time\nwhile not"
        f" os.path.exists('seen'): time.sleep(0.01)\n{change}\n"
    )
    session = make_session(HEAD + job + "open('done', 'w').close()", keep=())
    wait_for((home / "ready").exists)
    (home / "out" / "theirs").write_text("theirs")
    (home / "seen").touch()
    wait_for((home / "done").exists)
    session.close()
    assert (home / "out" / "theirs").read_text() == "theirs" and not session.outcome["failed"]
    assert sorted(p.name for p in home.iterdir() if not p.name.startswith(("session", "job"))) == [
        "empty",
        "folder",
        "mine.txt",
        "out",
        "seen",
    ]


def test_rotated_outputs_of_the_users_that_have_the_names_of_removed_ones(make_session, home):
    for number in (0, 1, 2):
        (home / f"out.{number}").mkdir()
        (home / f"out.{number}" / "model").write_text(str(number))
    rotate = (
        "shutil.rmtree('out.2'); os.rename('out.1', 'out.2'); os.rename('out.0', 'out.1');"
        " os.mkdir('out.0'); open('out.0/model', 'w').write('x')\n"
    )
    before = state(home)
    session = make_session(HEAD + rotate * 3 + "open('done', 'w').close()", keep=())
    wait_for((home / "done").exists)
    session.close()
    assert state(home) == before and not session.outcome["failed"]


def test_what_may_stay_in_a_directory_that_was_made_is_not_told(make_session, home):
    job = (
        "import os\nos.makedirs('out/data/raw'); open('out/data/raw/a', 'w').write('x');"
        " open('out/b.npy', 'w').write('x'); open('out/c', 'w').write('x')\n"
    )
    session = make_session(job + "open('done', 'w').close()", keep=("out/data/", "out/*.npy"))
    wait_for((home / "done").exists)
    session.close()
    assert (
        (home / "out/data/raw/a").exists()
        and (home / "out/b.npy").exists()
        and not (home / "out/c").exists()
    )
    assert session.outcome["left"] == []


def test_compiled_modules_stay_and_are_not_told_but_go_with_a_package_of_the_jobs_making(
    make_session, home
):
    """Otherwise each trial would compile the user's modules again, and the first run would list
    them all.
    """
    for name in ("theirs", "theirs/deep"):
        (home / name).mkdir()
        (home / name / "__init__.py").write_text("")
    job = (
        "import theirs.deep\nos.mkdir('made')\nopen('made/__init__.py', 'w').close()\nimport"
        " made\nassert os.path.isdir('made/__pycache__')\n"
    )
    session = make_session(
        HEAD
        + f"sys.path.insert(0, {str(home)!r})\nsys.dont_write_bytecode = False\n{job}open('done',"
        " 'w').close()",
        keep=(),
    )
    wait_for((home / "done").exists)
    session.close()
    compiled = {str(path.parent.relative_to(home)) for path in home.rglob("*.pyc")}
    assert {"theirs/__pycache__", "theirs/deep/__pycache__"} <= compiled and not (
        home / "made"
    ).exists()
    assert (
        not [path for path in session.outcome["removed"] if "theirs" in path]
        and not session.outcome["failed"]
    )


def test_a_job_that_writes_very_many_files_in_two_steps(recorder, home):
    written, out = home / "session" / "written", home / "out"
    records: list[dict] = [{"what": "made", "path": str(out), "folder": True}]
    for n in range(50_000):
        records.append({"what": "made", "path": f"{out}/{n}.tmp"})
        records.append(
            {
                "what": "renamed",
                "path": f"{out}/{n}.tmp",
                "to": f"{out}/{n}",
                "stays": False,
                "inode": 7,
            }
        )
    (written / "log").write_text("".join(json.dumps(record) + "\n" for record in records))
    began, log = time.process_time(), Log(str(written))
    with log.alone():
        pass
    assert (
        time.process_time() - began < 5
        and len(log.made) == 50_001
        and log.made[f"{out}/7"].inode == 7
    )


def test_a_spoilt_log_removes_nothing_it_does_not_name(recorder, home):
    recorder.makes(str(home / "out"), folder=True)
    (home / "out").mkdir()
    for name in ("a", "b"):
        recorder.opens(str(home / "out" / name), os.O_WRONLY | os.O_CREAT)
        (home / "out" / name).write_text("x")
    log = home / "session" / "written" / "log"
    log.write_bytes(log.read_bytes()[:-10] + bytes(20))
    assert (
        put_back(str(home / "session"))["left"] == [str(home / "out" / "b")]
        and not (home / "out" / "a").exists()
    )


def test_an_original_of_which_a_spoilt_log_says_nothing_is_told(recorder, home):
    recorder.removes(str(home / "mine.txt"))
    (home / "mine.txt").unlink()
    (home / "session" / "written" / "log").write_bytes(bytes(100))
    ((_, why, kept),) = put_back(str(home / "session"))["failed"]
    assert "log entry is unreadable" in why and Path(kept).read_text().startswith("the user's own")


def test_nothing_is_put_back_while_a_process_of_the_trial_still_runs(recorder, home):
    recorder.opens(str(home / "mine.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    (home / "mine.txt").write_text("theirs")
    survivor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for running in ([survivor.pid], []):  # at the session's end, at the next start
            ((_, why, _),) = put_back(str(home / "session"), running=running)["failed"]
            assert str(survivor.pid) in why and (home / "mine.txt").read_text() == "theirs"
    finally:
        survivor.kill()
        survivor.wait()
    assert put_back(str(home / "session"), late=True)["restored"] == [str(home / "mine.txt")]
    assert (home / "mine.txt").read_text().startswith("the user's own")


def test_a_session_that_could_not_end_a_process_puts_nothing_back(make_session, home, monkeypatch):
    session = make_session("open('mine.txt', 'w').write('x'); open('done', 'w').close()", keep=())
    wait_for((home / "done").exists)
    ended = session.command.wait_until_gone

    def wait(turn):
        ended(turn)
        session.command.left = [os.getpid()]

    monkeypatch.setattr(session.command, "wait_until_gone", wait)
    session.close()
    assert (home / "mine.txt").read_text() == "x" and str(os.getpid()) in session.outcome["failed"][
        0
    ][1]
    (session.paths.written / left_behind.RUNNING).unlink()
    put_back(str(session.paths.root))
    assert (home / "mine.txt").read_text().startswith("the user's own")


def test_two_processes_that_overwrite_one_file_at_once(make_session, home):
    job = (
        HEAD
        + """
children = []
for _ in range(6):
    child = os.fork()
    if not child:
        for _ in range(20):
            open('mine.txt', 'w').write('theirs'); open('empty', 'a').write('x')
        os._exit(0)
    children.append(child)
[os.waitpid(c, 0) for c in children]
open('done', 'w').close()
"""
    )
    before = state(home)
    session = make_session(job, keep=())
    wait_for((home / "done").exists)
    session.close()
    assert state(home) == before


def test_what_the_user_lets_it_write_and_what_libraries_keep_is_left_alone(
    make_session, home, monkeypatch
):
    cache = home / "library-cache"
    cache.mkdir()
    job = (
        HEAD + "open('metrics.jsonl', 'a').write('x'); os.makedirs('data/raw'); open('data/raw/a',"
        " 'w').write('x')\n"
    )
    job += (
        "open('library-cache/b', 'w').write('x'); open('ckpt.pt', 'w').write('x'); open('done',"
        " 'w').close()"
    )
    session = make_session(job, keep=("*.jsonl", "data"), env={"HF_HOME": str(cache)})
    wait_for((home / "done").exists)
    session.close()
    assert (
        (home / "metrics.jsonl").exists()
        and (home / "data/raw/a").exists()
        and (cache / "b").exists()
    )
    assert not (home / "ckpt.pt").exists()


def test_a_checkpoint_in_a_cache_is_put_back_but_not_in_one_of_a_librarys(tmp_path):
    home = tmp_path / "home"
    env = {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HF_HOME": str(tmp_path / "xdg" / "hf")}
    found = path_scope(home, env, RestoreOptions(own=[tmp_path / "run"]))
    assert PathScope.load(found.dump()).dump() == found.dump()
    cases = {
        "xdg/mine/c.pt": True,
        "xdg/hf/c.pt": False,
        "xdg/torch/c.pt": False,
        "run/c.pt": False,
        "home/c.pt": True,
    }
    assert {name: found.holds(str(tmp_path / name), checkpoint=True) for name in cases} == cases
    assert [name for name in cases if found.holds(str(tmp_path / name))] == ["home/c.pt"]


def test_data_prepared_before_training_stays_and_outputs_go(make_session, home):
    job = (
        HEAD
        + """
import tempfile, time
os.makedirs('data/raw'); open('data/raw/images', 'wb').write(bytes(3 << 20)); open('data/raw/labels', 'wb').write(b'x')
unpacked = tempfile.mkdtemp(dir='/tmp')
subprocess.run(['dd', 'if=/dev/zero', 'bs=1M', 'count=2', f'of={unpacked}/words'], check=True)
shutil.move(f'{unpacked}/words', 'words'); os.rename('large', 'data/raw/large'); os.rmdir(unpacked)
os.makedirs('out'); open('out/config.json', 'w').write('{}'); open('log.csv', 'w').write('epoch,loss')
os.makedirs('runs/1'); events = open('runs/1/events', 'wb'); events.write(bytes(3 << 20)); events.flush()
time.sleep(0.05)
open(os.path.join(os.path.dirname(os.environ['AUTOTUNE_SESSION']), 'markers', f'backward-{os.getpid()}'), 'w').close()
time.sleep(0.05)
events.write(b'more'); events.close(); open('out/model', 'wb').write(bytes(2 << 20))
open('done', 'w').close()
"""
    )
    (home / "large").write_bytes(bytes(2 << 20))
    session = make_session(job, keep=())
    wait_for((home / "done").exists)
    session.close()
    assert (home / "large").exists(), "a file of the user's, which was moved there"
    assert not [path for path in session.outcome["restored"] if path.startswith("/tmp/tmp")]
    assert (home / "data/raw/images").stat().st_size == 3 << 20 and (
        home / "data/raw/labels"
    ).exists()
    assert not any((home / name).exists() for name in ("out", "log.csv", "runs", "done"))
    assert session.outcome["prepared"] == [str(home / "data"), str(home / "words")]


def test_nothing_is_put_back_where_the_user_says_so(make_session, home):
    session = make_session("open('mine.txt', 'w').write('x')\nopen('done', 'w').close()")
    wait_for((home / "done").exists)
    session.close()
    assert (home / "mine.txt").read_text() == "x" and session.outcome is None


def test_a_large_file_changed_in_place_is_told_not_copied(make_session, home):
    with open(home / "memmap.bin", "wb") as file:
        file.truncate((1 << 30) + 1)  # a sparse file: takes no space
    session = make_session(
        "f = open('memmap.bin', 'r+b'); f.write(b'x'); f.close()\nopen('done', 'w').close()",
        keep=(),
    )
    wait_for((home / "done").exists)
    session.close()
    ((path, why),) = session.outcome["unkept"]
    assert path == str(home / "memmap.bin") and "1024 MiB" in why


def test_files_on_another_disk_are_kept_there(tmp_path):
    """Tested with the recorder alone: a session never watches /dev, which has the only other disk
    that is always there.
    """
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    other = Path(tempfile.mkdtemp(prefix="autotune-test-", dir=shm))
    try:
        (other / "out").mkdir()
        (other / "out" / "ckpt").write_text("good")
        (tmp_path / "written" / "kept").mkdir(parents=True)
        (tmp_path / "written" / "places").write_text(PathScope(str(other), (), (), (), ()).dump())
        recorder = Recorder(str(tmp_path / "written"))
        recorder.opens(str(other / "out" / "ckpt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        recorder.removes_directory(str(other / "out"))
        number = (tmp_path / "written" / "kept").stat().st_ino
        (kept,) = shm.glob(f".autotune-kept-{number:x}-*")
        assert kept.read_text() == "good"
        (other / "out").rmdir()  # a job that clears its folder finds nothing in its way
        assert put_back(str(tmp_path))["restored"] == [
            str(other / "out"),
            str(other / "out" / "ckpt"),
        ]
        assert [p.name for p in other.iterdir()] == ["out"] and not kept.exists()
        assert (other / "out" / "ckpt").read_text() == "good"
    finally:
        shutil.rmtree(other)


@pytest.fixture
def recorder(tmp_path: Path, home: Path) -> Recorder:
    (tmp_path / "session" / "written" / "kept").mkdir(parents=True)
    (tmp_path / "session" / "written" / "places").write_text(
        PathScope(str(home), (str(tmp_path / "session"),), (), (), ()).dump()
    )
    return Recorder(str(tmp_path / "session" / "written"))


def test_what_the_job_could_not_make_and_another_program_did_stays(recorder, home):
    recorder.opens(str(home / "logs" / "today"), os.O_WRONLY | os.O_CREAT)  # no such directory
    (home / "logs").mkdir()
    (home / "logs" / "today").write_text("another program's")
    before = state(home)
    assert not any(put_back(str(home / "session")).values())
    assert state(home) == before


@pytest.fixture
def pair(tmp_path: Path, home: Path) -> tuple[Recorder, Recorder]:
    """Of two sessions at the same time, the second of which uses the ledger of the first."""
    first, second = (tmp_path / "session" / "sessions" / name for name in ("first", "second"))
    (first / "written" / "kept").mkdir(parents=True)
    places = PathScope(str(home), (str(first), str(second))).dump()
    (first / "written" / "places").write_text(places)
    (first / "written" / SHARED).write_text(str(second / "written"))
    second.mkdir()
    (second / "written").symlink_to(first / "written")
    return Recorder(str(first / "written")), Recorder(str(second / "written"))


ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def write(recorder: Recorder, path: Path) -> None:
    recorder.opens(str(path), ANEW)
    path.write_text("theirs")


@pytest.mark.parametrize("last", ["first", "second"])
def test_what_two_sessions_wrote_is_put_back_once_both_have_ended(pair, home, tmp_path, last):
    """Each supervisor does its part if the tuner was killed, in any order."""
    before = state(home)
    for recorder in pair:
        write(recorder, home / "mine.txt")
        write(recorder, home / "ckpt")
        write(recorder, home / f"events-{os.path.basename(recorder.session)}")
    one = {"first": "second", "second": "first"}[last]
    waiting = put_back(str(tmp_path / "session" / "sessions" / one))
    assert (home / "ckpt").exists() and not waiting["removed"]
    if one == "first":
        assert "the other trial of its pair" in waiting["failed"][0][1]
    outcome = put_back(str(tmp_path / "session" / "sessions" / last))
    assert len(outcome["removed"]) == 3 and not outcome["failed"] and not outcome["crossed"]
    assert not any((tmp_path / "session").rglob("written")) and state(home) == before


def test_the_next_run_puts_back_what_two_sessions_wrote(pair, home, tmp_path):
    before = state(home)
    for recorder in pair:
        write(recorder, home / "mine.txt")
    for session in leftovers(str(tmp_path / "session")):
        put_back(session, late=True)
    assert not any((tmp_path / "session").rglob("written")) and state(home) == before


@pytest.mark.parametrize("crosses", ["reads", "removes", "renames", "changes"])
def test_only_what_the_other_wrote_last_is_crossed(pair, home, tmp_path, crosses):
    one, other = pair
    write(one, home / "ckpt")
    write(other, home / "ckpt")
    write(one, home / "own")
    one.reads(home / "own")
    other.reads(home / "mine.txt")
    write(other, home / "folder" / "other")
    ckpt = str(home / "ckpt")
    if crosses == "reads":
        one.reads(os.path.relpath(home / "ckpt"))
    elif crosses == "removes":
        one.removes(ckpt)
    elif crosses == "renames":
        one.renames(ckpt, str(home / "old"))
    else:
        one.opens(ckpt, os.O_RDWR)
    put_back(str(tmp_path / "session" / "sessions" / "second"))
    assert put_back(str(tmp_path / "session" / "sessions" / "first"))["crossed"] == [ckpt]


APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def crossed_by(tmp_path: Path) -> list[str]:
    put_back(str(tmp_path / "session" / "sessions" / "second"))
    return put_back(str(tmp_path / "session" / "sessions" / "first"))["crossed"]


def test_a_file_that_both_append_to_is_crossed_once_it_is_read(pair, home, tmp_path):
    one, other = pair
    for name in ("history", "log"):
        for recorder in pair:
            recorder.opens(str(home / name), APPEND)
            (home / name).touch()
    other.reads(home / "history")  # by the one that appended last
    assert crossed_by(tmp_path) == [str(home / "history")]


def test_a_file_that_is_there_already_is_still_the_others(pair, home, tmp_path):
    one, other = pair
    write(one, home / "ckpt")
    other.opens(str(home / "ckpt"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)  # this call fails
    other.reads(home / "ckpt")
    assert crossed_by(tmp_path) == [str(home / "ckpt")]


def test_under_another_name_it_is_still_the_others(pair, home, tmp_path):
    one, other = pair
    for path in (home / "linked", home / "epoch-1", home / "out" / "last"):
        if not path.parent.exists():
            one.makes(str(path.parent), folder=True)
            path.parent.mkdir()
        write(one, path)
    other.links(str(home / "linked"), str(home / "best"))
    one.makes(str(home / "latest"))
    (home / "latest").symlink_to("epoch-1")
    other.reads(home / "latest")
    other.renames(str(home / "out"), str(home / "out.1"))
    found = crossed_by(tmp_path)
    assert found == [str(home / name) for name in ("epoch-1", "linked", "out/last")]


def test_a_checkpoint_moved_into_place_outside_the_jobs_directory_is_the_others(
    pair, home, tmp_path
):
    folder = str(tmp_path / "scratch")
    os.mkdir(folder)
    for recorder in pair:
        recorder.scope = recorder.scope._replace(workdir=str(home / "folder"), temporary=(folder,))
    one, other = pair
    one.opens(f"{folder}/new", ANEW, checkpoint=True)
    Path(folder, "new").write_text("theirs")
    one.renames(f"{folder}/new", f"{folder}/ckpt")
    os.rename(f"{folder}/new", f"{folder}/ckpt")
    other.reads(f"{folder}/ckpt")
    assert crossed_by(tmp_path) == [f"{folder}/ckpt"]


@pytest.mark.parametrize("how", ["removes", "renames"])
def test_a_file_of_the_users_that_one_takes_away_is_missed_by_the_other(pair, home, tmp_path, how):
    before, one = state(home), pair[0]
    if how == "removes":
        one.removes(str(home / "mine.txt"))
        (home / "mine.txt").unlink()
    else:
        one.renames(str(home / "mine.txt"), str(home / "mine.txt.1"))
        (home / "mine.txt").rename(home / "mine.txt.1")
    assert crossed_by(tmp_path) == [str(home / "mine.txt")] and state(home) == before


def test_one_of_two_sessions_may_not_change_what_it_cannot_keep(pair, home, tmp_path):
    (tmp_path / "session" / "sessions" / "first" / "written" / "log").symlink_to("/dev/full")
    mine = str(home / "mine.txt")
    for change in (
        lambda: pair[0].opens(mine, ANEW),
        lambda: pair[1].removes(mine),
        lambda: pair[1].renames(str(home / "folder" / "other"), mine),
    ):
        with pytest.raises(CannotKeep):
            change()


def test_while_one_of_two_sessions_runs_on_the_other_has_not_ended(pair, home, tmp_path):
    """After a power cut: the first was stopped when the second changed the file."""
    before = state(home)
    write(pair[1], home / "mine.txt")
    for path in (tmp_path / "session" / "sessions" / "first").rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 1000,) * 2)
    (tmp_path / "session" / "sessions" / "second" / "stdout.log").touch()
    for session in leftovers(str(tmp_path / "session")):
        assert not put_back(session, late=True)["failed"]
    assert state(home) == before


def test_the_scope_of_two_sessions_covers_both_working_directories():
    one = PathScope("/a", ("/run/A",), ("/a/cache", "/cache"), ("/tmp",), ("data",))
    both = one.joined(PathScope("/tmp/b", ("/run/B",), ("/cache",), ("/tmp",), ("*.npy",)))
    assert PathScope.load(both.dump()) == both
    assert both.holds("/a/x") and both.holds("/tmp/b/x") and not both.holds("/tmp/c/x")
    assert both.kept("/a/data/x") and both.kept("/tmp/b/data/x") and both.kept("/tmp/b/x.npy")
    assert not both.holds("/run/B/x") and not both.holds("/cache/x")


def test_where_a_file_can_have_no_second_name(recorder, home, monkeypatch):
    """On a file system without links, or between two mounts of one disk in a container, it is
    copied.
    """

    def refuse(*_args, **_options):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    before = state(home)
    recorder.opens(str(home / "mine.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    (home / "mine.txt").write_text("theirs")
    recorder.opens(str(home / "folder" / "other"), os.O_RDWR)
    with open(home / "folder" / "other", "r+") as file:
        file.write("theirs")
    outcome = put_back(str(home / "session"))
    assert not outcome["failed"] and state(home) == before


def test_a_file_with_two_names_keeps_them(recorder, home):
    os.link(home / "mine.txt", home / "twin")
    before = state(home)
    recorder.opens(str(home / "mine.txt"), os.O_RDWR)
    with open(home / "mine.txt", "r+") as file:
        file.write("theirs")
    put_back(str(home / "session"))
    assert state(home) == before and (home / "mine.txt").samefile(home / "twin")


def test_what_cannot_be_kept_is_not_changed(recorder, home, monkeypatch):
    """A full disk: the job's own call fails, as it would soon anyway, and every time."""

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Backups, "_copy", full)
    for _ in range(2):
        with pytest.raises(CannotKeep, match="No space left"):
            recorder.opens(str(home / "mine.txt"), os.O_RDWR)
    monkeypatch.setattr(Log, "note", full)
    for call in (recorder.removes, lambda path: recorder.opens(path, os.O_WRONLY | os.O_APPEND)):
        with pytest.raises(CannotKeep, match="No space left"):
            call(str(home / "folder" / "other"))
    outcome = put_back(str(home / "session"))
    assert (
        not outcome["failed"]
        and not outcome["unkept"]
        and (home / "mine.txt").read_text().startswith("the user's own")
    )


def test_a_job_that_clears_the_directory_the_originals_lie_in(recorder, home):
    recorder.removes(str(home / "mine.txt"))
    (kept,) = (home / "session" / "written" / "kept").iterdir()
    for call in (
        lambda: recorder.removes(str(kept)),
        lambda: recorder.renames(str(home / "session"), str(home / "old")),
    ):
        with pytest.raises(CannotKeep, match="--run-dir"):
            call()


def test_killed_together_with_its_tuner(home):
    """The supervisor restores the files if the tuner is gone."""
    tuner = f"""
import sys, time
sys.path[:0] = {PYTHONPATH.split(os.pathsep)!r}
from pathlib import Path
from autotune_trials.file_restore.ledger import RestoreOptions
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts
job = "open('mine.txt', 'w').write('x'); open('ready', 'w').close()\\nimport time; time.sleep(60)"
command = Command([sys.executable, '-c', job], Path({str(home)!r}), {{}})
session = Session(command, SessionPaths(Path('session')), SessionConfig('live', ''), restore=RestoreOptions(), timeouts=Timeouts(grace_s=0.5))
session.start()
print(session.mark, flush=True)
time.sleep(60)
"""
    before = state(home)
    process = subprocess.Popen(
        [sys.executable, "-c", tuner], cwd=home, stdout=subprocess.PIPE, text=True
    )
    mark = process.stdout.readline().strip()
    wait_for((home / "ready").exists)
    assert (home / "mine.txt").read_text() == "x"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not gone_within(15.0, mark)
    wait_for(lambda: not (home / "session" / "written").exists())
    assert state(home) == before and (home / "session" / "written.json").exists()


def test_interrupted_while_the_job_still_writes(make_session, home, monkeypatch):
    """A second Ctrl-C: a job that saves when it is terminated must not do so after its files were
    restored.
    """
    job = "import signal, time\nopen('mine.txt', 'w').write('x')\n"
    job += (
        "def last(*_):\n    time.sleep(0.5); open('mine.txt', 'w').write('last'); open('saved',"
        " 'w').close(); raise SystemExit\n"
    )
    job += "signal.signal(signal.SIGTERM, last); open('done', 'w').close(); time.sleep(60)"
    before = state(home)
    session = make_session(job, keep=(), grace_s=5.0)
    wait_for((home / "done").exists)

    def interrupt(_turn):
        raise KeyboardInterrupt

    monkeypatch.setattr(session.command, "wait_until_gone", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    wait_for(lambda: not session.paths.written.exists())
    assert state(home) == before


def test_interrupted_while_files_are_put_back(make_session, home, monkeypatch):
    """If another thread may receive the signal, it is not enough to block it in this one."""
    (home / "many").mkdir()
    for number in range(60):
        (home / "many" / str(number)).write_text("the user's own")
    before = state(home)
    session = make_session(
        "import os\nfor name in os.listdir('many'):\n    os.unlink(f'many/{name}')\nopen('done',"
        " 'w').close()",
        keep=(),
    )
    wait_for((home / "done").exists)

    restored = itertools.count()

    as_it_was = restore._as_it_was

    def interrupted(*arguments) -> None:
        if next(restored) == 30:
            os.kill(os.getpid(), signal.SIGINT)
        as_it_was(*arguments)

    monkeypatch.setattr(restore, "_as_it_was", interrupted)
    over = threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    # shells make their background jobs ignore it
    before_us = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.close()
    finally:
        signal.signal(signal.SIGINT, before_us)
        over.set()
    assert state(home) == before and len(session.outcome["restored"]) == 60


@pytest.fixture
def killed(home) -> Path:
    """A session whose job, supervisor and tuner end at once, as in a power cut: nothing has been
    restored.
    """
    root = home / "session-run" / "sessions" / "0001-live"
    paths = SessionPaths(root)
    job = (
        "open('mine.txt', 'w').write('x'); open('ckpt.pt', 'w').write('x'); open('done',"
        " 'w').close()"
    )
    session = Session(
        Command([sys.executable, "-c", job], home, {}),
        paths,
        SessionConfig("live", ""),
        restore=RestoreOptions(),
        timeouts=Timeouts(grace_s=0.2),
    )
    session.start()
    wait_for((home / "done").exists)
    shutil.copytree(paths.written, root / "copy", symlinks=True)
    kept = {p.name: p.read_bytes() for p in (paths.written / "kept").iterdir()}
    before = {name: (home / name).read_bytes() for name in ("mine.txt", "ckpt.pt")}
    session.close()
    shutil.move(root / "copy", paths.written)
    (root / "written.json").unlink()
    for name, data in {**before, "done": b""}.items():
        (home / name).write_bytes(data)
    assert kept
    return home


def test_after_a_power_cut_the_next_run_puts_things_back(killed):
    run = killed / "session-run"
    (found,) = leftovers(str(run))
    put_back(found, late=True)
    assert (killed / "mine.txt").read_text().startswith("the user's own") and not (
        killed / "ckpt.pt"
    ).exists()
    assert leftovers(str(run)) == []
    (killed / "ckpt.pt").write_text("the user's next training")
    put_back(found, late=True)
    assert (killed / "ckpt.pt").read_text() == "the user's next training"


def test_what_was_put_back_is_not_newer_at_the_next_attempt(killed, monkeypatch):
    """The first one ended half way: the disk was full."""
    session = killed / "session-run" / "sessions" / "0001-live"
    (killed / "other.txt").write_text("the user's own")
    recorder = Recorder(str(SessionPaths(session).written))
    recorder.opens(str(killed / "other.txt"), os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    (killed / "other.txt").write_text("x")
    put = restore._put

    def full(path, *rest):
        if path.endswith("other.txt"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(restore, "_put", full)
        assert [path for path, *_ in put_back(str(session), late=True)["failed"]]
    assert (killed / "mine.txt").read_text().startswith("the user's own")
    time.sleep(1.1)
    monkeypatch.setattr(left_behind, "last_sign", lambda _: time.time() - 1.0)
    monkeypatch.setattr(restore, "SILENT_S", 0.0)
    failed = put_back(str(session), late=True)["failed"]
    assert str(killed / "mine.txt") not in {path for path, *_ in failed}


def test_so_does_a_judgement_that_is_moved_aside(killed):
    """Each of its sides has its own directory."""
    judged = killed / "judged"
    judged.mkdir()
    (killed / "session-run").rename(judged / "A")
    (judged / "journal.jsonl").write_text(
        '{"kind": "study", "key": "", "elapsed_s": 0.0, "data": {"digest": ""}}\n'
    )
    move_aside(judged)
    assert (killed / "mine.txt").read_text().startswith("the user's own")
    assert leftovers(str(killed / "judged.1" / "A")) == []


def test_what_was_written_since_is_not_touched(killed):
    """Power comes back, the user trains for days, then tunes again."""
    run, later = killed / "session-run", time.time() + left_behind.SILENT_S + 60
    for name in ("mine.txt", "ckpt.pt"):
        (killed / name).write_text("days of training")
        os.utime(killed / name, (later, later))
    (found,) = leftovers(str(run))
    outcome = put_back(found, late=True)
    assert (
        (killed / "ckpt.pt").read_text() == (killed / "mine.txt").read_text() == "days of training"
    )
    ((path, why, kept),) = outcome["failed"]
    assert (
        path == str(killed / "mine.txt")
        and "modified after the session ended" in why
        and Path(kept).read_text().startswith("the user's own")
    )
    assert leftovers(str(run)) == [found], "it is told again until somebody has chosen"
    Path(kept).unlink()
    assert put_back(found, late=True)["failed"] == [] and leftovers(str(run)) == []


def test_the_next_files_that_were_written_since_are_not_touched_either(killed):
    """Restoring once, and choosing a version of one file, must not count as a sign of the trial's
    life.
    """
    session = killed / "session-run" / "sessions" / "0001-live"
    (killed / "empty").write_text("the user's own")
    Recorder(str(SessionPaths(session).written)).removes(str(killed / "empty"))
    days_ago = time.time() - 5 * 86400
    for path in (session.parent.parent, *session.parent.parent.rglob("*")):
        os.utime(path, (days_ago, days_ago), follow_symlinks=False)
    for name in ("mine.txt", "empty"):
        (killed / name).write_text("days of training")
    failed = put_back(str(session), late=True)["failed"]
    assert {path for path, *_ in failed} == {str(killed / "mine.txt"), str(killed / "empty")}
    Path(next(kept for path, _, kept in failed if path.endswith("mine.txt"))).unlink()
    for _ in range(2):
        ((path, *_),) = put_back(str(session), late=True)["failed"]
        assert path == str(killed / "empty")
    assert (killed / "empty").read_text() == (killed / "mine.txt").read_text() == "days of training"


def test_old_files_that_were_copied_there_since_are_not_touched(recorder, home, monkeypatch):
    recorder.makes(str(home / "checkpoints"), folder=True)
    (home / "checkpoints").mkdir()
    (home / "checkpoints" / "mine").write_text("weeks of training")
    os.utime(home / "checkpoints" / "mine", (1e9, 1e9))  # as with cp -p and tar
    monkeypatch.setattr(
        left_behind, "last_sign", lambda _session: time.time() - left_behind.SILENT_S - 60
    )
    assert put_back(str(home / "session"), late=True)["removed"] == []
    assert (home / "checkpoints" / "mine").exists()


def test_a_file_that_cannot_be_put_back_is_told_with_its_original(make_session, home):
    session = make_session("open('mine.txt', 'w').write('x')\nopen('done', 'w').close()", keep=())
    wait_for((home / "done").exists)
    log = session.paths.written / "log"
    # a path that cannot be written
    log.write_text(log.read_text().replace(str(home / "mine.txt"), "/proc/version/mine.txt"))
    session.close()
    ((path, why, kept),) = session.outcome["failed"]
    assert (
        path == "/proc/version/mine.txt"
        and why
        and Path(kept).read_text().startswith("the user's own")
    )
