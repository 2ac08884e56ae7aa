"""Watches file changes in every process of a trial, and has each recorded before it happens (see
recorder.py).

    open, os.remove, os.rename, os.mkdir, …   Python's own audit events: nothing is patched
    torch.save, torch.jit.save, safetensors   write from C++ and Rust, which raise none    patches/saving.py, when they are imported
    mlflow, wandb                             addresses given in the code                  trackers.py, when they are imported

Active only if the session has a ledger, which ``launch`` never has. An event that is not about
writing costs one dictionary look-up.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.file_restore.backups import CannotKeep
from autotune_trials.file_restore.recorder import Recorder
from autotune_trials.file_restore.scope import resolved

_WRITES = os.O_WRONLY | os.O_RDWR
_ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

_recorder: Recorder | None = None
_inside = threading.local()
_LIBRARIES = (
    ("torch.serialization", "patches.saving", "watch_torch_save"),
    ("torch.jit._script", "patches.saving", "watch_torchscript"),
    ("safetensors", "patches.saving", "watch_safetensors"),
    ("mlflow.tracking._tracking_service.utils", "side_effects.trackers", "keep_mlflow_here"),
    ("wandb", "side_effects.trackers", "keep_wandb_offline"),
)


def watch() -> None:
    """Start watching. An audit hook cannot be removed: it lasts as long as the process."""
    global _recorder
    if _recorder is not None:
        return
    _recorder = Recorder(os.path.join(log.directory(), "written"))
    sys.addaudithook(_hook)
    from autotune_trials.agent.bootstrap import import_hook

    for module, part, name in _LIBRARIES:
        import_hook.call(module, functools.partial(_run, part, name))


def _run(part: str, name: str, module: Any) -> None:
    """Call ``name`` of our module ``part``, which is imported only now: most processes need none of
    these modules.
    """
    import importlib

    getattr(importlib.import_module(f"autotune_trials.agent.{part}"), name)(module)


def about_to_write(path: Any) -> None:
    """A library that raises no events is about to write the checkpoint ``path``.

    Raises:
        CannotKeep: the file must not be written.
    """
    if isinstance(path, (str, bytes, os.PathLike)):
        _note(lambda recorder: recorder.opens(resolved(path), _ANEW, checkpoint=True))


def _hook(event: str, args: tuple[Any, ...]) -> None:
    handler = _HANDLERS.get(event)
    if handler is not None:
        handler(*args)


def _note(what: Callable[[Recorder], None]) -> None:
    """Have something recorded. The recorder's own file operations raise events as well;
    those are ignored.
    """
    if _recorder is None or getattr(_inside, "noting", False):
        return
    with not_recording():
        try:
            what(_recorder)
        except CannotKeep:  # fail rather than lose one of the user's files
            raise
        except Exception:  # the job goes on; the tuner sees the marker
            log.write_exception("written")
            log.leave_marker("unrecorded")


@contextlib.contextmanager
def not_recording() -> Iterator[None]:
    """This thread's own file operations are not recorded meanwhile."""
    before, _inside.noting = getattr(_inside, "noting", False), True
    try:
        yield
    finally:
        _inside.noting = before


def _on_open(path: Any, mode: Any, flags: Any) -> None:
    if not isinstance(flags, int) or isinstance(path, int):
        return
    if flags & _WRITES:
        _note(lambda recorder: recorder.opens(resolved(path), flags))
    elif _recorder is not None and _recorder.session:
        _note(lambda recorder: recorder.reads(path))


def _on_remove(path: Any, folder: int = -1) -> None:
    _note(lambda recorder: recorder.removes(resolved(path, folder, last=False)))


def _on_rename(source: Any, target: Any, source_folder: int = -1, target_folder: int = -1) -> None:
    _note(
        lambda recorder: recorder.renames(
            resolved(source, source_folder, last=False), resolved(target, target_folder, last=False)
        )
    )


def _on_mkdir(path: Any, mode: int = 0, folder: int = -1) -> None:
    _note(lambda recorder: recorder.makes(resolved(path, folder, last=False), folder=True))


def _on_rmdir(path: Any, folder: int = -1) -> None:
    _note(lambda recorder: recorder.removes_directory(resolved(path, folder, last=False)))


def _on_mode(path: Any, *_: Any) -> None:
    if not isinstance(path, int):
        _note(lambda recorder: recorder.changes_mode(resolved(path)))


def _on_truncate(path: Any, length: int = 0) -> None:
    if not isinstance(path, int):
        _note(lambda recorder: recorder.opens(resolved(path), os.O_WRONLY))


def _on_link(source: Any, target: Any, source_folder: int = -1, target_folder: int = -1) -> None:
    _note(
        lambda recorder: recorder.links(
            resolved(source, source_folder, last=False), resolved(target, target_folder, last=False)
        )
    )


def _on_symlink(source: Any, target: Any, folder: int = -1) -> None:
    _note(lambda recorder: recorder.makes(resolved(target, folder, last=False)))


_HANDLERS: dict[str, Callable[..., None]] = {
    "open": _on_open,
    "os.remove": _on_remove,
    "os.rename": _on_rename,
    "os.mkdir": _on_mkdir,
    "os.rmdir": _on_rmdir,
    "os.truncate": _on_truncate,
    "os.link": _on_link,
    "os.symlink": _on_symlink,
    "os.chmod": _on_mode,
    "os.utime": _on_mode,
}
