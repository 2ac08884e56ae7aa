"""Runs programs without the agent; other runs are compared with their output.

A process that has torch loaded forks for each run: tests compare the numbers that a program
computes, not how it starts.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SERVER = """# bare_runs
import json, os, runpy, sys, traceback
import numpy, torch, torch.distributed, torch.utils.data
for line in sys.stdin:
    folder, script, env = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.environ.update(env)
        for number, name in enumerate((os.devnull, "bare.out", "bare.err")):
            os.dup2(os.open(name, os.O_RDWR | (number and os.O_CREAT | os.O_TRUNC)), number)
        sys.path[0], sys.argv, code = folder, [script], 0
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def run_bare(folder: Path, script: str = "train.py", **env: str) -> str:
    """The output of ``script`` in ``folder``."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([str(folder), script, env]) + "\n")
    server.stdin.flush()
    assert server.stdout.readline() == "0\n", (folder / "bare.err").read_text()
    return (folder / "bare.out").read_text()


@cache
def _server() -> subprocess.Popen[str]:
    env = {
        name: text
        for name, text in os.environ.items()
        if name not in ("PYTHONPATH", "AUTOTUNE_SESSION")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**env, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    return process
