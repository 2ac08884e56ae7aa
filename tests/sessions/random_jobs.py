"""A job that does anything to files, at random, on a tree that holds files of everybody's; then what it did is put back and looked at.

    home/     the working directory: looked after            tmp/, shm/   temporary directories, the second on another disk: not looked after
    session/  the ledger                                      cache/       a cache: not looked after

Putting back is killed in the middle now and then, and done again.

Run as a program, ``random_jobs.py FOLDER FIRST COUNT``: one job a seed. Prints what is wrong, with the seed and what the job did.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune_trials.agent.side_effects import file_watch
from autotune_trials.file_restore.recorder import Ledger
from autotune_trials.file_restore.restore import put_back
from autotune_trials.file_restore.scope import Places

STEPS = 14
NAMES = ("f", "g", "h")
FOLDERS = ("d", "e", "d/e")
OTHERS = "THEIRS"  # in what other programs write while the job runs


class World:
    """The tree, and what is where in it."""

    def __init__(self, root: Path, shm: Path) -> None:
        self.home, self.outside = root / "home", (root / "tmp", root / "cache", shm)
        self.session = root / "session"
        for place in (self.home, *self.outside):
            for number, folder in enumerate(("", *FOLDERS)):
                (place / folder).mkdir(parents=True, exist_ok=True)
                for name in NAMES[: 2 + number % 2]:
                    self._file(place / folder / name)
        (self.home / "empty").touch()
        (self.home / "nothing").mkdir()
        (self.home / "link").symlink_to("f")
        os.link(self.home / "g", self.home / "twin")
        (self.session / "written" / "kept").mkdir(parents=True)
        places = Places(str(self.home), (str(self.session),), (str(root / "cache"),), (str(root / "tmp"), str(shm)), ())
        (self.session / "written" / "places").write_text(places.dump())
        (self.session / "crumbs").mkdir()

    def _file(self, path: Path) -> None:
        path.write_text(f"USER {path}\n" * 3)
        path.chmod(0o640)

    def everything(self) -> list[Path]:
        return [path for place in (self.home, *self.outside) for path in sorted(place.rglob("*")) if ".autotune-kept" not in path.name]

    def state(self) -> dict[str, tuple[object, ...]]:
        """Of what is looked after: kind, mode, contents and times."""
        return {str(path): _state(path) for path in sorted(self.home.rglob("*"))}

    def tokens(self) -> set[str]:
        """First lines of files of the user's and of other programs' that are still somewhere, in one piece."""
        texts = (path.read_text() for path in self.everything() if path.is_file() and not path.is_symlink())
        return {text.splitlines()[0] for text in texts if text.startswith(("USER", OTHERS)) and len(set(text.splitlines()[:3])) == 1}


def _state(path: Path) -> tuple[object, ...]:
    stat = path.lstat()
    if path.is_symlink():
        return "link", os.readlink(path)
    if path.is_dir():
        return "folder", stat.st_mode
    return "file", stat.st_mode, path.read_text(), stat.st_mtime_ns


class Job:
    """What a job may do, each by a call that jobs use."""

    def __init__(self, world: World, rng: random.Random, others: bool) -> None:
        self.world, self.rng, self.others = world, rng, others
        self.done: list[str] = []
        self.stamp = 0

    def run(self, steps: int) -> None:
        ways = [way for way in dir(self) if way.startswith("do_")] + (["by_others"] * 3 if self.others else [])
        for _ in range(steps):
            way = getattr(self, self.rng.choice(ways))
            if self.rng.random() < 0.15:
                self._in_a_child(way)
            else:
                self._attempt(way)

    def _attempt(self, way: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, shutil.Error):
            way()

    def _in_a_child(self, way: Callable[[], None]) -> None:
        listens, tells = os.pipe()
        child = os.fork()
        if not child:
            self.done.clear()
            self._attempt(way)
            os.write(tells, "\n".join(self.done).encode())
            os._exit(0)
        os.close(tells)
        with open(listens) as told:
            self.done.append(f"in a child: {told.read()}")
        os.waitpid(child, 0)
        self.stamp += 1
        self.rng.random()

    def _say(self, what: str, *paths: str) -> None:
        self.done.append(" ".join((what, *paths)))

    def _text(self) -> str:
        self.stamp += 1
        return f"JOB {self.stamp}\n"

    def _place(self) -> Path:
        return self.rng.choice((self.world.home,) * 3 + self.world.outside)

    def _folder(self) -> str:
        place = self._place()
        there = [path for path in sorted(place.rglob("*")) if path.is_dir() and not path.is_symlink()]
        return str(self.rng.choice([*there, place, place / self.rng.choice(FOLDERS)]))

    def _path(self) -> str:
        return os.path.join(self._folder(), self.rng.choice((*NAMES, "new", "link")))

    def _any(self) -> str:
        """Something that is there, or may be."""
        there = sorted(self._place().rglob("*"))
        return str(self.rng.choice(there)) if there and self.rng.random() < 0.8 else self.rng.choice((self._path, self._named_folder))()

    def _named_folder(self) -> str:
        return os.path.join(self._folder(), self.rng.choice(("d", "e", "out", "nothing")))

    def _open(self, mode: str) -> None:
        path = self.rng.choice((self._path, self._any))()
        self._say("open", mode, path)
        with open(path, mode) as file:
            file.write(self._text())

    def do_overwrite(self) -> None:
        self._open("w")

    def do_write_anew(self) -> None:
        self._open("x")

    def do_append(self) -> None:
        self._open("a")

    def do_append_and_read(self) -> None:
        self._open("a+")

    def do_change(self) -> None:
        self._open("r+")

    def do_truncate(self) -> None:
        path = self._any()
        self._say("truncate", path)
        os.truncate(path, 1)

    def do_remove(self) -> None:
        path = self._any()
        self._say("remove", path)
        os.remove(path)

    def _two(self, what: str, call: Callable[[str, str], object], target: str = "") -> None:
        source = self._any()
        target = target or self.rng.choice((self._path, self._any, self._named_folder))()
        self._say(what, source, target)
        call(source, target)

    def do_rename(self) -> None:
        self._two("rename", os.rename)

    def do_rename_again(self) -> None:
        self._two("rename", os.rename)

    def do_rename_folder(self) -> None:
        source, target = self._folder(), self._named_folder()
        self._say("rename", source, target)
        os.rename(source, target)

    def do_rotate(self) -> None:
        """As programs keep their last outputs: out.1 goes, out becomes out.1, out is made anew."""
        source, target = self._folder(), self._named_folder()
        self._say("rotate", source, target)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(source, target)
        os.mkdir(source)
        Path(source, "f").write_text(self._text())

    def do_replace(self) -> None:
        """As programs write in two steps, by way of a temporary file."""
        target = self._path()
        folder = self.rng.choice((os.path.dirname(target), *map(str, self.world.outside)))
        self._say("replace", folder, target)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, prefix="temporary") as file:
            file.write(self._text())
        os.replace(file.name, target)

    def do_move(self) -> None:
        self._two("move", shutil.move)

    def do_copy(self) -> None:
        self._two("copy", lambda source, target: _mark_as_copy(shutil.copy(source, target)))

    def do_copy_tree(self) -> None:
        source, target = self._folder(), self._named_folder()
        if Path(source) in Path(target).parents:
            return
        self._say("copytree", source, target)
        shutil.copytree(source, target)
        for path in Path(target).rglob("*"):
            if path.is_file():
                _mark_as_copy(str(path))

    def do_link(self) -> None:
        self._two("link", os.link)

    def do_symlink(self) -> None:
        self._two("symlink", os.symlink, self._path())

    def do_make_folder(self) -> None:
        path = self._named_folder()
        self._say("makedirs", path)
        os.makedirs(path)

    def do_remove_folder(self) -> None:
        path = self._folder()
        if Path(path) not in (self.world.home, *self.world.outside):
            self._say("rmdir", path)
            os.rmdir(path)

    def do_remove_tree(self) -> None:
        path = self._folder()
        if Path(path) not in (self.world.home, *self.world.outside):
            self._say("rmtree", path)
            shutil.rmtree(path)

    def do_child_program(self) -> None:
        """A program that is not Python leaves something in a temporary directory, which the job then moves to itself."""
        self.stamp += 1
        source, target = self.world.outside[0] / f"unpacked{self.stamp}", self._named_folder()
        with _unseen():
            source.mkdir()
            (source / "f").write_text(f"USER {source}\n" * 3)
        self._say("child", str(source), target)
        shutil.move(str(source), target)

    def by_others(self) -> None:
        """Another program writes where nothing is."""
        path = Path(self._folder(), f"theirs{self.stamp}")
        self.stamp += 1
        self._say("others", str(path))
        with _unseen():
            path.write_text(f"{OTHERS} {path}\n" * 3)


def _mark_as_copy(path: str) -> None:
    """What the job has copied is its own: it does not count as the user's."""
    with open(path, "r+") as file:
        file.write("COPY")


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    ledger, file_watch._ledger = file_watch._ledger, None
    try:
        yield
    finally:
        file_watch._ledger = ledger


class _Killed(BaseException):
    pass


@contextlib.contextmanager
def _killed_after(changes: int) -> Iterator[None]:
    """Whoever puts things back is killed after so many changes; the next start does the rest."""
    left = iter(range(changes))
    calls = {name: getattr(os, name) for name in ("unlink", "rename", "replace", "rmdir", "truncate", "makedirs")}

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


def wrong(seed: int, root: Path, others: bool) -> list[str]:
    """What is not as it should be after one job; [] if all is well."""
    shm = Path(tempfile.mkdtemp(prefix="autotune-random-", dir="/dev/shm" if os.path.isdir("/dev/shm") else root))
    try:
        world = World(root, shm)
        before, job = world.state(), Job(world, random.Random(seed), others)
        file_watch._ledger = Ledger(str(world.session / "written"))
        try:
            job.run(STEPS)
        finally:
            file_watch._ledger = None
        alive = world.tokens()
        with contextlib.suppress(_Killed), _killed_after(random.Random(seed).choice((0, 1, 2, 4, 8, 16, 1000, 1000))):
            put_back(str(world.session))
        outcome = put_back(str(world.session))
        found = [] if others else [f"failed: {entry}" for entry in outcome["failed"]]
        found += [f"lost: {token}" for token in sorted(alive - world.tokens())]
        found += _changed(before, world.state(), {*outcome["left"], *(path for path, *_ in outcome["failed"])})
        return [f"seed {seed}", *job.done, *found] if found else []
    finally:
        shutil.rmtree(shm)


def _changed(before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]], told: set[str]) -> Iterator[str]:
    """``told``: what is somebody else's, and was named."""
    told |= {path for path, state in after.items() if str(state[2:3]).startswith(f"('{OTHERS}")}
    above = {str(folder) for path in told for folder in Path(path).parents}
    for path in sorted(before.keys() | after.keys()):
        is_told = bool(told & {path, *map(str, Path(path).parents)})
        if path not in after and not is_told:
            yield f"gone: {path}"
        elif path in before and before[path] != after.get(path) and not is_told:
            yield f"changed: {path}: {before[path]} {after[path]}"
        elif path not in before and str(after[path][2:3]).startswith("('JOB"):
            yield f"the job's own: {path}: {after[path]}"
        elif path not in before and path not in above and not is_told:
            yield f"left: {path}: {after[path]}"


def main() -> None:
    folder, first, count, others = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), "others" in sys.argv
    sys.addaudithook(file_watch._hook)
    for seed in range(first, first + count):
        root = folder / str(seed)
        if trouble := wrong(seed, root, others):
            print("\n".join(trouble))
            raise SystemExit(1)
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
