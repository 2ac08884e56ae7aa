"""Nsight around a session: the command it is started with, the report it writes, and how that is
read.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from fake_nsight import put
from tiers import slow

from autotune.explain import nsight
from autotune.explain.nsight import (
    NCU,
    NSYS,
    Unreadable,
    export,
    function_name,
    ncu_words,
    nsys_words,
    parse_ncu,
    read_sqlite,
)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    for name in ("nsys", "ncu"):
        put(folder, name)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def exported(tools: Path, tmp_path: Path) -> Path:
    report = tmp_path / "one.nsys-rep"
    report.write_text("report")
    return export(report)


def test_only_the_capture_range_is_recorded() -> None:
    words = nsys_words("/run/nsight")
    assert words[:2] == ("nsys", "profile") and words[-2:] == ("-o", "/run/nsight")
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none"} <= set(
        words
    )
    assert words[words.index("-t") + 1] == "cuda,nvtx,osrt,cudnn,cublas"


def test_ncu_is_told_which_kernels_and_how_many() -> None:
    words = ncu_words(
        "/run/nsight",
        [
            "void at::native::foo<4, std::array<char*, 2>>(int, float*)",
            "ampere_sgemm_128x64_tn",
            "foo",
        ],
    )
    assert words[words.index("--kernel-name") + 1] == "regex:^(foo|ampere_sgemm_128x64_tn)$"
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert int(words[words.index("--launch-count") + 1]) == nsight.NCU_LAUNCHES
    assert "--kernel-name" not in ncu_words("/run/nsight", [])


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int,"
                " float*)"
            ),
            "vectorized_elementwise_kernel",
        ),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("sgemm_nn", "sgemm_nn"),
        ("", ""),
    ],
)
def test_a_kernels_own_name(kernel: str, name: str) -> None:
    assert function_name(kernel) == name


def test_what_the_export_says_is_read(tools: Path, tmp_path: Path) -> None:
    facts = read_sqlite(exported(tools, tmp_path))
    # the job's own domain is ignored
    assert facts.steps == 10 and facts.window_s == pytest.approx(0.1)
    assert facts.busy_s == pytest.approx(0.05)  # concurrent kernels of two streams count once
    assert [(k.name, k.launches) for k in facts.kernels] == [
        ("sgemm", 10),
        ("vectorized_elementwise_kernel", 10),
    ]
    assert facts.kernels[0].seconds == pytest.approx(0.04) and facts.launches == 20
    # excludes device to host
    assert facts.host_to_device_bytes == 4e7 and facts.host_to_device_s == pytest.approx(0.01)
    assert facts.missing == ()


def test_iterations_that_torch_drew_are_found(tools: Path, tmp_path: Path) -> None:
    """Torch's NVTX has no domains, and the job may have its own iteration ranges."""
    path = exported(tools, tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM NVTX_EVENTS WHERE eventType = 75")
        database.execute("INSERT INTO StringIds VALUES (7, 'autotune::iteration')")
        database.execute("UPDATE NVTX_EVENTS SET textId = 7, domainId = 0 WHERE textId = 4")
    assert read_sqlite(path).steps == 10


def test_a_table_that_is_not_there_is_named(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS_DROP", "NVTX_EVENTS CUPTI_ACTIVITY_KIND_MEMCPY")
    facts = read_sqlite(exported(tools, tmp_path))
    assert facts.missing == ("no table CUPTI_ACTIVITY_KIND_MEMCPY", "no table NVTX_EVENTS")
    assert facts.host_to_device_bytes is None and facts.steps == 0 and facts.launches == 20


def test_a_column_that_is_not_there_is_named(tools: Path, tmp_path: Path) -> None:
    path = exported(tools, tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY RENAME COLUMN copyKind TO kind")
    assert read_sqlite(path).missing == ("no copyKind in CUPTI_ACTIVITY_KIND_MEMCPY",)


def test_an_export_without_kernels_cannot_be_used(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS_DROP", "CUPTI_ACTIVITY_KIND_KERNEL")
    with pytest.raises(Unreadable, match="no kernels .*no table CUPTI_ACTIVITY_KIND_KERNEL"):
        read_sqlite(exported(tools, tmp_path))


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_text(
        "not a database at all, but long enough to be looked at" * 10
    )
    with pytest.raises(Unreadable, match="cannot be read"):
        read_sqlite(tmp_path / "x.sqlite")


def test_ncus_table(tools: Path, tmp_path: Path) -> None:
    first, second = nsight.read_ncu(tmp_path / "one.ncu-rep")
    assert (
        first.name == "sgemm"
        and first.duration_s == pytest.approx(1.25e-3)
        and first.compute_share == pytest.approx(0.815)
    )
    assert second.memory_share == pytest.approx(0.9225) and first.memory_share is None
    with pytest.raises(Unreadable, match="Kernel Name"):
        parse_ncu("==ERROR== nothing was profiled\n")


def test_where_a_tool_cannot_serve_there_is_one_sentence(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "computes on the CPU" in NSYS.missing(
        "cpu"
    ) and "torch.profiler was used" in NSYS.missing("cpu")
    assert NSYS.missing("cuda", ranks=8) == "" and NCU.missing("cuda") == ""
    assert "between ranks" in NCU.missing("cuda", ranks=8)
    monkeypatch.setenv("PATH", str(tools.parent))
    assert "no nsys on PATH" in NSYS.missing("cuda") and "no ncu on PATH" in NCU.missing("cuda")


JOB = """
import json, os, sys
from pathlib import Path
from fake_agent import Agent
agent = Agent()
Path(sys.argv[1]).write_text(json.dumps({"parent": Path(f"/proc/{os.getppid()}/cmdline").read_text(), "capture": agent.config.capture}))
agent.record(agent.config.steps)
if "--stubborn" in sys.argv:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
agent.pause()
import time; time.sleep(60)
"""


@pytest.mark.parametrize("words", [(), slow(("--stubborn",))], ids=["", "ignores TERM"])
def test_a_session_runs_inside_the_tool_and_its_report_is_waited_for(
    tools: Path, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.executors.base import Capture, FixedRun
    from autotune.executors.local import LocalExecutor
    from autotune.job.spec import JobSpec, SideEffects
    from autotune_spaces.base import SearchSpace
    from autotune_trials.session.waiting import Timeouts

    # a process that ignores TERM gets five times this grace
    monkeypatch.setattr("autotune.executors.local.Timeouts", partial(Timeouts, grace_s=0.2))
    root = Path(__file__).parents[2]
    path = os.pathsep.join(
        str(root / part) for part in ("trials", "search_spaces", "tests/sessions")
    )
    (tmp_path / "job.py").write_text(JOB)
    seen = tmp_path / "seen.json"
    spec = JobSpec(
        "job",
        (sys.executable, str(tmp_path / "job.py"), str(seen), *words),
        tmp_path,
        {"PYTHONPATH": path},
        SearchSpace("test", ()),
        side_effects=SideEffects(put_back=False),
    )
    executor = LocalExecutor(spec, tmp_path / "run")
    capture = Capture(nsys_words("{report}"), ".nsys-rep")
    record = executor.run_fixed(
        FixedRun({}, seed=0, steps=5, profile=True, label="nsys-baseline", capture=capture)
    )
    report = Path(record.notes["report"])
    assert (
        report == tmp_path / "run" / "sessions" / "0001-nsys-baseline" / "nsight.nsys-rep"
        and report.exists()
    )
    facts = json.loads(seen.read_text())
    assert str(tools / "nsys") in facts["parent"] and facts["capture"] is True
    (call,) = [json.loads(line) for line in (tools / "nsys.calls").read_text().splitlines()]
    assert call[-len(spec.command) :] == list(spec.command) and str(report.with_suffix("")) in call
    executor.close()


@pytest.mark.gpu
@pytest.mark.parametrize("tool", [NSYS, NCU], ids=lambda t: t.name)
def test_the_real_tool_captures_the_window(tmp_path: Path, tool: nsight.Tool) -> None:
    import shutil
    import subprocess

    if shutil.which(tool.name) is None:
        pytest.skip(f"no {tool.name} here")
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(512, 512).cuda()\noptimizer ="
        " torch.optim.SGD(model.parameters(), lr=0.1)\nfor _ in range(2000):\n   "
        " model(torch.ones(64, 512).cuda()).sum().backward(); optimizer.step();"
        " optimizer.zero_grad()\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: job\ncommand: python train.py\ntracking: {uri: null}\n"
    )
    done = subprocess.run(
        ["autotune", "profile", "job.yaml", f"--{tool.name}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "autotune-runs" / "job-profile" / "summary.json").read_text())[
        "explanation"
    ]
    side = found["sides"]["baseline"]
    assert found["notes"] == [], found["notes"]
    if tool is NSYS:
        assert (
            side["nsight"].endswith(".nsys-rep")
            and side["nsight_facts"]["steps"] >= 10
            and side["nsight_facts"]["launches"] > 0
        )
    else:
        assert side["ncu"].endswith(".ncu-rep") and side["counters"]
