"""A small agent for plain Python jobs: it speaks the protocol over the session's socket, and
measures nothing.
"""

from __future__ import annotations

import json
import os
import socket
import time

from autotune_spaces.facts import JobFacts, Machine
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import (
    BlockReport,
    Hello,
    PlanDone,
    Record,
    SessionConfig,
    Window,
    dump,
    load,
)

MACHINE = Machine(2, 8.0, 1.0, "cpu", "cpu", "2.13.0", "3.11")


def window(n: int, samples: float = 4.0) -> Window:
    return Window((0.01,) * n, (samples,) * n, {}, peak_memory_gib=0.5)


class Agent:
    def __init__(self, rank: int = 0, world_size: int = 1, hello: bool = True) -> None:
        from pathlib import Path

        from autotune_spaces.codec import decode

        data = json.loads(Path(os.environ["AUTOTUNE_SESSION"]).read_text("utf-8"))
        self.config = decode(SessionConfig, data)
        self.paths = SessionPaths(Path(self.config.directory))
        self.rank = rank
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self.config.socket)
        self.reader = self.socket.makefile("rb")
        self.marker("step")
        if hello:
            job = JobFacts(os.getpid(), "cpu", None, (), (), world_size=world_size)
            self.send(Hello(os.getpid(), rank, MACHINE, job, 0.1, {}))

    def marker(self, what: str) -> None:
        (self.paths.markers / f"{what}-{os.getpid()}").touch()

    def send(self, message: object) -> None:
        self.socket.sendall(dump(message))

    def plan(self):
        """The next plan; None once the tuner hangs up."""
        line = self.reader.readline()
        return load(line) if line else None

    def serve(self) -> None:
        """Answer every plan until the tuner hangs up."""
        while (plan := self.plan()) is not None:
            for block in plan.blocks:
                self.report(block)
            self.send(PlanDone(plan.id, self.rank))

    def report(self, block, **more) -> None:
        self.send(BlockReport(block.id, self.rank, window(block.iterations), **more))

    def record(self, steps: int = 5, **more) -> None:
        before = tuple(4.0 * i for i in range(steps))
        self.send(Record(self.rank, window(steps), (1.0,) * steps, before, **more))

    def pause(self) -> None:
        while self.plan() is not None:
            pass


def forever() -> None:
    while True:
        time.sleep(60)
