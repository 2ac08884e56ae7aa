"""Real trainings with a planted change, through the real agent and the converge stage's own loop.

The compact version of benchmarks/verdicts/planted.py: the same beds, the same code, two beds and a few cells on seeds
that the scored run does not use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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

# In an interpreter of its own: it forks, and imports torch.
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
def verdicts(tmp_path_factory):
    """(bed, change) -> (verdict, reason, pairs)."""
    cells = [*BREAKERS, *HARMLESS]
    runs = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(SUITE), str(runs), str(FIRST_SEED), json.dumps(cells)],
        capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(cells, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("cell", BREAKERS, ids=" ".join)
def test_a_planted_breaker_is_never_accepted(verdicts, cell):
    verdict, reason, _ = verdicts[cell]
    assert verdict in ("changed", "undecided"), reason


@pytest.mark.parametrize("cell", HARMLESS, ids=" ".join)
def test_a_harmless_change_is_never_called_changed(verdicts, cell):
    verdict, reason, _ = verdicts[cell]
    assert verdict in ("unchanged", "undecided"), reason


def test_most_harmless_changes_are_accepted_and_quickly(verdicts):
    accepted = [verdicts[cell] for cell in HARMLESS if verdicts[cell][0] == "unchanged"]
    assert len(accepted) >= len(HARMLESS) - 1
    assert sorted(pairs for _, _, pairs in accepted)[len(accepted) // 2] <= 2


def test_settings_are_told_apart_without_training(verdicts):
    verdict, reason, pairs = verdicts["transformer", "wd-x10"]
    assert (verdict, pairs) == ("changed", 1)
    assert "weight_decay" in reason
