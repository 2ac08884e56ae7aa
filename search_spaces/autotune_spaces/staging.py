"""The data that a command names, and a copy of it in memory.

    python train.py --data data/train --out runs/1
                           └ names data (its flag says so), exists, lies on a disk       ─▶ copied, the word replaced
                                            └ is written to (its flag says so)           ─▶ left alone

Nothing here decides whether a copy pays: that is measured.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune_spaces.base import Start
from autotune_spaces.knobs.via import is_shell

SHM = "/dev/shm"
SOURCE = ".source"  # beside each copy: the path of the original
COUNTING_S = 60.0  # a directory whose files take longer to count takes far longer to copy
# Parts of a name by which a word is taken for data, and for a place that is written to or read once
# at start.
READ = re.compile(
    r"(?:^|[-_./])(?:data|datasets?|datadir|datapath|dataroot|train|training|trainset|root|inputs?|corpus|images?|imgs?|features)(?:$|[-_./])"
)
WRITTEN = re.compile(
    r"out|save|log|ckpt|checkpoint|resume|cache|tmp|temp|work|run|result|export|conf|model|weight|pretrain|tokenizer|project"
)
A_WORD = "a word"
CODE = (
    ".py",
    ".pyc",
    ".so",
    ".sh",
    ".yaml",
    ".yml",
    ".toml",
    ".ini",
    ".cfg",
    ".conf",
    ".ipynb",
    ".md",
)
# variables that happen to name directories
NOT_THE_JOBS = ("PWD", "OLDPWD", "HOME", "PATH", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True)
class Found:
    """A path named by the command."""

    text: str  # as it is written
    path: str  # absolute
    by: str  # the flag before it, "a word" or a variable's name


@dataclass(frozen=True)
class Size:
    bytes: int
    files: int
    trouble: str = ""  # why it cannot be copied as it is


def named_by(start: Start, wanted: str) -> tuple[list[Found], str]:
    """What of the command is to be copied, and, if that is nothing, why. ``wanted``: a path, or
    "auto".
    """
    if wanted != "auto":
        return _asked_for(start, wanted)
    if is_shell(start.argv):
        return (
            [],
            (
                "the command is a line for a shell, of which autotune does not know which words are"
                " data; say it with path:"
            ),
        )
    found = [f for f in _words(start) if _reads(f) and _is_data(f, start)]
    distinct = list({f.path: f for f in found}.values())
    outer = [
        f
        for f in distinct
        if not any(_below(f.path, other.path) and f.path != other.path for other in distinct)
    ]
    return (
        outer,
        (
            ""
            if outer
            else (
                "no word of the command names a file or directory that is clearly its data; say"
                " which with path:"
            )
        ),
    )


def size_of(path: str, seconds: float = COUNTING_S) -> Size:
    """The size of a file, or of all files below a directory, links followed.

    Counted is the length of the files, holes included, for a copy in memory has none.
    """
    deadline, total, files = time.monotonic() + seconds, 0, 0
    try:
        for entry, status in _walk(path, ()):
            if not stat.S_ISREG(status.st_mode):
                return Size(total, files, f"{entry} is neither a file nor a directory")
            total, files = total + status.st_size, files + 1
            if time.monotonic() > deadline:
                return Size(total, files, f"counting its files takes more than {seconds:.0f} s")
    except (OSError, RecursionError) as error:
        return Size(
            total,
            files,
            f"{getattr(error, 'filename', None) or path} cannot be read"
            f" ({getattr(error, 'strerror', None) or error})",
        )
    return Size(total, files)


def in_memory(path: str) -> bool:
    """Whether it lies in a file system that is memory already."""
    real, best, kind = os.path.realpath(path), "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _below(real, SHM)
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
        if point and _below(real, point) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind in ("tmpfs", "ramfs")


def copied(path: str, folder: str) -> str:
    """A copy of ``path`` below ``folder``, under its own name; made once, and complete as soon as
    it is seen.

    A directory lists its entries in the order in which the original does, as far as the file system
    lets it: a program that takes files as they come must find them in the same order.

    Raises:
        OSError: no room, or something cannot be read.
    """
    place = _place(path, folder)
    copy = os.path.join(place, os.path.basename(os.path.normpath(path)) or "data")
    if is_copied(path, folder):
        return copy
    part = place + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        _copy(path, os.path.join(part, os.path.basename(copy)), _newest_first(part))
        Path(place + SOURCE).write_text(path, encoding="utf-8", errors="surrogateescape")
        os.rename(part, place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return copy


def is_copied(path: str, folder: str) -> bool:
    """Whether :func:`copied` has made its copy already."""
    return os.path.lexists(_place(path, folder))


def bring_back(folder: str) -> list[str]:
    """Put files that were made or changed in the copies below ``folder`` where they would be had
    there been no copy; returns their paths.

    A directory of data is read, mostly; but some programs leave an index there, and it must not go
    with the copy.

    Raises:
        OSError: one of them cannot be written.
    """
    brought: list[str] = []
    for note in sorted(Path(folder).glob(f"*{SOURCE}")):
        source = note.read_text(encoding="utf-8", errors="surrogateescape")
        for copy in Path(str(note).removesuffix(SOURCE)).iterdir():
            _bring_back(str(copy), source, brought)
    return brought


def replaced(start: Start, copies: Mapping[str, str]) -> Start:
    """``start`` with every word and variable that names one of ``copies``' keys (absolute), or
    something below it, naming the copy.
    """
    if is_shell(start.argv):
        line = start.argv[2]
        for path, copy in copies.items():
            line = _in_line(line, path, copy, start.workdir)
        argv = (*start.argv[:2], line, *start.argv[3:])
    else:
        argv = (*start.argv[:1], *(_moved(word, copies, start.workdir) for word in start.argv[1:]))
    env = {
        name: (
            text
            if name in NOT_THE_JOBS or not os.path.isabs(text)
            else _moved(text, copies, start.workdir)
        )
        for name, text in start.env.items()
    }
    return replace(start, argv=argv, env=env)


# -- which words are data --------------------------------------------------------------------------


def _asked_for(start: Start, wanted: str) -> tuple[list[Found], str]:
    path = os.path.normpath(os.path.join(start.workdir, os.path.expanduser(wanted)))
    if not os.path.exists(path):
        return [], f"there is no {wanted} (in {start.workdir})"
    if _below(start.workdir, path):
        return [], f"{wanted} holds the job's own directory"
    named = replaced(start, {path: path + ".copy"}) != start
    if not named:
        return (
            [],
            (
                f"no word of the command and no variable names {wanted}, so the job could not be"
                " told where the copy is"
            ),
        )
    return [Found(wanted, path, "path")], ""


def _words(start: Start) -> Iterator[Found]:
    """Every word behind the program that names something that exists."""
    before = ""
    for word in start.argv[1:]:
        flag, equals, value = word.partition("=")
        if equals and re.fullmatch(r"-{0,2}\+{0,2}[A-Za-z][\w.-]*", flag):
            yield from _existing(value, flag, start)
            before = ""
        elif word.startswith("-") and len(word) > 1:
            before = word
        else:
            yield from _existing(word, before or A_WORD, start)
            before = ""


def _existing(text: str, by: str, start: Start) -> Iterator[Found]:
    path = os.path.normpath(os.path.join(start.workdir, os.path.expanduser(text))) if text else ""
    if path and "\0" not in path and os.path.exists(path):
        yield Found(text, path, by)


def _reads(found: Found) -> bool:
    """Its flag says that it is data; or, of a word without one, its own name."""
    if found.by == A_WORD and not re.search(r"[/.]", found.text):
        return False  # "train" may as well be the program's subcommand
    name = found.text.lower() if found.by == A_WORD else found.by.lstrip("-+").lower()
    written = os.path.basename(os.path.normpath(name)) if found.by == A_WORD else name
    return bool(READ.search(name)) and not WRITTEN.search(written)


def _is_data(found: Found, start: Start) -> bool:
    """No code, no settings, and not the place that the program itself runs in."""
    if found.path.lower().endswith(CODE) or _below(start.workdir, found.path):
        return False
    if os.path.isdir(found.path):
        return not any(
            os.path.exists(os.path.join(found.path, name))
            for name in ("__main__.py", "__init__.py")
        )
    return found.by != A_WORD or not os.access(found.path, os.X_OK)


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _moved(word: str, copies: Mapping[str, str], workdir: str) -> str:
    lead, value = "", word
    if (match := re.match(r"-{0,2}\+{0,2}[A-Za-z][\w.-]*=", word)) and not os.path.exists(
        os.path.join(workdir, word)
    ):
        lead, value = match[0], word[match.end() :]
    if not value or "\0" in value:
        return word
    path = os.path.normpath(os.path.join(workdir, os.path.expanduser(value)))
    for source, copy in copies.items():
        if _below(path, source):
            return (
                lead + copy + path[len(source.rstrip("/")) :] + ("/" if value.endswith("/") else "")
            )
    return word


def _in_line(line: str, path: str, copy: str, workdir: str) -> str:
    """A shell's line: only the path as a word of its own, or after an equals sign, written relative
    or absolute.
    """
    for text in sorted(
        {path, os.path.relpath(path, workdir), "./" + os.path.relpath(path, workdir)},
        key=len,
        reverse=True,
    ):
        line = re.sub(
            rf"(?<![^\s='\"]){re.escape(text)}(?=[/\s'\"]|$)", lambda _: shlex.quote(copy), line
        )
    return line


# -- the copy --------------------------------------------------------------------------------------


def _place(path: str, folder: str) -> str:
    """A folder of its own for each path; the name says which, for whoever looks into /dev/shm."""
    name = re.sub(r"\W+", "-", path)[-60:].strip("-") or "data"
    return os.path.join(folder, f"{name}-{zlib.crc32(os.fsencode(path)):08x}")


def _walk(path: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, os.stat_result]]:
    status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        yield path, status
        return
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise RecursionError("a link leads back to a directory above it")
    with os.scandir(path) as entries:
        for entry in entries:
            yield from _walk(entry.path, (*above, here))


def _copy(source: str, target: str, newest_first: bool) -> None:
    if not os.path.isdir(source):
        shutil.copy2(source, target)
        return
    os.mkdir(target)
    names = os.listdir(source)
    for name in reversed(names) if newest_first else names:
        _copy(os.path.join(source, name), os.path.join(target, name), newest_first)
    shutil.copystat(source, target)


def _bring_back(copy: str, source: str, brought: list[str]) -> None:
    if os.path.isdir(copy):
        for name in os.listdir(copy):
            _bring_back(os.path.join(copy, name), os.path.join(source, name), brought)
        return
    now, then = os.stat(copy), os.stat(source) if os.path.exists(source) else None
    if then is None or (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
        os.makedirs(os.path.dirname(source), exist_ok=True)
        shutil.copy2(copy, source)
        brought.append(source)


def _newest_first(folder: str) -> bool:
    """Whether directories here list last what was made first, as tmpfs did before Linux 6.6."""
    probe = os.path.join(folder, "order")
    os.mkdir(probe)
    for name in "abcd":
        Path(probe, name).touch()
    listed = os.listdir(probe)
    shutil.rmtree(probe)
    return listed == sorted(listed, reverse=True)
