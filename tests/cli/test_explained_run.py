"""A whole run of a job with two gains of known size: what the explanation says, where, and what it
costs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import make_job

TWO = """\
name: job
command: {command}
tracking: {{uri: null}}
search_space:
  num_workers: [0, 2]
  pause: {{via: "--pause {{}}", values: [0, 6], default: 6, numerics: exact}}
budget: {{minutes: 15, trials: 8}}
"""
MOST = 0.25  # maximum share of a run's wall time for explaining


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_explains_its_gain_knob_by_knob(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", "python two_gains.py", TWO)
    finished = job.run(timeout_s=1200)
    assert finished.returncode == 0, finished.stderr
    result = job.result
    assert result["knobs"] == {"num_workers": 2, "pause": 0}, (result["reason"], result["untried"])
    explanation = result["explanation"]
    first, last = explanation["build_up"]
    assert {first["knob"], last["knob"]} == {"num_workers", "pause"}
    assert (first["source"], last["source"]) == ("own gains", "confirmed")
    assert last["cumulative"] == result["speedup"]["estimate"]
    assert 1.05 < first["cumulative"] < last["cumulative"]
    assert explanation["wall_s"] <= MOST * result["wall_s"]
    page = (job.run_dir / "report.html").read_text()
    assert re.search(r'<figure[^>]* id="waterfall">\s*<svg', page)
    assert "num_workers 0 → 2" in page
    assert "autotune run " in page and "--fresh --no-history" in page
    assert (job.run_dir / "waterfall.png").exists()
