"""Real trainings with a planted change, through the real agent and the converge stage's own loop.

The compact version of benchmarks/verdicts/planted.py: the same beds and code, with two beds and a
few cells on seeds that the scored run does not use.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import slow

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "verdicts"
FIRST_SEED = 40_000

BREAKERS = (
    ("mlp", "lr-x2"),
    ("mlp", "fp16 mild"),
    ("mlp", "batch x4"),
    ("mlp", "nan-50"),
    ("transformer", "stale"),
    ("transformer", "stale + other stream"),
    ("transformer", "head-dropped"),
    ("transformer", "wd-x10"),
)
HARMLESS = (
    ("mlp", "bf16"),
    ("mlp", "2 workers"),
    ("mlp", "tf32"),
    ("transformer", "jitter-weights"),
    ("transformer", "dropout-stream"),
)

# In a separate interpreter: it forks and imports torch.
PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import planted
from beds.cells import find
from beds.runs import Store
tries = [(find(bed, change), int(sys.argv[3])) for bed, change in json.loads(sys.argv[4])]
found = planted.verdicts_of(tries, Store(Path(sys.argv[2])))
print(json.dumps([[v.verdict, v.reason, v.pairs] for v in found]))
"""


@pytest.fixture(scope="module")
def verdict_of(tmp_path_factory):
    """``verdict_of(bed, change)``: (verdict, reason, pairs). A bed's baseline runs once."""
    runs = tmp_path_factory.mktemp("runs")

    @functools.cache
    def judge(bed, change):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                PROGRAM,
                SUITE,
                runs,
                str(FIRST_SEED),
                json.dumps([[bed, change]]),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])[0]

    return judge


def each(cells):
    """The first cell runs every time, the rest with the slow tests."""
    return [cells[0], *(slow(cell) for cell in cells[1:])]


@pytest.mark.parametrize("cell", each(BREAKERS), ids=" ".join)
def test_a_planted_breaker_is_never_accepted(verdict_of, cell):
    verdict, reason, _ = verdict_of(*cell)
    assert verdict in ("changed", "undecided"), reason


@pytest.mark.parametrize("cell", each(HARMLESS), ids=" ".join)
def test_a_harmless_change_is_never_called_changed(verdict_of, cell):
    verdict, reason, _ = verdict_of(*cell)
    assert verdict in ("unchanged", "undecided"), reason


@pytest.mark.slow
def test_most_harmless_changes_are_accepted_and_quickly(verdict_of):
    found = [verdict_of(*cell) for cell in HARMLESS]
    accepted = [verdict for verdict in found if verdict[0] == "unchanged"]
    assert len(accepted) >= len(HARMLESS) - 1
    assert sorted(pairs for _, _, pairs in accepted)[len(accepted) // 2] <= 2


@pytest.mark.slow
def test_settings_are_told_apart_without_training(verdict_of):
    verdict, reason, pairs = verdict_of("transformer", "wd-x10")
    assert (verdict, pairs) == ("changed", 1)
    assert "weight_decay" in reason
