from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_job import source, torchrun

from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import SessionConfig
from autotune_trials.session.launch_environment import Command
from autotune_trials.session.session import Session
from autotune_trials.session.waiting import Timeouts
from autotune_trials.supervisor import process_tags

LIMITS = Timeouts(startup_timeout_s=120.0, hang_timeout_s=60.0, grace_s=1.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Starts sessions of the job in ddp_job.py, or of ``program``; nothing may be left at the
    test's end.
    """
    made: list[Session] = []

    def start(
        program: str = "",
        *,
        config: SessionConfig | None = None,
        options: tuple[str, ...] = (),
        job: dict | None = None,
        argv: list[str] | None = None,
        overrides: dict[str, str] | None = None,
        **limits: float,
    ) -> Session:
        (tmp_path / "train.py").write_text(program or source(**(job or {})))
        paths = SessionPaths(tmp_path / f"session{len(made)}")
        paths.root.mkdir()
        argv = argv or torchrun(*options)
        session = Session(
            Command(argv, tmp_path, {"OMP_NUM_THREADS": "1"}, overrides or {}),
            paths,
            config or SessionConfig("live", ""),
            timeouts=replace(LIMITS, **limits),
        )
        made.append(session)
        session.start()
        return session

    yield start
    for session in made:
        session.close()
        assert not process_tags.marked(session.mark)
