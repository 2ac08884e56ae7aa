"""Jobs that do random things to a tree with the user's and other programs' files; then the changes
are restored and checked.

    home/     the working directory: watched        tmp/, shm/   temporary directories, the second
    session/  the ledger                                         on another disk: not watched
                                                    cache/       a cache: not watched

A job's steps are done by its own process, by a child of it, or by another program that is not
watched. Restoring is sometimes killed in the middle, and then repeated.

Run as a program, ``random_jobs.py FOLDER COUNT`` tries COUNT jobs made by hypothesis. It prints the
smallest job that goes wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from autotune_trials.agent.side_effects import file_watch
from autotune_trials.file_restore.recorder import Recorder
from autotune_trials.file_restore.restore import put_back
from autotune_trials.file_restore.scope import PathScope

THEIRS = ("f", "g", "d/f", "d/e/f")  # in each place, from the start
NAMES = (*THEIRS, "d", "d/e", "out", "out/f", "out/d", "link", "twin", "empty")
OTHERS = "OTHERS"  # in files of other programs


class World:
    """The tree and its places."""

    def __init__(self, root: Path, shm: Path) -> None:
        self.places = {
            "home": root / "home",
            "tmp": root / "tmp",
            "cache": root / "cache",
            "shm": shm,
        }
        self.home, self.session = root / "home", root / "session"
        for place in self.places.values():
            for name in THEIRS:
                path = place / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"USER {path}\n" * 3)
                path.chmod(0o640)
        (self.home / "empty").touch()
        (self.home / "link").symlink_to("f")
        os.link(self.home / "g", self.home / "twin")
        (self.session / "written" / "kept").mkdir(parents=True)
        scope = PathScope(
            str(self.home),
            (str(self.session),),
            (str(root / "cache"),),
            (str(root / "tmp"), str(shm)),
            (),
        )
        (self.session / "written" / "places").write_text(scope.dump())
        (self.session / "markers").mkdir()

    def state(self) -> dict[str, tuple[object, ...]]:
        """Of watched files and folders: kind, mode, contents and times."""
        return {str(path): _state(path) for path in sorted(self.home.rglob("*"))}

    def tokens(self) -> dict[str, str]:
        """First line -> path of every complete file of the user and of other programs, anywhere."""
        files = (
            path
            for place in self.places.values()
            for path in place.rglob("*")
            if path.is_file() and not path.is_symlink()
        )
        texts = {str(path): path.read_text() for path in files if ".autotune-kept" not in path.name}
        return {
            text.splitlines()[0]: path
            for path, text in texts.items()
            if text.startswith(("USER", OTHERS)) and len(set(text.splitlines()[:3])) == 1
        }


def _state(path: Path) -> tuple[object, ...]:
    stat = path.lstat()
    if path.is_symlink():
        return "link", os.readlink(path)
    if path.is_dir():
        return "folder", stat.st_mode
    return "file", stat.st_mode, path.read_text(), stat.st_mtime_ns


def _text(stamp: int) -> str:
    return f"JOB {stamp}\n"


def _write(path: Path, mode: str, stamp: int) -> None:
    with open(path, mode) as file:
        file.write(_text(stamp))


def _replace(path: Path, other: Path, stamp: int) -> None:
    """Write in two steps, using a temporary file."""
    with tempfile.NamedTemporaryFile(
        "w", dir=other if other.is_dir() else path.parent, delete=False
    ) as file:
        file.write(_text(stamp))
    os.replace(file.name, path)


def _rotate(path: Path, other: Path, stamp: int) -> None:
    """Keep the last outputs, as programs do: out replaces out.1, and a new out is made."""
    shutil.rmtree(other, ignore_errors=True)
    os.rename(path, other)
    os.mkdir(path)
    _write(path / "f", "w", stamp)


def _copy(path: Path, other: Path, stamp: int) -> None:
    _mark_as_copy(Path(shutil.copy(path, other)))


def _copy_tree(path: Path, other: Path, stamp: int) -> None:
    if path not in other.parents:
        shutil.copytree(path, other)
        for copied in other.rglob("*"):
            if copied.is_file():
                _mark_as_copy(copied)


def _mark_as_copy(path: Path) -> None:
    """A copy made by the job is the job's own and does not count as the user's."""
    with open(path, "r+") as file:
        file.write("COPY")


def _unpack(path: Path, other: Path, stamp: int) -> None:
    """A program that is not Python creates something, which the job then moves into its folder."""
    with _unseen():
        unpacked = other / f"unpacked{stamp}"
        unpacked.mkdir()
        (unpacked / "f").write_text(f"{OTHERS} {unpacked}\n" * 3)
    shutil.move(unpacked, path)


WAYS: dict[str, Callable[[Path, Path, int], object]] = {
    "create": lambda path, _, stamp: _write(path, "x", stamp),
    "overwrite": lambda path, _, stamp: _write(path, "w", stamp),
    "append": lambda path, _, stamp: _write(path, "a", stamp),
    "append and read": lambda path, _, stamp: _write(path, "a+", stamp),
    "change in place": lambda path, _, stamp: _write(path, "r+", stamp),
    "truncate": lambda path, _, __: os.truncate(path, 1),
    "chmod": lambda path, _, __: os.chmod(path, 0o755 if path.is_dir() else 0o600),
    "touch": lambda path, _, __: os.utime(path),
    "unlink": lambda path, _, __: os.unlink(path),
    "rename": lambda path, other, _: os.rename(path, other),
    "replace": _replace,
    "move": lambda path, other, _: shutil.move(path, other),
    "rotate": _rotate,
    "copy": _copy,
    "copytree": _copy_tree,
    "link": lambda path, other, _: os.link(path, other),
    "symlink": lambda path, other, _: os.symlink(other, path),
    "mkdir": lambda path, _, __: os.makedirs(path),
    "rmdir": lambda path, _, __: os.rmdir(path),
    "rmtree": lambda path, _, __: shutil.rmtree(path),
    "unpack": _unpack,
}


class Step(NamedTuple):
    who: str
    way: str
    path: tuple[str, str]
    other: tuple[str, str]

    def run(self, world: World, stamp: int) -> None:
        path, other = (world.places[place] / name for place, name in (self.path, self.other))
        if self.who == "another program":
            with _unseen():
                if not os.path.lexists(path) and path.parent.is_dir():
                    path.write_text(f"{OTHERS} {path} {stamp}\n" * 3)
            return
        child = os.fork() if self.who == "a child" else 0
        if child:
            os.waitpid(child, 0)
            return
        with contextlib.suppress(OSError, shutil.Error):
            WAYS[self.way](path, other, stamp)
        if self.who == "a child":
            os._exit(0)


PATHS = st.tuples(
    st.sampled_from(("home", "home", "home", "home", "home", "tmp", "tmp", "shm", "cache")),
    st.sampled_from(NAMES),
)
BY = st.sampled_from(("the job", "the job", "the job", "the job", "a child", "another program"))
STEPS = st.lists(
    st.builds(Step, BY, st.sampled_from(tuple(WAYS)), PATHS, PATHS), min_size=1, max_size=12
)
PROGRAMS = st.tuples(STEPS, STEPS, STEPS).map(
    lambda parts: [step for part in parts for step in part]
)
KILLED_AFTER = st.sampled_from((0, 1, 2, 4, 8, 16, 1000, 1000))


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    recorder, file_watch._recorder = file_watch._recorder, None
    try:
        yield
    finally:
        file_watch._recorder = recorder


class _Killed(BaseException):
    pass


@contextlib.contextmanager
def _killed_after(changes: int) -> Iterator[None]:
    """Kill the restoring after ``changes`` changes; the next start does the rest."""
    left = iter(range(changes))
    calls = {
        name: getattr(os, name)
        for name in ("unlink", "rename", "replace", "rmdir", "truncate", "makedirs", "link")
    }

    def counted(name: str) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            if next(left, None) is None:
                raise _Killed
            return calls[name](*args, **options)

        return call

    for name in calls:
        setattr(os, name, counted(name))
    try:
        yield
    finally:
        for name, original in calls.items():
            setattr(os, name, original)


def wrong(program: list[Step], killed_after: int, root: Path) -> list[str]:
    """What is wrong after one job; [] if nothing."""
    shm = Path(
        tempfile.mkdtemp(
            prefix="autotune-random-", dir="/dev/shm" if os.path.isdir("/dev/shm") else root
        )
    )
    world = World(root, shm)
    beside = f".autotune-kept-{(world.session / 'written' / 'kept').stat().st_ino:x}-*"
    try:
        before, own_place = world.state(), world.tokens()
        file_watch._recorder = Recorder(str(world.session / "written"))
        try:
            for stamp, step in enumerate(program):
                step.run(world, stamp)
        finally:
            file_watch._recorder = None
        alive = world.tokens()
        with contextlib.suppress(_Killed), _killed_after(killed_after):
            put_back(str(world.session))
        outcome = put_back(str(world.session))
        told = {*outcome["left"], *(path for path, *_ in outcome["failed"] + outcome["unkept"])}
        others = any(step.who == "another program" or step.way == "unpack" for step in program)
        found = [] if others else [f"failed: {entry}" for entry in outcome["failed"]]
        originals = [
            Path(original) for *_, original in outcome["failed"] if os.path.isfile(original)
        ]
        there = world.tokens().keys() | {o.read_text().splitlines()[0] for o in originals}
        found += [
            f"lost: {token}"
            for token in alive.keys() - there
            if not _is_told(alive[token], told) and not _is_told(own_place.get(token, ""), told)
        ]
        still = [*root.rglob(".autotune-kept*"), *shm.parent.glob(beside)]
        found += [f"still kept: {path}" for path in still if not outcome["failed"]]
        return [*found, *_changed(before, world.state(), told)]
    finally:
        shutil.rmtree(shm)
        for original in shm.parent.glob(beside):  # of files that could not be restored
            original.unlink()


def _is_told(path: str, told: set[str]) -> bool:
    return bool(told & {path, *map(str, Path(path).parents)})


def _changed(
    before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]], told: set[str]
) -> Iterator[str]:
    """Changes to watched files. ``told``: paths that were reported."""
    # written by other programs, not by the job
    told = told | {
        path for path, state in after.items() if str(state[2:3]).startswith(f"('{OTHERS}")
    }
    above = {str(folder) for path in told for folder in Path(path).parents}
    for path in sorted(before.keys() | after.keys()):
        if _is_told(path, told):
            continue
        if path not in after:
            yield f"gone: {path}"
        elif path in before and before[path] != after[path]:
            yield f"changed: {path}: {before[path]} {after[path]}"
        elif path not in before and path not in above:
            yield f"left: {path}: {after[path]}"


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    sys.addaudithook(file_watch._hook)
    os.fsync = lambda _: None  # type: ignore[assignment]  # it would take most of the time

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(PROGRAMS, KILLED_AFTER)
    def nobody_loses_a_file(program: list[Step], killed_after: int) -> None:
        root = Path(tempfile.mkdtemp(dir=folder))
        try:
            found = wrong(program, killed_after, root)
        finally:
            shutil.rmtree(root)
        for line in found:
            note(line)
        assert not found

    nobody_loses_a_file()


if __name__ == "__main__":
    main()
