"""The winner's compiled kernels travel with tuned.yaml, and are used where they fit."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from autotune.errors import Interrupted
from autotune.executors.base import FixedRun, Record, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.export.compiled import FILE_NAME, VARIABLE, cache_variables, unpack
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune.report.terminal.plain import open_progress
from autotune.stages.compile_cache import _archive as packed_archive
from autotune.stages.compile_cache import pack_compile_cache
from autotune.stages.context import RunContext, Stop
from autotune.stages.observe import observe
from autotune.tracking import open_tracker

TRAIN = """
import torch
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(60_000, 64))
for (x,) in torch.utils.data.DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    optimizer.step()
"""


def _archive(path: Path, names: tuple[str, ...] = ("fxgraph/ab/entry",)) -> str:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"code"))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_is_unpacked_once_and_found_again(tmp_path: Path) -> None:
    digest = _archive(tmp_path / FILE_NAME)
    variables = cache_variables(tmp_path / FILE_NAME, digest, tmp_path / "cache", {})
    folder = Path(variables[VARIABLE])
    assert (folder / "fxgraph" / "ab" / "entry").read_bytes() == b"code"
    (folder / "more").write_text("the job's own")
    assert cache_variables(tmp_path / FILE_NAME, digest, tmp_path / "cache", {}) == variables
    assert (folder / "more").exists()
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    assert (
        cache_variables(tmp_path / FILE_NAME, digest, tmp_path / "cache", {VARIABLE: "/mine"}) == {}
    )


def test_another_file_in_its_place_is_not_unpacked(tmp_path: Path) -> None:
    digest = _archive(tmp_path / FILE_NAME)
    _archive(tmp_path / FILE_NAME, ("other",))
    with pytest.raises(ValueError, match="changed"):
        unpack(tmp_path / FILE_NAME, digest, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_nothing_is_written_outside(name: str, tmp_path: Path) -> None:
    digest = _archive(tmp_path / FILE_NAME, (name,))
    if name.startswith("/"):  # the root is removed
        unpack(tmp_path / FILE_NAME, digest, tmp_path / "cache" / "it")
    else:
        with pytest.raises(ValueError, match="outside"):
            unpack(tmp_path / FILE_NAME, digest, tmp_path / "cache" / "it")
        assert not (tmp_path / "cache" / "it").exists()
    assert not (tmp_path / "cache" / "outside").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_compiled_job_starts_faster_where_its_kernels_lie(tmp_path: Path) -> None:
    """A run packs them, `autotune launch` unpacks them, or ignores them on a different machine."""
    (tmp_path / "train.py").write_text(TRAIN)
    job = (
        "command: python train.py\nsearch_space: {compile_mode: [default]}\ntraces: none\ntracking:"
        " {uri: null}\n"
    )
    (tmp_path / "job.yaml").write_text(job)
    spec, run_dir = load_job(tmp_path / "job.yaml"), tmp_path / "run"
    journal = Journal(run_dir / "journal.jsonl", lambda before: before)
    with (
        closing(journal),
        closing(LocalExecutor(spec, run_dir)) as executor,
        open_progress("quiet", 60.0) as progress,
    ):
        context = RunContext(
            spec, executor, journal, progress, open_tracker(None, "e", run_dir), run_dir
        )
        seen = observe(context)
        for left in ("cold-cache", "warm-cache"):  # left by a run that was killed
            (run_dir / left).mkdir()
            (run_dir / left / "stale").write_text("")
        packed = pack_compile_cache(context, seen, {"compile_mode": "default"})
        # a resumed run does not pack them again
        assert pack_compile_cache(context, seen, {"compile_mode": "default"}) == packed
        assert pack_compile_cache(context, seen, {"amp_dtype": "bfloat16"}) is None
    assert packed is not None and packed.warm_s < 0.8 * packed.cold_s
    with tarfile.open(run_dir / FILE_NAME) as archive:
        assert "stale" not in archive.getnames()
    assert not (run_dir / "cold-cache").exists() and not (run_dir / "warm-cache").exists()

    machine = {"torch_version": seen.machine.torch_version, "cpu_model": seen.machine.cpu_model}
    for torch_version, used in ((machine["torch_version"], True), ("1.0.0", False)):
        tuned = {
            "schema_version": 2,
            "name": "job",
            "workdir": str(tmp_path),
            "command": ["python", "-c", f"import os; print('cache', os.environ.get('{VARIABLE}'))"],
            "knobs": {"compile_mode": {"value": "default"}},
            "provenance": {
                "machine": {**machine, "torch_version": torch_version},
                "compile_cache": {
                    "file": packed.file,
                    "digest": packed.digest,
                    "cold_s": 1.0,
                    "warm_s": 0.5,
                },
            },
        }
        (run_dir / "tuned.yaml").write_text(yaml.safe_dump(tuned))
        env = {
            **{k: v for k, v in os.environ.items() if k != VARIABLE},
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        done = subprocess.run(
            ["autotune", "launch", str(run_dir)],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        if used:
            assert f"cache {tmp_path / 'cache' / 'autotune' / 'compiled'}" in done.stdout, (
                done.stdout + done.stderr
            )
        else:
            assert "cache None" in done.stdout and f"{FILE_NAME} is not used" in done.stderr


def test_the_same_kernels_give_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "fxgraph").mkdir()
    (tmp_path / "fxgraph" / "entry").write_text("code")
    content = packed_archive(tmp_path)
    os.utime(tmp_path / "fxgraph" / "entry", (0, 0))
    assert packed_archive(tmp_path) == content
    assert content[4:8] == bytes(4), "gzip's own time"


def test_a_start_that_a_stopped_run_took_along_is_no_failure(tmp_path: Path) -> None:
    """SIGTERM to the whole process tree: the job may end before the tuner gets the signal."""

    class Ended(LocalExecutor):
        def run_fixed(self, request: FixedRun) -> Record:
            raise SessionFailed("killed", "by SIGTERM")

    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("command: python train.py\ntracking: {uri: null}\n")
    spec, run_dir, stop = load_job(tmp_path / "job.yaml", check=False), tmp_path / "run", Stop()
    stop._asked.set()
    with (
        closing(Journal(run_dir / "journal.jsonl", lambda before: before)) as journal,
        closing(Ended(spec, run_dir)) as executor,
        open_progress("silent", 60.0) as progress,
    ):
        tracker = open_tracker(None, "e", run_dir)
        context = RunContext(spec, executor, journal, progress, tracker, run_dir, 0, stop)
        with pytest.raises(Interrupted):
            pack_compile_cache(context, SimpleNamespace(startup_s=0.0), {"compile_mode": "default"})
        assert journal.find("compile-cache") is None


def test_it_is_in_tuned_yaml_and_read_back(tmp_path: Path) -> None:
    from autotune.export.formats import FORMATS
    from autotune.export.load import load_tuned
    from autotune.export.tuned import Provenance, TunedConfig, TunedKnob, to_yaml
    from autotune.results import CompileCache

    kept = CompileCache(FILE_NAME, "ab" * 32, 12.5, 3.0)
    knobs, provenance = (
        {"compile_mode": TunedKnob("default", "off")},
        Provenance(compile_cache=kept),
    )
    tuned = TunedConfig("job", ("python", "train.py"), tmp_path, knobs=knobs, provenance=provenance)
    (tmp_path / "tuned.yaml").write_text(to_yaml(tuned))
    assert load_tuned(tmp_path / "tuned.yaml").provenance.compile_cache == kept
    without = replace(tuned, provenance=Provenance())
    assert "compile_cache" not in to_yaml(without)
    for name in ("shell", "sbatch", "k8s", "kubeflow", "skypilot"):  # no file next to these
        script = FORMATS[name].write(tuned)
        assert "compile_mode" in script and "compile_cache" not in script
