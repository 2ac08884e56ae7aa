"""`autotune launch` with data copied to memory: the job reads the copy, ends as it would, and
nothing stays behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.export import TunedConfig, TunedKnob, write_tuned
from autotune.export.formats import FORMATS

pytestmark = pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to"
)

SHOW = """
import json, os, sys
data = sys.argv[sys.argv.index("--data") + 1]
print(json.dumps({"argv": sys.argv[1:], "data": data, "text": open(data + "/a.txt").read(), "env": dict(os.environ), "cwd": os.getcwd(),
                  "cores": sorted(os.sched_getaffinity(0)), "stdin": sys.stdin.read()}))
"""
WAIT = """
import os, signal, sys, time
data = sys.argv[sys.argv.index("--data") + 1]
def told(number, frame):
    print("told", signal.Signals(number).name, flush=True)
    sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, told)
print(data, os.getpid(), flush=True)
time.sleep(99)
"""
STAGED = {"data_staging": TunedKnob("shm", "off", None, {"path": "data/train"})}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "a.txt").write_text("the data")
    return tmp_path


def tuned(
    folder: Path, code: str, knobs: dict[str, TunedKnob] | None = None, **fields: object
) -> TunedConfig:
    (folder / "train.py").write_text(code)
    return TunedConfig(
        "digits",
        (sys.executable, "train.py", "--data", "data/train"),
        folder,
        knobs=knobs or STAGED,
        **fields,
    )  # type: ignore[arg-type]


def command(config: TunedConfig, folder: Path, *words: str) -> list[str]:
    write_tuned(config, folder / "tuned.yaml")
    return [sys.executable, "-m", "autotune", "launch", str(folder / "tuned.yaml"), *words]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def launch(
    config: TunedConfig, folder: Path, *words: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(config, folder, *words),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(folder),
    )


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = in_memory()
    yield
    deadline = time.monotonic() + 5
    while in_memory() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert in_memory() == before


def in_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("autotune-")}


def test_the_job_reads_the_copy_and_nothing_stays(job: Path) -> None:
    done = launch(
        tuned(job, SHOW, env={"DATA_DIR": str(job / "data" / "train")}),
        job,
        "--",
        "--more",
        stdin="in",
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["data"].startswith("/dev/shm/autotune-") and seen["data"].endswith("/train")
    assert seen["env"]["DATA_DIR"] == seen["data"]
    assert (seen["text"], seen["stdin"], seen["argv"][-1]) == ("the data", "in", "--more")
    assert seen["cwd"] == seen["env"]["PWD"] == str(job)
    assert not os.path.exists(seen["data"])
    assert (
        done.stderr.splitlines().count(
            "autotune: staging 0.0 MiB of data to /dev/shm: data/train, 1 file"
        )
        == 1
    )


def test_quiet_says_nothing_of_the_copy(job: Path) -> None:
    done = launch(tuned(job, "print(1)"), job, "--quiet")
    assert (done.returncode, done.stdout) == (0, "1\n") and "staging" not in done.stderr


def test_with_a_knob_that_needs_the_agent(job: Path) -> None:
    one = min(os.sched_getaffinity(0))
    done = launch(tuned(job, SHOW, {**STAGED, "cpu_affinity": TunedKnob(str(one), "all")}), job)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cores"] == [one]


@pytest.mark.parametrize("code", [0, 1, 7, 130])
def test_exit_codes_pass_through(job: Path, code: int) -> None:
    assert launch(tuned(job, f"import sys; sys.exit({code})"), job).returncode == code


def test_a_death_by_signal_passes_through(job: Path) -> None:
    assert launch(tuned(job, "import os; os.kill(os.getpid(), 9)"), job).returncode == -9
    assert (
        launch(
            tuned(
                job,
                "import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)",
            ),
            job,
        ).returncode
        == -15
    )


def waiting(job: Path) -> tuple[subprocess.Popen[str], str, int]:
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command(tuned(job, WAIT), job),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment(job),
    )
    assert child.stdout is not None
    data, pid = child.stdout.readline().split()
    return child, data, int(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_job(job: Path, number: signal.Signals) -> None:
    child, data, _ = waiting(job)
    assert os.path.isdir(data)
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert (out.strip(), child.returncode, err.count("Traceback")) == (f"told {number.name}", 7, 0)
    assert not os.path.exists(data)


def test_ctrl_c_at_the_terminal_reaches_the_job_once(job: Path) -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        arguments = command(tuned(job, WAIT), job)
        os.execve(arguments[0], arguments, environment(job))
    said = b""
    while not re.search(rb"^/dev/shm/\S+ \d+\r\n", said, re.MULTILINE):  # of the job's own
        said += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    try:
        while chunk := os.read(terminal, 4096):
            said += chunk
    except OSError:  # the terminal's other end is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert said.count(b"told SIGINT") == 1 and b"Traceback" not in said
    os.close(terminal)


def test_a_killed_launcher_takes_the_job_along_and_the_next_one_tidies_up(job: Path) -> None:
    child, data, pid = waiting(job)
    child.kill()
    child.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}/exe") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}/exe")
    assert os.path.isdir(data)
    assert launch(tuned(job, "pass"), job).returncode == 0
    assert not os.path.exists(data)


def test_what_the_job_writes_into_its_data_is_not_lost(job: Path) -> None:
    code = 'import sys; open(sys.argv[sys.argv.index("--data") + 1] + "/index", "w").write("made")'
    done = launch(tuned(job, code), job)
    assert (done.returncode, (job / "data" / "train" / "index").read_text()) == (0, "made")
    assert "the job wrote into its data" in done.stderr


def test_data_that_are_gone_are_said_before_anything_starts(job: Path) -> None:
    config = tuned(job, SHOW)
    (job / "data" / "train" / "a.txt").unlink()
    (job / "data" / "train").rmdir()
    done = launch(config, job)
    assert (
        done.returncode == 2
        and "data_staging cannot be applied here: there is no data/train" in done.stderr
    )
    assert launch(tuned(job, "print('ran')"), job, "--force").stdout == "ran\n"


def test_a_dry_run_copies_nothing(job: Path) -> None:
    done = launch(tuned(job, SHOW), job, "--dry-run")
    assert "--data data/train" in done.stdout and "data_staging=shm" in done.stdout


def script(text: str, job: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (job / "run.sh").write_text(text)
    (job / "run.sh").chmod(0o755)
    return subprocess.run(
        [str(job / "run.sh")],
        input="in",
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment(job), **env},
    )


def test_the_shell_script_goes_through_launch(job: Path) -> None:
    done = script(FORMATS["shell"].write(tuned(job, SHOW)), job)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["text"], seen["stdin"]) == ("the data", "in")
    assert seen["data"].startswith("/dev/shm/autotune-")


@pytest.mark.slow
def test_a_torchrun_script_copies_by_itself(job: Path) -> None:
    text = FORMATS["torchrun"].write(tuned(job, SHOW))
    assert "set below: data_staging = shm" in text and "trap" in text
    done = script(text, job, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["data"].startswith("/dev/shm/autotune-data.") and seen["text"] == "the data"
    assert not os.path.exists(seen["data"])


def test_a_preloaded_library_is_added_to_what_the_shell_has(job: Path) -> None:
    text = FORMATS["shell"].write(tuned(job, SHOW, {"malloc": TunedKnob("jemalloc", "default")}))
    (line,) = [line for line in text.splitlines() if line.startswith("export LD_PRELOAD")]
    for before, after in (("", "libjemalloc.so.2"), ("/x.so", "libjemalloc.so.2:/x.so")):
        done = subprocess.run(
            ["sh", "-c", f'LD_PRELOAD={before}; {line}; printf %s "$LD_PRELOAD"'],
            capture_output=True,
            text=True,
        )
        assert done.stdout == after
