"""The command in docs/search.md that opens a run's study in Optuna's dashboard."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from replay import Loss
from replayed import Machine, run, table

DOCS = Path(__file__).parents[2] / "docs" / "search.md"


def asked(url: str, seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.slow
def test_the_documented_line_shows_the_study(tmp_path: Path) -> None:
    result = run(tmp_path, Machine(table(Loss())))
    (line,) = re.findall(r"`(optuna-dashboard [^`]*)`", DOCS.read_text())
    words = shlex.split(line.replace("autotune-runs/digits", str(tmp_path / "run")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words[0] = str(Path(sys.executable).parent / words[0])
    server = subprocess.Popen([*words, "--host", "127.0.0.1", "--port", str(port)])
    try:
        (study,) = asked(f"http://127.0.0.1:{port}/api/studies")["study_summaries"]
        trials = asked(f"http://127.0.0.1:{port}/api/studies/{study['study_id']}")["trials"]
    finally:
        server.terminate()
        server.wait(60)
    assert len(trials) == len([t for t in result.trials if t.origin != "process"])
