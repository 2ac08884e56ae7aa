"""``autotune profile``: one run of the job, what it shows, which files it writes, and how it
refuses.
"""

from __future__ import annotations

import gzip
import io
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import QUICK, Job, make_job, started
from rich.console import Console

from autotune.cli.profile import with_settings
from autotune.job.load import load_job
from autotune.profiling import disturbance
from autotune.report.profile import print_profile
from autotune.results import Profile
from autotune_spaces.codec import decode
from autotune_trials.protocol.messages import Window

PROGRAM = """\
import torch
from common import dataset, loss_function
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
open("started.txt", "w").close()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256)), nn.Linear(256, 4)
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(10_000):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss_function(net(inputs), labels).backward()
        optimizer.step()
"""


def profile(job: Job, *options: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        ["autotune", "profile", "job.yaml", *options],
        cwd=job.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    text = QUICK.replace("minutes: 1,", "minutes: 10,")  # room for the second trace
    made = make_job(tmp_path_factory.mktemp("profile") / "job", "python mine.py", text)
    (made.folder / "mine.py").write_text(PROGRAM)
    return made


@pytest.fixture(scope="module")
def done(job: Job) -> subprocess.CompletedProcess[str]:
    finished = profile(job, "--nsys", "--ncu", "--nvtx-modules", "1")
    assert finished.returncode == 0, finished.stderr
    return finished


def folder(job: Job) -> Path:
    return job.folder / "autotune-runs" / "job-profile"


def test_the_screen_says_what_a_person_asks(done: subprocess.CompletedProcess[str]) -> None:
    lines = done.stdout.splitlines()
    assert lines[0].startswith("job · profiled unchanged in ")
    assert "% of the time is spent" in lines[1]  # the bottleneck, with its figure
    for title in (
        "Where the time goes",
        "Performance summary",
        "Top operators",
        "Findings",
        "Your files",
        "Files, in autotune-runs/job-profile",
        "Next",
    ):
        assert title in lines, title
    assert any("reader cost" in line and ("ms" in line or "µs" in line) for line in lines)
    assert any("aten::" in line and "%" in line for line in lines)
    assert max(map(len, lines)) <= 130 and done.stderr == ""


def test_what_the_job_wrote_is_put_back_and_told(
    done: subprocess.CompletedProcess[str], job: Job
) -> None:
    assert "Files that the job wrote: removed: started.txt." in " ".join(done.stdout.split())
    assert not (job.folder / "started.txt").exists()
    assert json.loads((folder(job) / "summary.json").read_text())["written"]["removed"] == [
        "started.txt"
    ]


def test_tools_that_cannot_serve_get_one_line_each(
    done: subprocess.CompletedProcess[str], job: Job
) -> None:
    said = " ".join(done.stdout.split())
    for tool in ("Nsight Systems", "Nsight Compute"):
        assert said.count(f"{tool} was requested, but it profiles only GPUs") == 1
    notes = json.loads((folder(job) / "summary.json").read_text())["explanation"]["notes"]
    assert sum("torch.profiler was used" in note for note in notes) == 2


def test_a_busy_machine_is_told_under_the_headline(
    done: subprocess.CompletedProcess[str], job: Job
) -> None:
    found = decode(Profile, json.loads((folder(job) / "summary.json").read_text()))
    quiet = Window((0.01,) * 50, (32.0,) * 50, {}, foreign_load=0.1)
    assert disturbance(quiet) == ()
    notes = disturbance(replace(quiet, foreign_load=0.95))
    noted = replace(found, explanation=replace(found.explanation, notes=notes))
    console = Console(width=300, record=True, file=io.StringIO())
    print_profile(console, noted, folder(job), Path("job.yaml"))
    assert (
        console.export_text()
        .splitlines()[2]
        .startswith(
            "While the job was timed, other processes used 0.95 cores: its times may be too long;"
        )
    )


def test_summary_json_has_every_figure(done: subprocess.CompletedProcess[str], job: Job) -> None:
    found = decode(Profile, json.loads((folder(job) / "summary.json").read_text()))
    side = found.explanation.sides["baseline"]
    assert found.config == {} and side.operators and side.summary is not None
    summary = side.summary
    assert (
        0 < summary.ips_min <= summary.ips_mean <= summary.ips_max
        and summary.steps + summary.steps_skipped >= 30
    )
    assert summary.ips_mean == pytest.approx(32 / summary.batch_cost_s, rel=0.05)
    assert summary.model_flops and summary.mfu and 0 < summary.mfu < 1
    assert 0 < summary.reader_ratio < 1 and 0 < (summary.device_utilisation or 0) <= 1
    assert found.observation.bottleneck and found.observation.machine.cores


def test_the_page_stands_alone(done: subprocess.CompletedProcess[str], job: Job) -> None:
    page = (folder(job) / "profile.html").read_text()
    assert (
        "Performance summary" in page
        and "reader cost" in page
        and "<h2>Operators</h2>" in page
        and "roofline" in page.lower()
        and '<th scope="row">iteration</th>' in page
    )
    assert "What was tried" not in page and "loss unchanged" not in page  # nothing was tuned
    assert "between blocks of the unchanged job" not in page  # nor was its noise measured
    assert "src=" not in page and 'href="http' not in page and "<script" not in page


def test_the_trace_opens_everywhere_and_shows_phases_and_modules(
    done: subprocess.CompletedProcess[str], job: Job
) -> None:
    # the only name that TensorBoard's trace view accepts
    trace = folder(job) / "traces" / "baseline.pt.trace.json.gz"
    names = {
        event.get("name")
        for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    }
    assert (folder(job) / "traces" / "baseline-operators.csv").exists()
    assert {"autotune::forward", "autotune::backward", "module::body", "module::head"} <= names
    assert "module::body.0" not in names


def test_nothing_is_tuned_and_the_job_ran_once(
    done: subprocess.CompletedProcess[str], job: Job
) -> None:
    assert not any(
        (folder(job) / name).exists()
        for name in ("result.json", "tuned.yaml", "report.html", "tracking")
    )
    assert sorted(p.name for p in (folder(job) / "sessions").iterdir()) == [
        "0001-profile-baseline",
        "0002-frames-baseline",
    ]
    assert not job.left_over()


@pytest.mark.slow
def test_with_knobs_set_and_the_earlier_profile_kept(
    done: subprocess.CompletedProcess[str], job: Job
) -> None:
    finished = profile(job, "--set", "amp_dtype=bfloat16", "--set", "num_workers=1", "--json")
    assert finished.returncode == 0, finished.stderr
    data = json.loads(finished.stdout)
    assert data == json.loads((folder(job) / "summary.json").read_text())
    # the second is not in the job's search space
    assert data["config"] == {"amp_dtype": "bfloat16", "num_workers": 1}
    session = json.loads(
        (folder(job) / "sessions" / "0001-profile-baseline" / "session.json").read_text()
    )
    assert {k["name"]: k["value"] for k in session["knobs"]} == data["config"]
    assert (folder(job).with_name("job-profile.1") / "profile.html").exists()


@pytest.mark.parametrize("value", ["on", "1:30", "1e-3"])
def test_a_setting_is_read_as_in_a_job_file(value: str, tmp_path: Path) -> None:
    """Not as in YAML 1.1, where `on` is a boolean, 1:30 is 90 and 1e-3 a string."""
    (tmp_path / "job.yaml").write_text(
        "command: python train.py\n"
        f"search_space: {{mode: {{via: '--mode {{}}', values: ['off', {value}], default: 'off'}}}}\n"
    )
    spec = load_job(tmp_path / "job.yaml", check=False)
    _, config = with_settings(spec, [f"mode={value}"])
    assert config["mode"] == spec.search_space["mode"].values[-1]
    assert type(config["mode"]) is (float if value == "1e-3" else str)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("num_wrokers=2", ["no such knob", "num_workers"]),
        ("num_workers", ["no value", "KNOB=VALUE"]),
        ("amp_dtype=int3", ["amp_dtype"]),
        ("num_workers=many", ["num_workers"]),
    ],
)
def test_a_setting_that_cannot_be_meant(setting: str, words: list[str], tmp_path: Path) -> None:
    made = make_job(tmp_path / "job", "python own_modules.py")
    finished = profile(made, "--set", setting)
    assert finished.returncode == 2
    assert all(word in finished.stderr for word in words), finished.stderr
    assert "defect" not in finished.stderr and not folder(made).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            PROGRAM.replace("        optimizer.step()", "        optimizer.step(); 1 / 0"),
            ["ZeroDivisionError", "mine.py"],
        ),
        (
            PROGRAM.replace("range(10_000)", "range(2)"),
            ["ended before its iterations could be profiled", "epochs or steps"],
        ),
    ],
    ids=["raises", "too short"],
)
def test_a_job_that_cannot_be_profiled_says_why(
    program: str, words: list[str], tmp_path: Path
) -> None:
    made = make_job(tmp_path / "job", "python mine.py")
    (made.folder / "mine.py").write_text(program)
    finished = profile(made)
    assert finished.returncode == 3, finished.stderr
    assert all(word in finished.stderr for word in words), finished.stderr
    assert "defect" not in finished.stderr and not made.left_over()
