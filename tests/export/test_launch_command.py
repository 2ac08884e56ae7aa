"""`autotune launch` as a real command: the job replaces it, with the right knobs, arguments and
signals.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.export.fingerprint import (
    as_here,
    compared,
    current,
    differences,
    gpu_names,
    interpreter,
    obstacles,
    slice_name,
)
from autotune.export.launching import user_cache, write_session
from autotune.export.tuned import Provenance, TunedConfig, TunedKnob, write_tuned
from autotune_spaces.base import Start
from autotune_spaces.facts import Machine
from autotune_spaces.knobs.malloc import find
from autotune_trials.protocol.messages import SessionConfig

SHOW = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "cwd": os.getcwd(), "env": dict(os.environ),
                  "fds": sorted(map(int, os.listdir("/proc/self/fd")))}))
"""
VIA = {
    "dtype": TunedKnob(
        "on off", "off", None, {"via": "--dtype {}", "default": "off", "numerics": "exact"}
    ),
    "sched": TunedKnob(
        "static",
        "dynamic",
        None,
        {"via": "env OMP_SCHEDULE", "default": "dynamic", "numerics": "exact"},
    ),
}


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        **more,
    }


def job(tmp_path: Path, code: str, *words: str, **fields: object) -> Path:
    folder = tmp_path / "the job"
    folder.mkdir(exist_ok=True)
    (folder / "train me.py").write_text(code)
    tuned = TunedConfig("digits", (sys.executable, "train me.py", *words), folder, **fields)  # type: ignore[arg-type]
    path = tmp_path / "tuned.yaml"
    write_tuned(tuned, path)
    return path


def launch(
    path: Path, tmp_path: Path, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", "launch", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(tmp_path, **more),
    )


def test_words_reach_the_job_as_they_are(tmp_path: Path) -> None:
    awkward = ["a b", "it's", '"', "$HOME", "*", "", "--flag", "é\nx", "{x}", "${y}"]
    path = job(tmp_path, SHOW, *awkward, knobs=VIA, env={"GREETING": "a 'b' $c"})
    done = launch(path, tmp_path, "--", "--more", "x y")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["argv"] == [*awkward, "--dtype", "on off", "--more", "x y"]
    assert seen["env"]["OMP_SCHEDULE"] == "static"
    assert seen["env"]["GREETING"] == "a 'b' $c"
    assert seen["cwd"] == seen["env"]["PWD"] == str(tmp_path / "the job")
    assert "AUTOTUNE_SESSION" not in seen["env"]  # no knob here needs the agent
    assert "dtype=on off" in done.stderr and done.stderr.count("\n") == 1


def test_words_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    """`sh -c LINE --epochs 20` takes "--epochs" as the shell's name, and the job would run with its
    old epochs.
    """
    path = tmp_path / "tuned.yaml"
    write_tuned(TunedConfig("digits", ("/bin/sh", "-c", "echo trained; true"), tmp_path), path)
    assert launch(path, tmp_path).stdout == "trained\n"
    write_tuned(TunedConfig("digits", ("env", "bash", "-lc", "echo trained"), tmp_path), path)
    done = launch(path, tmp_path, "--", "--epochs", "20")
    assert done.returncode == 2 and done.stdout == ""
    assert "arguments cannot be appended" in done.stderr and "-- --epochs 20" in done.stderr


@pytest.mark.parametrize("code", [0, 1, 7, 130])
def test_exit_codes_pass_through(tmp_path: Path, code: int) -> None:
    assert (
        launch(job(tmp_path, f"import sys; sys.exit({code})", knobs=VIA), tmp_path).returncode
        == code
    )


def test_a_death_by_signal_passes_through(tmp_path: Path) -> None:
    path = job(tmp_path, "import os; os.kill(os.getpid(), 9)", knobs=VIA)
    assert launch(path, tmp_path).returncode == -9


def test_stdin_and_signals_are_the_jobs_own(tmp_path: Path) -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *a: (print("term", flush=True), os._exit(5)))
print(sys.stdin.readline().strip(), os.getpid(), flush=True)
signal.pause()
"""
    path = job(tmp_path, code, knobs=VIA)
    child = subprocess.Popen(
        [sys.executable, "-m", "autotune", "launch", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(tmp_path),
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("hello\n")
    child.stdin.flush()
    # the job has replaced the launcher's process
    assert child.stdout.readline().split() == ["hello", str(child.pid)]
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "term\n"
    assert child.wait(60) == 5
    child.stdin.close()
    child.stdout.close()


def test_broken_pipes_end_the_job_as_without_us(tmp_path: Path) -> None:
    """A Python job would ignore these signals by itself."""
    path = tmp_path / "tuned.yaml"
    line = ("/bin/sh", "-c", "grep SigIgn /proc/self/status")
    write_tuned(TunedConfig("digits", line, tmp_path), path)
    done = launch(path, tmp_path)
    assert done.returncode == 0, done.stderr
    ignored = int(done.stdout.removeprefix("SigIgn:"), 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << (number - 1), number


def test_secrets_come_from_the_environment(tmp_path: Path) -> None:
    path = job(tmp_path, SHOW, "--api-key", "${API_KEY}", knobs=VIA, env_from_launch=("API_KEY",))
    missing = launch(path, tmp_path)
    assert missing.returncode == 2 and "API_KEY" in missing.stderr and missing.stdout == ""
    there = launch(path, tmp_path, API_KEY="q1w2e3")
    assert json.loads(there.stdout)["argv"][1] == "q1w2e3"
    assert "q1w2e3" not in there.stderr
    dry = launch(path, tmp_path, "--dry-run", API_KEY="q1w2e3")
    assert "q1w2e3" not in dry.stdout + dry.stderr and "API_KEY" in dry.stdout


def test_placeholders(tmp_path: Path) -> None:
    path = job(
        tmp_path, SHOW, "--seed", "{seed}", "--out={trial_dir}", env={"LOGS": "{trial_dir}/logs"}
    )
    seen = json.loads(launch(path, tmp_path, "--seed", "3").stdout)
    out = tmp_path / "the job" / "out"
    assert seen["argv"] == ["--seed", "3", f"--out={out}"]
    assert seen["env"]["LOGS"] == f"{out}/logs" and out.is_dir()


def test_a_directory_with_a_blank_in_a_line_for_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "the job"
    folder.mkdir()
    path = tmp_path / "tuned.yaml"
    line = ("bash", "-euc", """printf "%s\\n" --out {trial_dir} "{trial_dir}" '{trial_dir}'""")
    write_tuned(TunedConfig("digits", line, folder), path)
    assert launch(path, tmp_path).stdout.splitlines() == ["--out", *[str(folder / "out")] * 3]


def test_a_line_for_a_shell_reads_no_secret_as_code(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    line = ("bash", "-e", "-c", 'printf "%s\\n" "${API_KEY}" "$1"', "sh", "${API_KEY}")
    write_tuned(TunedConfig("digits", line, tmp_path, env_from_launch=("API_KEY",)), path)
    key = """a'b"; touch pwned; $(touch pwned) `touch pwned` $HOME"""
    assert launch(path, tmp_path, API_KEY=key).stdout.splitlines() == [key, key]
    assert not (tmp_path / "pwned").exists()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    path = job(tmp_path, SHOW, "--out={trial_dir}")
    done = launch(path, tmp_path, "--out", str(path))
    assert done.returncode == 2 and f"{path} cannot be created: File exists" in done.stderr
    tuned = TunedConfig("x", (sys.executable, "t.py", "{trial_dir}"), tmp_path / "gone")
    write_tuned(tuned, path)
    done = launch(path, tmp_path)
    assert done.returncode == 2 and "the job's directory" in done.stderr
    assert not (tmp_path / "gone").exists(), "another machine's directory is not made up"


def test_force_leaves_out_no_secret(tmp_path: Path) -> None:
    words, secret = ("--key", "${API_KEY}"), {"env_from_launch": ("API_KEY",)}
    path = job(tmp_path, SHOW, *words, knobs=VIA, **secret)
    done = launch(path, tmp_path, "--force")
    assert done.returncode == 2 and "API_KEY" in done.stderr and done.stdout == ""


def test_force_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    if find("tcmalloc", Start((sys.executable,), os.environ, "/")):
        pytest.skip("tcmalloc is installed here")
    path = job(tmp_path, SHOW, knobs={"malloc": TunedKnob("tcmalloc", "default")})
    assert launch(path, tmp_path).returncode == 2
    done = launch(path, tmp_path, "--force")
    assert done.returncode == 0 and "left out malloc" in done.stderr, done.stderr


def test_a_dry_run_finds_what_the_launch_finds(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libtcmalloc.so.4").touch()
    path = job(tmp_path, SHOW, knobs={"malloc": TunedKnob("tcmalloc", "default")})
    done = launch(path, tmp_path, "--dry-run", LD_LIBRARY_PATH=str(folder))
    assert done.returncode == 0 and "malloc=tcmalloc" in done.stdout, done.stderr


def test_the_jobs_python_is_known_or_not(tmp_path: Path) -> None:
    """No other Python is asked instead: it may have a different torch."""
    for name, first in (("tool", "/usr/bin/env python3"), ("torchrun", sys.executable)):
        (tmp_path / name).write_text(f"#!{first}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    asked = {
        ("python3", "t.py"): str(tmp_path / "python3"),
        ("torchrun", "t.py"): sys.executable,
        ("tool", "t.py"): str(tmp_path / "python3"),
        ("tool", "run", "python", "t.py"): "",  # uv, conda, poetry
        ("/bin/sh", "-c", "python t.py"): "",
        ("bash", "train.sh"): "",
        ("none", "t.py"): "",
    }
    assert {words: interpreter(words, env, tmp_path) for words in asked} == asked
    machine = {"torch_version": "1.0"}
    for words, known in ((("bash", "train.sh"), False), ((sys.executable, "t.py"), True)):
        tuned = TunedConfig("x", words, tmp_path, provenance=Provenance(machine=machine))
        assert bool(differences(tuned, current(tuned, env), env)) == known


def test_instructions_that_are_there_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full quota or a home shared by many machines, a launch must not need to write."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = SessionConfig("launch", "")
    path = write_session(config)
    before = path.stat()
    assert write_session(config) == path and path.stat() == before
    path.write_text("{")  # truncated
    assert write_session(config) == path and path.stat().st_size == before.st_size


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as without a passwd entry
    assert user_cache().is_absolute()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    write_tuned(TunedConfig("x", ("no-such-program",), tmp_path), path)
    done = launch(path, tmp_path)
    assert (
        done.returncode == 2 and "no-such-program" in done.stderr and "Traceback" not in done.stderr
    )
    write_tuned(TunedConfig("x", ("python",), tmp_path / "gone"), path)
    done = launch(path, tmp_path)
    assert done.returncode == 2 and "gone" in done.stderr


TRAIN = """
import json, os, torch
from torch.utils.data import DataLoader
torch.manual_seed(0)
class Data(torch.utils.data.Dataset):
    x, y = torch.randn(64, 8), torch.randint(0, 2, (64,))
    def __len__(self): return 64
    def __getitem__(self, i): return self.x[i], self.y[i], torch.utils.data.get_worker_info() is not None
data = Data()
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps, dtypes, workers = 0, set(), set()
model[0].register_forward_hook(lambda m, a, o: dtypes.add(str(o.dtype)))
for epoch in range(2):
    for x, y, by_worker in loader:
        workers.update(by_worker.tolist())
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
print(json.dumps({"steps": steps, "threads": torch.get_num_threads(), "dtypes": sorted(dtypes), "batches": len(loader), "by_worker": sorted(workers)}))
"""


@pytest.mark.slow
def test_live_knobs_hold_from_the_first_iteration(tmp_path: Path) -> None:
    knobs = {
        "intra_op_threads": TunedKnob(1, 2),
        "amp_dtype": TunedKnob("bfloat16", "off"),
        "num_workers": TunedKnob(1, 0),
    }
    line = TRAIN[: TRAIN.index("loader = ")].count("\n") + 1
    path = job(
        tmp_path, TRAIN, knobs=knobs, provenance=Provenance(loader_key=f"train me.py:{line}#0")
    )
    done = launch(path, tmp_path, "--force")  # a CPU without bfloat16 units can be forced
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["steps"] == 16 and seen["batches"] == 8  # epochs have the right length
    assert seen["threads"] == 1
    assert seen["by_worker"] == [True]  # every sample, including the first
    forced_out = "left out amp_dtype" in done.stderr
    assert seen["dtypes"] == (["torch.float32"] if forced_out else ["torch.bfloat16"])
    (session,) = (tmp_path / "cache" / "autotune" / "launch").iterdir()
    assert not (session / "agent.log").exists(), (session / "agent.log").read_text()
    assert sorted(p.name for p in session.iterdir()) == ["markers", "session.json"]
    launch(path, tmp_path, "--force")
    # sessions do not accumulate
    assert len(list((tmp_path / "cache" / "autotune" / "launch").iterdir())) == 1


def test_a_cuda_knob_is_refused_without_cuda(tmp_path: Path) -> None:
    provenance = Provenance(job_device="cuda", machine={"device": "cuda", "device_name": "H200"})
    knobs = {"pin_memory": TunedKnob(True, False), **VIA}
    path = job(tmp_path, SHOW, knobs=knobs, provenance=provenance)
    refused = launch(path, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert refused.returncode == 2 and "pin_memory" in refused.stderr and refused.stdout == ""
    forced = launch(path, tmp_path, "--force", CUDA_VISIBLE_DEVICES="")
    assert forced.returncode == 0 and "left out pin_memory" in forced.stderr
    seen = json.loads(forced.stdout)
    assert seen["argv"] == ["--dtype", "on off"] and "AUTOTUNE_SESSION" not in seen["env"]


def test_another_machine_is_a_warning(tmp_path: Path) -> None:
    machine = {"torch_version": "1.0", "cores": 999, "cpu_model": "Abacus"}
    path = job(tmp_path, SHOW, knobs=VIA, provenance=Provenance(machine=machine))
    done = launch(path, tmp_path)
    assert done.returncode == 0
    for word in ("torch: 1.0 when tuned", "cores: 999 when tuned", "CPU: Abacus when tuned"):
        assert word in done.stderr


def test_the_same_machine_is_no_warning(tmp_path: Path) -> None:
    import torch

    from autotune_spaces.codec import encode
    from autotune_spaces.machine import probe

    tuned = TunedConfig(
        "x",
        (sys.executable, "t.py"),
        tmp_path,
        knobs=VIA,
        provenance=Provenance(machine=encode(probe())),
    )
    now = current(tuned, dict(os.environ))
    assert now.torch_version == str(torch.__version__)
    assert differences(tuned, now, os.environ) == []
    assert obstacles(tuned, now, os.environ) == {}


def test_a_slice_of_a_card_is_no_other_card() -> None:
    """CUDA names the slice; the driver's files, which a launch reads, name the card, and nvidia-smi
    the slice that a variable asks for.
    """
    then = {"device_name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}
    now = Machine(8, 64.0, 8.0, "cuda", "NVIDIA A100-SXM4-40GB", "2.13.0", "3.11")
    assert compared(as_here(then, now), now, gpu=True) == []
    assert compared(then, now, gpu=True), "two runs, one on the slice and one on the card"
    smaller = dataclasses.replace(now, device_name="NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    assert compared(as_here(then, smaller), smaller, gpu=True) == [
        ("device", then["device_name"], smaller.device_name)
    ]
    other = dataclasses.replace(now, device_name="NVIDIA H200")
    assert compared(as_here(then, other), other, gpu=True) == [
        ("device", "NVIDIA A100-SXM4-40GB", "NVIDIA H200")
    ]


LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-69e3a2a6-8d8f-4f3e-9a5c-3f8d1b2f7c10)
  MIG 3g.40gb     Device  0: (UUID: MIG-0d2fb0a1-1f52-5c33-8c4f-0f9d5c1f6a2e)
"""


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, ""),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "MIG-cba663e8,MIG-0d2f"}, "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        (
            {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "MIG-0d2fb0a1"},
            "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        ),
        ({"CUDA_VISIBLE_DEVICES": "MIG-gone"}, ""),
    ],
)
def test_a_slice_that_a_variable_shows_is_named(
    tmp_path: Path, variables: dict[str, str], name: str
) -> None:
    (tmp_path / "listed").write_text(LISTED)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/listed\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert slice_name({"PATH": path, **variables}) == name


def test_gpus_are_seen_without_torch(tmp_path: Path) -> None:
    devices, driver = tmp_path / "dev", tmp_path / "gpus"
    for number in (0, 1):
        (driver / f"0000:0{number}").mkdir(parents=True)
        (driver / f"0000:0{number}" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    devices.mkdir()
    assert gpu_names({}, devices, driver) == []
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (devices / name).touch()
    assert gpu_names({}, devices, driver) == ["NVIDIA H200", "NVIDIA H200"]
    assert gpu_names({"CUDA_VISIBLE_DEVICES": "1"}, devices, driver) == ["NVIDIA H200"]
    assert gpu_names({"CUDA_VISIBLE_DEVICES": ""}, devices, driver) == []
    (driver / "0000:00" / "information").write_text("Model: NVIDIA T400\n")
    assert gpu_names({"CUDA_VISIBLE_DEVICES": "1"}, devices, driver) == [""]


def test_every_knob_can_be_asked_about_a_gpu() -> None:
    from autotune_spaces.knobs import get, names
    from autotune_spaces.knobs.nccl import SETTINGS

    # malloc depends on what is installed
    knobs = {name: TunedKnob(get(name).example) for name in names() if name != "malloc"}
    gpu = Machine(
        8,
        64.0,
        8.0,
        "cuda",
        "H200",
        "2.13.0",
        "3.11",
        compute_capability=(9, 0),
        device_memory_gib=139.0,
        device_count=1,
        c_compiler="gcc",
    )
    tuned = TunedConfig(
        "x", ("python",), Path("/"), knobs=knobs, provenance=Provenance(job_device="cuda")
    )
    assert obstacles(tuned, gpu, os.environ) == {}
    others = [("compile_mode", mode) for mode in ("regional", "static", "dynamic")]
    others += [("nccl", value) for value in SETTINGS]
    for name, value in others:
        one = dataclasses.replace(tuned, knobs={name: TunedKnob(value)})
        assert obstacles(one, gpu, os.environ) == {}


def test_launching_is_quick(tmp_path: Path) -> None:
    """Launching imports no heavy packages, directly or indirectly."""
    done = launch(job(tmp_path, "pass", knobs=VIA), tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    imported = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "autotune.export.launching" in imported
    assert not imported & {"torch", "numpy", "optuna", "mlflow", "ray"}


def test_without_a_writable_home_the_session_file_has_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = write_session(SessionConfig("launch", ""))
    assert path.is_file() and path.parent.stat().st_mode & 0o777 == 0o700
