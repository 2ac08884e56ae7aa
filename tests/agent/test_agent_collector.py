"""Garbage collector settings: applied, reverted exactly, and left alone if the job has set them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOTS = [str(Path(__file__).parents[2] / name) for name in (".", "trials", "search_spaces")]


def run(code: str) -> str:
    """Runs in its own process: pytest has its own objects and settings."""
    head = (
        f"import sys; sys.path[:0] = {ROOTS!r}\nimport gc\nfrom autotune_trials.agent.controls"
        " import garbage_collector as collector\nfrom types import SimpleNamespace as Live\n"
        "def control(): return collector.GcControl(Live(torch=None, has_stepped=True))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_thresholds_and_frozen_objects_come_back() -> None:
    said = run("""
gc.set_threshold(600, 7, 8)
switch = control()
switch.set(50_000)
switch.set(40_000)
print(gc.get_threshold(), switch.changed)
switch.set("freeze")
print(gc.get_threshold(), gc.get_freeze_count() > 1000)
before = gc.get_freeze_count(); switch.set("freeze"); print(gc.get_freeze_count() == before)
switch.set(None)
print(gc.get_threshold(), gc.get_freeze_count(), switch.changed)
""")
    assert said.splitlines() == [
        "(40000, 7, 8) True",
        "(600, 7, 8) True",
        "True",
        "(600, 7, 8) 0 False",
    ]


def test_frozen_objects_are_not_walked_any_more() -> None:
    """The purpose of the knob: a full collection is several times faster, until it is reverted."""
    said = run("""
from time import process_time
kept = [[i] for i in range(400_000)]
def collection_s():
    best = 9.0
    for _ in range(3):
        began = process_time(); gc.collect(); best = min(best, process_time() - began)
    return best
switch, own = control(), collection_s()
switch.set("freeze"); frozen = collection_s()
switch.set(None); again = collection_s()
print(frozen < own / 4, again > own / 2)
""")
    assert said == "True True"


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("", ""),
        ("gc.disable()", "gc.disable()"),
        ("gc.disable(); gc.enable()", ""),
        ("gc.freeze()", "gc.freeze()"),
        ("gc.set_threshold(10_000)", "gc.set_threshold(10000, "),
        ("x = control(); x.set(5); x.set(None)", ""),
    ],
)
def test_what_the_job_did_itself_is_seen(code: str, call: str) -> None:
    said = run(f"collector.note()\n{code}\nprint(collector.own_setting())")
    assert said.startswith(call) and bool(said) == bool(call)


def test_nothing_is_claimed_without_a_look_at_the_start() -> None:
    assert run("gc.freeze(); print(collector.own_setting())") == ""
    assert run("print(control().changed)") == "False"
