"""A disk that is or becomes full or read-only: a clear error, no half-written file is ever read,
and the run resumes afterwards.

Real file systems, mounted for the test: small ones in memory, and one in a file that turns
read-only as after a disk error.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Job, wait_until
from faulty_runs import PROVEN, SEARCHED, faulty_job, whole_entries
from noiseless_runs import entries_of, figures, tuned
from replayed import Machine, table

from autotune.disk import disk_errors_as_input_errors
from autotune.errors import InputError
from autotune.executors.base import FixedRun
from autotune_trials.protocol.messages import Record

UNABLE = 77  # exit code of a shell that may not mount
SMALLEST_KIB = 16  # smaller than this, a tmpfs cannot hold even a directory


class Disk:
    """A file system of a given size at ``path``."""

    def __init__(self, path: Path, size_kib: int) -> None:
        self.path = path
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "none", str(path)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            path.rmdir()
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)

    def fill(self) -> None:
        """Use up all free space."""
        with open(self.path / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 65536)
            except OSError:
                pass

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)


class FailingDisk:
    """ext4 in a file, mounted at ``path``.

    A file system in memory cannot be made read-only while a file, such as the journal, is open for
    writing.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._image = path, path.with_name("image")
        with open(self._image, "wb") as file:
            file.truncate(256 << 20)
        path.mkdir()
        try:
            subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True, capture_output=True)
            self.mount()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no ext4 can be made and mounted here: {error}")

    def mount(self) -> None:
        subprocess.run(
            ["mount", "-o", "loop", str(self._image), str(self.path)],
            check=True,
            capture_output=True,
        )

    def fail(self) -> None:
        """Do what the kernel does after an error: read-only, even for open files."""
        subprocess.run(
            ["mount", "-o", "remount,abort", str(self.path)], check=True, capture_output=True
        )

    def repair(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)
        assert subprocess.run(
            ["e2fsck", "-fy", str(self._image)], capture_output=True
        ).returncode in (0, 1)
        self.mount()


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[FailingDisk]:
    made = FailingDisk(tmp_path / "disk")
    yield made
    subprocess.run(["umount", "-l", str(made.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", request.param)
    yield made
    made.close()


def whole_files(run_dir: Path) -> None:
    """Check that all JSON files outside sessions are complete, and no unfinished record is left."""
    for path in run_dir.rglob("*.json"):
        if "sessions" not in path.parts:
            json.loads(path.read_text("utf-8"))
    assert not list(run_dir.glob("records/.*")), "unfinished files are taken away again"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[tuple[str, str]]]:
    folder = tmp_path_factory.mktemp("roomy") / "job"
    return figures(tuned(folder)), entries_of(folder)


def runs_out_of_room(folder: Path) -> bool:
    try:
        with disk_errors_as_input_errors(folder / "run"):
            tuned(folder)
    except InputError as error:
        assert "No space left" in error.found and "same command" in error.remedy
        return True
    return False


SIZES = [
    SMALLEST_KIB,
    *(
        pytest.param(n, marks=() if n in (64, 256) else pytest.mark.faults)
        for n in (24, 32, 48, 64, 96, 128, 192, 256, 320)
    ),
]


@pytest.mark.parametrize("disk", SIZES, indirect=True)
def test_on_a_disk_of_any_size_the_run_stops_and_with_more_room_ends_with_the_same_result(
    disk: Disk, expected: tuple[Any, list[tuple[str, str]]]
) -> None:
    """On the replay executor, whose whole run needs about 300 KiB."""
    assert runs_out_of_room(disk.path / "job")
    before = (
        entries_of(disk.path / "job")
        if (disk.path / "job" / "run" / "journal.jsonl").exists()
        else []
    )
    whole_files(disk.path / "job")
    disk.remount("size=16m")
    assert figures(tuned(disk.path / "job")) == expected[0]
    after = entries_of(disk.path / "job")
    assert after == expected[1] and set(before) <= set(after)


class OnADiskThatFails(Machine):
    """The disk turns read-only after the ``runs``-th fresh process of the job."""

    def __init__(self, disk: FailingDisk, runs: int) -> None:
        super().__init__(table(noise=0.0, block_noise=0.0))
        self._disk, self._runs = disk, runs

    def run_fixed(self, request: FixedRun) -> Record:
        record = super().run_fixed(request)
        if len(self.requests) == self._runs:
            self._disk.fail()
        return record


@pytest.mark.parametrize(
    "runs", [3, *(pytest.param(n, marks=pytest.mark.faults) for n in (1, 5, 8, 10))]
)
def test_a_disk_that_turns_read_only_stops_the_run_and_repaired_it_ends_with_the_same_result(
    failing_disk: FailingDisk, runs: int, expected: tuple[Any, list[tuple[str, str]]]
) -> None:
    folder = failing_disk.path / "job"
    with (
        pytest.raises(InputError, match="Read-only file system") as stopped,
        disk_errors_as_input_errors(folder / "run"),
    ):
        tuned(folder, OnADiskThatFails(failing_disk, runs))
    assert "dmesg" in stopped.value.remedy and "same command" in stopped.value.remedy
    failing_disk.repair()
    before = entries_of(folder)
    # the first run itself is lost with its record
    assert before or runs == 1, "what was finished before is on the disk"
    whole_files(folder)
    assert figures(tuned(folder)) == expected[0]
    assert entries_of(folder) == expected[1] and set(before) <= set(expected[1])


# -------------------------------------------------------------------------------- the whole command


@pytest.mark.parametrize("disk", [1024], indirect=True)
def test_a_disk_that_is_too_small_is_refused_before_anything_starts(
    disk: Disk, tmp_path: Path
) -> None:
    job = faulty_job(tmp_path / "job")
    done = job.run("--run-dir", str(disk.path / "run"))
    assert done.returncode == 2 and "MiB free" in done.stderr and "--run-dir" in done.stderr
    assert not list(disk.path.iterdir())


@pytest.mark.parametrize("disk", [100_000], indirect=True)
def test_a_read_only_disk_is_refused_before_anything_starts(disk: Disk, tmp_path: Path) -> None:
    disk.remount("ro")
    job = faulty_job(tmp_path / "job")
    done = job.run("--run-dir", str(disk.path / "run"))
    assert (
        done.returncode == 2
        and "Read-only file system" in done.stderr
        and "--run-dir" in done.stderr
    )


# Journal entry after which it happens, and the job: a proof takes minutes, so only one test gets
# that far.
MOMENTS = {
    "observing": ("study", SEARCHED),
    "searching": ("observation", SEARCHED),
    "proving": ("run", PROVEN),
}


@pytest.mark.faults
@pytest.mark.parametrize(("kind", "text"), MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize("disk", [100_000], indirect=True)
def test_a_disk_that_fills_up_in_a_run(disk: Disk, kind: str, text: str, tmp_path: Path) -> None:
    at = faulty_job(disk.path / "job", text=text)
    process = at.start()
    wait_until(lambda: has(kind, at, at.run_dir) or process.poll() is not None, 200, kind)
    disk.fill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "No space left" in said and "same command" in said and "Traceback" not in said
    whole_files(at.run_dir)
    before = whole_entries(at)
    (disk.path / "filler").unlink()
    finished(at, at.run_dir, before)


@pytest.mark.faults
@pytest.mark.parametrize(("kind", "text"), MOMENTS.values(), ids=MOMENTS)
def test_a_disk_that_turns_read_only_in_a_run(
    failing_disk: FailingDisk, kind: str, text: str, tmp_path: Path
) -> None:
    """The run's disk, not the job's: a job reports failures of its own disk."""
    job, run_dir = faulty_job(tmp_path / "job", text=text), failing_disk.path / "run"
    process = job.start("--run-dir", str(run_dir))
    wait_until(lambda: has(kind, job, run_dir) or process.poll() is not None, 200, kind)
    failing_disk.fail()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    # the first write may still meet the disk's own error
    assert "Read-only file system" in said or "Input/output error" in said, said
    assert "same command" in said and "Traceback" not in said
    failing_disk.repair()
    whole_files(run_dir)
    before = whole_entries(job, run_dir)
    assert has(kind, job, run_dir)
    finished(job, run_dir, before)


@pytest.mark.faults
@pytest.mark.parametrize("size_mib", [1, 20])
def test_shared_memory_that_is_full(size_mib: int, tmp_path: Path) -> None:
    """/dev/shm has a given size in the run's own mount namespace; batches have 8 MiB, and workers
    hold at least four of them.
    """
    job = faulty_job(tmp_path / "job", text=PROVEN)
    script = (
        (job.folder / "mine.py")
        .read_text()
        .replace("x = torch.randn(16, generator=generator)", "x = torch.zeros(1 << 18)")
    )
    (job.folder / "mine.py").write_text(
        script.replace("model(x)", "model(x[:, :16])").replace(
            "x.sum() * 0.5", "x[:16].sum() * 0.5"
        )
    )
    mounted = f"mount -t tmpfs -o size={size_mib}m none /dev/shm"
    command = (
        f"unshare -m {mounted} || exit {UNABLE};"
        f" exec unshare -m sh -c '{mounted} && exec autotune run job.yaml --quiet'"
    )
    done = subprocess.run(
        ["sh", "-c", command], cwd=job.folder, capture_output=True, text=True, timeout=280
    )
    if done.returncode == UNABLE:
        pytest.skip(f"no mount namespace can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert job.result["verdict"] == "keep-baseline"
    if size_mib == 1:
        assert (
            "/dev/shm" in job.result["observation"]["withdrawn"]["num_workers"]
            and not job.result["trials"]
        )
    else:
        [trial] = job.result["trials"]
        assert trial["config"] == {"num_workers": 2} and trial["state"] == "infeasible", trial


def has(kind: str, job: Job, run_dir: Path) -> bool:
    return any(entry["kind"] == kind for entry in whole_entries(job, run_dir))


def finished(job: Job, run_dir: Path, before: list[dict[str, Any]]) -> None:
    """The same command succeeds, keeps everything that was finished before, and finds the planted
    knobs.
    """
    done = job.run("--run-dir", str(run_dir), timeout_s=480)
    assert done.returncode == 0, done.stderr
    assert whole_entries(job, run_dir)[: len(before)] == before
    planted = {"num_workers": 2} if "[0, 2]" in (job.folder / "job.yaml").read_text() else {}
    assert json.loads((run_dir / "result.json").read_text())["knobs"] == planted
