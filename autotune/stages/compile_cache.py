"""The compiled kernels of the winner, packed to travel with tuned.yaml.

    start with an empty cache ──▶ compile-cache.tar.gz ──▶ unpacked elsewhere ──▶ start again
         cold_s                                                 warm_s

The archive is kept only if the second start is clearly faster: some kernels are found again only
where they were compiled.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
from pathlib import Path

from autotune.executors.base import FixedRun, SessionFailed
from autotune.executors.local import LocalExecutor
from autotune.export.compiled import FILE_NAME, unpack
from autotune.results import CompileCache, Observation
from autotune.stages.context import RunContext
from autotune.verdict.timing import start_up_excess
from autotune_spaces.base import Config
from autotune_spaces.codec import decode, encode
from autotune_trials.paths import publish

STEPS = 16  # of one start; all compiling happens in the first half
WORTH = 0.8  # share of the cold start's seconds that a warm start may take
MOST_MIB = 256  # larger archives are not kept


def pack_compile_cache(
    context: RunContext, observation: Observation, config: Config, cold_s: float = 0.0
) -> CompileCache | None:
    """Start the job twice and pack its compiled kernels.

    None if nothing is compiled, it does not pay, or there is no time left. ``cold_s``: extra
    seconds of a start with an empty cache, as seen in the search.
    """
    executor = context.executor
    if "compile_mode" not in config or not isinstance(executor, LocalExecutor):
        return None
    stored = context.journal.find("compile-cache")
    if stored is not None:
        return decode(CompileCache, stored) if stored else None
    if context.out_of_time_at("compile-cache", 2 * (observation.startup_s + cold_s)):
        return None
    packed = _pack(context, executor, config)
    context.journal.append("compile-cache", "", encode(packed) if packed else {})
    return packed


def _pack(context: RunContext, executor: LocalExecutor, config: Config) -> CompileCache | None:
    first, second = (context.run_dir / name for name in ("cold-cache", "warm-cache"))
    for folder in (first, second):  # left by a run that was killed
        shutil.rmtree(folder, ignore_errors=True)
    try:
        cold_s = _start(executor, config, first, "cold-start")
        content = _archive(first)
        if len(content) > MOST_MIB * 2**20:
            context.progress.note(
                f"the compiled kernels take {len(content) / 2**20:.0f} MiB, too much to keep with"
                " tuned.yaml"
            )
            return None
        digest = hashlib.sha256(content).hexdigest()
        publish(context.run_dir / FILE_NAME, content)
        unpack(context.run_dir / FILE_NAME, digest, second)
        warm_s = _start(executor, config, second, "warm-start")
    except SessionFailed as failure:
        (context.run_dir / FILE_NAME).unlink(missing_ok=True)
        context.stop.check_after(failure.kind)
        context.progress.note(
            f"the compiled kernels are not kept: a run of the job failed ({failure})"
        )
        return None
    finally:
        for folder in (first, second):
            shutil.rmtree(folder, ignore_errors=True)
    if warm_s > WORTH * cold_s:
        (context.run_dir / FILE_NAME).unlink(missing_ok=True)
        context.progress.note(
            f"the compiled kernels are not kept: starting takes {warm_s:.1f} s with them,"
            f" {cold_s:.1f} s without"
        )
        return None
    context.progress.note(
        f"with its compiled kernels the job starts in {warm_s:.1f} s instead of {cold_s:.1f} s"
    )
    return CompileCache(FILE_NAME, digest, round(cold_s, 2), round(warm_s, 2))


def _start(executor: LocalExecutor, config: Config, cache: Path, label: str) -> float:
    """Seconds by which the first iterations exceed the same number of later ones."""
    cache.mkdir(parents=True, exist_ok=True)
    executor.compile_cache = cache
    try:
        record = executor.run_fixed(FixedRun(config, 0, STEPS, label=label))
    finally:
        executor.compile_cache = None
    return start_up_excess(record.window, STEPS // 2)


def _archive(folder: Path) -> bytes:
    """Pack regular files, sorted, without dates or owners: equal kernels give equal archives."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            content = path.read_bytes()
            entry.size, entry.mode = len(content), path.stat().st_mode & 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
