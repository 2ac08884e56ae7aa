from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session_paths import PYTHONPATH
from session_waits import gone_within

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.session import Session


@pytest.fixture
def job_env() -> dict[str, str]:
    """Environment in which a job can import the fake agent."""
    return {"PYTHONPATH": PYTHONPATH}


@pytest.fixture
def make_session(tmp_path: Path, job_env: dict[str, str]) -> Iterator[Callable[..., Session]]:
    """A started session of a Python script (source text) or of an argv; nothing may be left at the
    end of the test.
    """
    made: list[Session] = []

    def make(
        job: str | list[str],
        *,
        root: Path | None = None,
        mode: str = "live",
        env: dict[str, str] | None = None,
        kind: type[Session] = Session,
        **options,
    ) -> Session:
        root = root or tmp_path / f"session-{len(made)}"
        root.mkdir(parents=True, exist_ok=True)
        argv = job
        if isinstance(job, str):
            script = tmp_path / f"job{len(made)}.py"
            script.write_text(textwrap.dedent(job), encoding="utf-8")
            argv = [sys.executable, str(script)]
        config = options.pop("config", SessionConfig(mode, ""))
        options = {"grace_s": 0.5, "startup_timeout_s": 60.0, "hang_timeout_s": 10.0, **options}
        session = kind(
            argv, tmp_path, {**job_env, **(env or {})}, SessionPaths(root), config, **options
        )
        made.append(session)
        session.start()
        return session

    yield make
    for session in made:
        session.close()
        assert not gone_within(15.0, session.mark)
        assert not os.path.exists(session.config.socket)
