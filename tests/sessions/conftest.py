from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from session_paths import PYTHONPATH
from session_waits import gone_within

from autotune_trials.file_restore.ledger import RestoreOptions
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts

SHORT = Timeouts(startup_timeout_s=60.0, hang_timeout_s=10.0, grace_s=0.5)
LIMITS = {field.name for field in fields(Timeouts)}


@pytest.fixture
def job_env() -> dict[str, str]:
    """Environment in which a job can import the fake agent."""
    return {"PYTHONPATH": PYTHONPATH}


@pytest.fixture
def make_session(tmp_path: Path, job_env: dict[str, str]) -> Iterator[Callable[..., Session]]:
    """A started session of a Python script (source text) or of an argv; nothing may be left at the
    end of the test. Options are those of its :class:`Timeouts` and of its :class:`Command`.
    """
    made: list[Session] = []

    def make(
        job: str | list[str],
        *,
        root: Path | None = None,
        mode: str = "live",
        env: dict[str, str] | None = None,
        config: SessionConfig | None = None,
        kind: type[Session] = Session,
        keep: Sequence[str] | None = None,
        **options,
    ) -> Session:
        root = root or tmp_path / f"session-{len(made)}"
        root.mkdir(parents=True, exist_ok=True)
        argv = job
        if isinstance(job, str):
            script = tmp_path / f"job{len(made)}.py"
            script.write_text(textwrap.dedent(job), encoding="utf-8")
            argv = [sys.executable, str(script)]
        rest = {key: options.pop(key) for key in ("pace", "unchanged") if key in options}
        limits = {key: options.pop(key) for key in LIMITS if key in options}
        session = kind(
            Command(argv, tmp_path, {**job_env, **(env or {})}, **options),
            SessionPaths(root),
            config or SessionConfig(mode, ""),
            timeouts=replace(SHORT, **limits),
            restore=None if keep is None else RestoreOptions(keep),
            **rest,
        )
        made.append(session)
        session.start()
        return session

    yield make
    for session in made:
        session.close()
        assert not gone_within(15.0, session.mark)
        assert not os.path.exists(session.config.socket)
