"""From interpreter start to a working agent: wait until the job has imported torch, then install.

Hardly anything is imported here, so that a process without torch (a launcher, a compiler
worker, a shell helper) pays about a millisecond.
"""

from __future__ import annotations

import os
from typing import Any

from autotune_trials.agent.bootstrap import import_hook, log

# as in autotune_spaces.base, whose import would cost every process some milliseconds
KNOB_VARIABLES = "AUTOTUNE_KNOB_"
# variables that make OpenMP bind the thread that loads it to one CPU
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def watch() -> None:
    """Start watching this process for the import of torch and for files it writes."""
    log.leave_marker("python")
    if os.path.isdir(os.path.join(log.directory(), "written")):
        watch_writing()
    _before_the_job()
    import_hook.call("torch", on_torch)


def watch_writing() -> None:
    """Record which files this process changes, so that the session's changes can be undone."""
    try:
        from autotune_trials.agent.side_effects import file_watch

        file_watch.watch()
    except Exception:  # whatever it is, the job goes on; the tuner sees the marker
        log.write_exception("written")
        log.leave_marker("unrecorded")


def _before_the_job() -> None:
    """Read and set what is needed before the job's first line. Never raises into the job."""
    try:
        from autotune_trials.agent.controls import garbage_collector

        garbage_collector.note()
        if any(variable.startswith(KNOB_VARIABLES) for variable in os.environ):
            from autotune_spaces.knobs import at_start

            at_start(os.environ)
        if any(os.environ.get(name) for name in BINDING):
            from autotune_spaces import machine

            machine.note_cpus()
    except Exception as error:
        _report_left_out("before the job", error)


def _report_left_out(where: str, error: Exception) -> None:
    log.write_exception(where)
    log.tell(
        "a setting could not be applied; the job keeps its own value "
        f"({type(error).__name__}: {error})"
    )


def on_torch(torch: Any) -> None:
    """torch has just been imported: install the agent. Never raises into the job."""
    log.leave_marker("torch")
    try:
        from autotune_spaces.knobs import at_import

        at_import(torch, os.environ)
    except Exception as error:
        _report_left_out("at import", error)
    try:
        import json

        from autotune_spaces.codec import decode
        from autotune_trials.agent.core.agent import Agent
        from autotune_trials.protocol.messages import SESSION_VARIABLE, SessionConfig

        with open(os.environ[SESSION_VARIABLE], encoding="utf-8") as file:
            config = decode(SessionConfig, json.load(file))
        agent = Agent(torch, config)
    except Exception as error:
        log.write_exception("start")
        log.tell(f"the job runs without its tuned settings ({type(error).__name__}: {error})")
        return
    agent.install()
