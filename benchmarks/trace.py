"""What reading a trace of 200 iterations of a convolutional net costs: at most five seconds and 500
MB.

    python benchmarks/trace.py [--iterations 200] [--rounds 5] [--write]   --write: update trace.md

The trace comes from a real training loop (three convolutions with batch norm, AdamW in a loop over
its tensors) under torch.profiler with the settings of the profiled window: shapes, types, memory.
Separate processes with fresh interpreters read it; memory is the largest resident set of such a
process, including the import of the reader. "table" is the operator table with FLOPs and bytes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S, LARGEST_MB = 5.0, 500.0

RECORD = """
import sys
import torch
from torch import nn
from autotune_trials.measure.nvtx import ProfilerRanges
from autotune_trials.measure.profiler import ProfileWindow

torch.set_num_threads(1)
blocks = [layer for a, b in ((3, 16), (16, 32), (32, 32)) for layer in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())]
net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 16, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
window, ranges = ProfileWindow(torch, sys.argv[1]), ProfilerRanges(torch)
window.start()
for _ in range(int(sys.argv[2])):
    ranges.switch("forward")
    loss = nn.functional.cross_entropy(net(x), y)
    ranges.switch("backward")
    optimizer.zero_grad()
    loss.backward()
    ranges.switch("optimizer")
    optimizer.step()
    ranges.end_iteration()
    window.step()
window.stop()
"""

READ = """
import json, resource, sys, time
from pathlib import Path
from autotune.explain.trace import read_trace
from autotune.explain.table import operators
began = time.perf_counter()
trace = read_trace(Path(sys.argv[1]))
read_s = time.perf_counter() - began
read_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 * 1.048576
began = time.perf_counter()
rows = operators(trace)
table_s = time.perf_counter() - began
table_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 * 1.048576
print(json.dumps({"read_s": read_s, "read_mb": read_mb, "table_s": table_s, "table_mb": table_mb, "iterations": len(trace.iterations),
                  "operators": len(trace.ops), "rows": len(rows)}))
"""


def python(code: str, *words: str) -> str:
    path = [str(ROOT / part) for part in ("", "trials", "search_spaces")]
    starting = f"import sys; sys.path[:0] = {path!r}\n"
    return subprocess.run(
        [sys.executable, "-c", starting + code, *words], check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what it costs to read a trace.")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the figures to trace.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json.gz"
        python(RECORD, str(trace), str(given.iterations))
        zipped_mb = trace.stat().st_size / 1e6
        count = (
            "import gzip, sys\nwith gzip.open(sys.argv[1]) as file:\n    print(sum(len(b) for b in"
            " iter(lambda: file.read(1 << 22), b'')))"
        )
        text_mb = int(python(count, str(trace))) / 1e6
        rounds = [json.loads(python(READ, str(trace))) for _ in range(given.rounds)]
    first = rounds[0]
    median = {
        name: statistics.median(r[name] for r in rounds)
        for name in ("read_s", "read_mb", "table_s", "table_mb")
    }
    worst = {name: max(r[name] for r in rounds) for name in median}
    lines = [
        (
            f"{first['iterations']} iterations, {first['operators']:,} operator calls;"
            f" {zipped_mb:.1f} MB gzipped, {text_mb:.0f} MB of JSON"
        ),
        "",
        "| | median | worst | bar |",
        "|---|---|---|---|",
        f"| read | {median['read_s']:.2f} s | {worst['read_s']:.2f} s | {LONGEST_S:g} s |",
        (
            f"| memory after reading | {median['read_mb']:.0f} MB | {worst['read_mb']:.0f} MB |"
            f" {LARGEST_MB:g} MB |"
        ),
        (
            f"| table of {first['rows']} rows | {median['table_s']:.2f} s | {worst['table_s']:.2f}"
            " s | |"
        ),
        f"| memory with the table | {median['table_mb']:.0f} MB | {worst['table_mb']:.0f} MB | |",
    ]
    print("\n".join(lines))
    if given.write:
        write(lines, given.rounds)
    if median["read_s"] > LONGEST_S or worst["read_mb"] > LARGEST_MB:
        sys.exit("the bar is not met")


def write(lines: list[str], rounds: int) -> None:
    from importlib.metadata import version

    from autotune_spaces.machine import cpu

    model = cpu()[0] or platform.machine()
    head = [
        "# Reading a trace",
        "",
        (
            f"`python benchmarks/trace.py --rounds {rounds} --write` on {model}, Python"
            f" {platform.python_version()}, torch {version('torch')}, msgspec {version('msgspec')};"
            f" {rounds} rounds, each in a process of its own."
        ),
        "",
    ]
    (ROOT / "benchmarks" / "trace.md").write_text("\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
