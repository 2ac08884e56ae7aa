"""malloc and cuda_alloc_conf: what they find, which variables they set, and which of the job's own
they keep.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from machines import CUDA, CUDA_JOB, JOB, job, machine

from autotune_spaces.base import Knob, NotApplicable, Start, Value
from autotune_spaces.knobs import create, get
from autotune_spaces.knobs.malloc import JEMALLOC_SETTINGS, RETAINING, preloaded

GLIBC = {"retain": " ".join(platform.libc_ver())} if platform.libc_ver()[0] == "glibc" else {}


def prepared(knob: Knob, value: Value, folder: Path, **env: str) -> dict[str, str]:
    return dict(knob.prepare(Start(("python",), env, str(folder)), value).env)


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A conda environment with both allocators."""
    folder = tmp_path / "env" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "env" / "bin").mkdir()
    python = tmp_path / "env" / "bin" / "python"
    python.touch()
    python.chmod(0o755)
    for name in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4"):
        (folder / name).touch()
    return folder


def test_libraries_are_found_where_the_job_runs(libraries: Path, tmp_path: Path) -> None:
    both = GLIBC | {
        "jemalloc": str(libraries / "libjemalloc.so.2"),
        "tcmalloc": str(libraries / "libtcmalloc_minimal.so.4"),
    }
    survey = get("malloc").survey
    assert survey(Start((str(libraries.parent / "bin" / "python"),), {}, "/")) == both, (
        "beside its Python"
    )
    assert survey(Start(("python",), {"PATH": str(libraries.parent / "bin")}, "/")) == both, (
        "by PATH"
    )
    assert survey(Start(("bash",), {"CONDA_PREFIX": str(libraries.parent)}, "/")) == both, (
        "in the environment that is active"
    )
    assert survey(Start(("bash",), {"LD_LIBRARY_PATH": f"/nowhere:{libraries}"}, "/")) == both
    assert survey(Start(("env/bin/python",), {}, str(tmp_path))) == both, (
        "relative to the job's directory"
    )


def test_a_path_that_the_loader_could_not_read_is_passed_over(
    libraries: Path, tmp_path: Path
) -> None:
    libraries.parent.rename(tmp_path / "my env")
    found = get("malloc").survey(Start(("bash",), {"CONDA_PREFIX": str(tmp_path / "my env")}, "/"))
    assert str(tmp_path) not in str(found)


def test_what_is_there_is_offered() -> None:
    surveys = {"malloc": {"tcmalloc": "/usr/lib/libtcmalloc.so.4"}}
    assert get("malloc").domain(machine(), job(surveys=surveys)).values == ("default", "tcmalloc")
    with pytest.raises(NotApplicable, match="apt-get install libjemalloc2"):
        get("malloc").domain(machine(), JOB)
    with pytest.raises(NotApplicable, match="libjemalloc was not found"):
        create("malloc", None, ["jemalloc"]).domain(machine(), job(surveys=surveys))


def test_glibcs_own_is_offered_on_a_cpu_unless_the_job_has_settings_for_it() -> None:
    surveys = {"malloc": {"retain": "glibc 2.36"}}
    assert get("malloc").domain(machine(), job(surveys=surveys)).values == ("default", "retain")
    unlike = job(surveys=surveys, own_settings={"GLIBC_TUNABLES": "glibc.pthread.rseq=0"})
    assert get("malloc").domain(machine(), unlike).values == ("default", "retain")
    with pytest.raises(NotApplicable, match="neither jemalloc nor tcmalloc"):
        get("malloc").domain(machine(CUDA), job(CUDA_JOB, surveys=surveys))
    for own in (
        {"MALLOC_TRIM_THRESHOLD_": "1"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"},
    ):
        with pytest.raises(NotApplicable, match=f"the job sets {next(iter(own))} itself"):
            create("malloc", None, ["retain"]).domain(
                machine(), job(surveys=surveys, own_settings=own)
            )
    preloads = {"LD_PRELOAD": "/opt/libjemalloc.so.2"}
    assert get("malloc").domain(machine(), job(surveys=surveys, own_settings=preloads)).values == (
        "jemalloc",
        "default",
    )
    with pytest.raises(NotApplicable, match="is not glibc.*apt-get install libjemalloc2"):
        create("malloc", None, ["retain"]).domain(machine(), JOB)


@pytest.mark.skipif(not GLIBC, reason="glibc's malloc")
def test_retain_is_in_force_where_it_is_set_and_only_there(tmp_path: Path) -> None:
    """Seen from inside a process: its page faults when it repeatedly allocates and frees 32 MiB,
    and what the knob reports.
    """
    loop = "for _ in range(20): [b'xy' * (2 << 20) for _ in range(8)]"
    code = f"""
import resource
from autotune_spaces.knobs import get
{loop}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{loop}
after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print((after - before) // 20, get("malloc").effect(None, "retain") or "in force")
"""
    seen = []
    for value in ("default", "retain"):
        env = prepared(
            get("malloc"),
            value,
            tmp_path,
            **{k: v for k, v in os.environ.items() if k not in RETAINING},
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        faults, _, said = done.stdout.strip().partition(" ")
        seen.append((int(faults), said))
    (faults, said), (retained, nothing) = seen
    assert nothing == "in force" and retained < 10, seen
    assert "did not apply the settings" in said and faults > 1000, seen


THERE_AND_BACK = """
import sys
from autotune_spaces.glibc import Heap, _Blocks, foreign, retains

freed = int(sys.argv[1])
blocks = _Blocks()
blocks.free([blocks.get(freed)])
if freed == 1_000_000:
    of_the_heap = [blocks.get(900_000) for _ in range(64)]
    blocks.free([b for i, b in enumerate(of_the_heap) if i % 4])  # free memory in the heap that serves larger blocks, too
assert foreign() is None, foreign()
heap = Heap()
heap.give_back()
for _ in range(2):
    heap.retain()
    heap.retain()
    assert retains()
    heap.give_back()
    assert _Blocks().threshold() == heap.own_threshold
    heap.retain()
    grown = [blocks.get(12_000_000) for _ in range(4)]
    pin = blocks.get(100_000)
    blocks.free(grown)
    heap.give_back()
    assert blocks.mapped(blocks.get(11_000_000)), "what the heap has grown by does not serve what gets a mapping by itself"
    blocks.free([pin])
print(heap.own_threshold)
"""


@pytest.mark.skipif(not GLIBC, reason="glibc's malloc")
@pytest.mark.parametrize(
    ("freed", "threshold"), [(1000, 0), (10**6, 10**6), (9 * 10**6, 9 * 10**6), (2**26, 0)]
)
def test_what_glibc_made_of_its_threshold_is_found_and_given_back(
    freed: int, threshold: int
) -> None:
    """Small blocks, and blocks of more than 32 MiB, do not raise the threshold; it then is what
    Python's own start made of it (0 here).
    """
    env = {k: v for k, v in os.environ.items() if k not in RETAINING}
    done = subprocess.run(
        [sys.executable, "-c", THERE_AND_BACK, str(freed)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert threshold <= int(done.stdout) < (threshold + 8192 if threshold else 800_000)


def test_an_allocator_of_the_jobs_own_is_the_baseline() -> None:
    surveys = {"malloc": {"tcmalloc": "/usr/lib/libtcmalloc.so.4"}}
    own = job(
        surveys=surveys, own_settings={"LD_PRELOAD": "/opt/libiomp5.so:/opt/libjemalloc.so.2"}
    )
    domain = get("malloc").domain(machine(), own)
    assert (domain.default, set(domain.values)) == ("jemalloc", {"default", "jemalloc", "tcmalloc"})
    with pytest.raises(NotApplicable, match="preloads mimalloc"):
        get("malloc").domain(
            machine(),
            job(surveys=surveys, own_settings={"LD_PRELOAD": "/usr/lib/libmimalloc.so.2.0"}),
        )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", None),
        ("/a/libiomp5.so", None),
        ("/a/libjemalloc.so.2", "jemalloc"),
        ("libtcmalloc_minimal.so.4", "tcmalloc"),
        ("/a/libfoo.so /b/libtbbmalloc_proxy.so.2", "tbbmalloc"),
        ("/a/libtcmalloc.so.4:/b/libjemalloc.so", "tcmalloc"),
        ("/jemalloc/libother.so", None),
        ("/a/libjemalloc.so-5.3", None),
        ("/a/libmimalloc-secure.so", "mimalloc"),
    ],
)
def test_preloaded_allocators_are_told_by_their_names(text: str, word: str | None) -> None:
    assert preloaded(text) == word


def test_the_library_goes_before_what_is_preloaded(libraries: Path) -> None:
    knob, env = get("malloc"), {"CONDA_PREFIX": str(libraries.parent)}
    je, tc = str(libraries / "libjemalloc.so.2"), str(libraries / "libtcmalloc_minimal.so.4")
    assert prepared(knob, "jemalloc", libraries, **env) == {
        **env,
        "LD_PRELOAD": je,
        "MALLOC_CONF": JEMALLOC_SETTINGS,
    }
    with_omp = prepared(knob, "tcmalloc", libraries, LD_PRELOAD="/opt/libiomp5.so", **env)
    assert with_omp == {**env, "LD_PRELOAD": f"{tc}:/opt/libiomp5.so"}
    # The first of two allocators would win: the job's own is removed, other preloaded libraries
    # stay.
    swapped = prepared(knob, "tcmalloc", libraries, LD_PRELOAD=f"/x/libiomp5.so:{je}", **env)
    assert swapped["LD_PRELOAD"] == f"{tc}:/x/libiomp5.so"
    assert "LD_PRELOAD" not in prepared(knob, "default", libraries, LD_PRELOAD=je, **env)
    assert prepared(knob, "retain", libraries, LD_PRELOAD=je) == RETAINING
    assert (
        prepared(knob, "jemalloc", libraries, MALLOC_CONF="narenas:2", **env)["MALLOC_CONF"]
        == "narenas:2"
    )


def test_a_library_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune_spaces.knobs.malloc._folders", lambda start: iter(()))
    with pytest.raises(NotApplicable, match="libtcmalloc was not found"):
        prepared(get("malloc"), "tcmalloc", tmp_path, PATH="")


CONF = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def test_settings_of_the_gpus_allocator() -> None:
    domain = get("cuda_alloc_conf").domain(machine(CUDA, cuda_version="13.0"), CUDA_JOB)
    assert domain.values == ("unset", "expandable_segments:True", "backend:cudaMallocAsync")
    rocm = get("cuda_alloc_conf").domain(machine(CUDA, cuda_version=""), CUDA_JOB)
    assert "backend:cudaMallocAsync" not in rocm.values


def test_what_the_job_has_set_stays() -> None:
    own = job(
        CUDA_JOB,
        own_settings={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:False"},
    )
    domain = get("cuda_alloc_conf").domain(machine(CUDA, cuda_version="13.0"), own)
    assert domain.default == "max_split_size_mb:128,expandable_segments:False"
    assert domain.values[1:] == (f"{domain.default},backend:cudaMallocAsync",)


def test_what_the_job_has_set_itself_is_not_tried_again() -> None:
    has = "max_split_size_mb:128, expandable_segments:True"
    own = job(CUDA_JOB, own_settings={"PYTORCH_CUDA_ALLOC_CONF": has})
    for asked in ("expandable_segments:True", "expandable_segments:True,max_split_size_mb:128"):
        with pytest.raises(NotApplicable, match="among the job's own settings"):
            create("cuda_alloc_conf", values=[asked]).domain(CUDA, own)
    other = create("cuda_alloc_conf", values=["max_split_size_mb:64", "unset"]).domain(CUDA, own)
    assert other.values == (has, "max_split_size_mb:64", "unset")


def test_both_names_of_the_variable_are_set(tmp_path: Path) -> None:
    knob = get("cuda_alloc_conf")
    assert prepared(knob, "expandable_segments:True", tmp_path) == dict.fromkeys(
        CONF, "expandable_segments:True"
    )
    merged = "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2],expandable_segments:True"
    before = {
        CONF[
            1
        ]: "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2],expandable_segments:False"
    }
    assert prepared(knob, "expandable_segments:True", tmp_path, **before) == dict.fromkeys(
        CONF, merged
    )
    assert prepared(knob, merged, tmp_path, **before) == dict.fromkeys(CONF, merged), (
        "a whole text comes out as it is"
    )
    assert prepared(knob, "unset", tmp_path, A="b", **before) == {"A": "b"}
    workspace = {"A": "b", "CUDNN_CONV_WSCAP_DBG": "64"}
    assert prepared(get("cudnn_workspace_mib"), "unset", tmp_path, **workspace) == {"A": "b"}
    assert knob.check_value(merged) is None
