"""``autotune launch RUN``"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from autotune.errors import InputError
from autotune.export.compiled import cache_variables
from autotune.export.fingerprint import current, differences, obstacles, other_variables
from autotune.export.launching import become, plan, user_cache, uses_out
from autotune.export.load import find_tuned, load_tuned
from autotune.export.tuned import TunedConfig
from autotune.flags import TunedRun
from autotune.words import config_words


def launch(
    tuned: TunedRun,
    extra: Annotated[
        list[str] | None,
        typer.Argument(help="After --: words added to the command.", metavar="-- ARGS"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Value of {seed} in the command.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help=("Value of {trial_dir} in the command. [default: out/ in the job's directory]")
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Run even if a knob cannot be applied here, without that knob."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing unless something is wrong.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run, and exit.")
    ] = False,
) -> None:
    """Run the job with its tuned settings, without measuring it or changing its code.

    The job replaces this process: output, signals and exit code are the job's own.

    Example: autotune launch digits -- --epochs 20
    """
    tuned = find_tuned(tuned)
    config = load_tuned(tuned)
    if match := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", str(tuned)):
        if int(match[1]) > 2:
            os.set_inheritable(int(match[1]), False)  # read to its end; the job must not inherit it
    base = dict(os.environ)
    if dry_run:  # the printed command keeps secrets as the file has them
        base = {n: text for n, text in base.items() if n not in config.env_from_launch}
    env = {**base, **config.env}
    if config.knobs:
        now = current(config, env)
        unlike = differences(config, now, env)
        for text in [*unlike, *other_variables(config, env)]:
            print(f"autotune: warning: {text}; the speed-up was measured there", file=sys.stderr)
        blocked = obstacles(config, now, env)
        if blocked and not force:
            raise InputError(
                "; ".join(f"{name} cannot be applied here: {why}" for name, why in blocked.items()),
                where=str(tuned),
                expected="a machine like the one it was tuned on",
                remedy="tune again here, or pass --force to run without " + " and ".join(blocked),
            )
        if blocked:
            for name, why in blocked.items():
                print(f"autotune: warning: left out {name}: {why}", file=sys.stderr)
            config = dataclasses.replace(
                config, knobs={n: k for n, k in config.knobs.items() if n not in blocked}
            )
        if config.provenance.compile_cache.file and not dry_run:
            base |= _compiled(config, tuned, "this is a different machine" if unlike else "", env)
    out = (out or config.workdir / "out").absolute()
    job = plan(config, extra or (), base=base, seed=seed, out=out, partial=dry_run)
    chosen = {name: choice.value for name, choice in config.knobs.items()}
    settings = config_words(chosen) if chosen else "no changes, the job as it is"
    if dry_run:
        typer.echo(
            f"command   {shlex.join(job.argv)}\nworkdir   {job.workdir}\nsettings  {settings}"
        )
        return
    if not quiet:
        print(f"autotune: {config.name}: {settings}", file=sys.stderr)
    if uses_out(config) and os.path.isdir(config.workdir):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{out} cannot be created: {error.strerror}", where="--out", expected="a directory"
            ) from None
    become(job)


def _compiled(
    config: TunedConfig, tuned: Path, unlike: str, env: Mapping[str, str]
) -> dict[str, str]:
    """The variables with which the job finds its compiled kernels.

    Where they cannot be used, none, and a warning says why. ``unlike``: why they are of no use
    here.
    """
    kept = config.provenance.compile_cache
    try:
        if unlike:
            raise ValueError(unlike)
        return cache_variables(
            tuned.with_name(Path(kept.file).name), kept.digest, user_cache(), env
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        print(f"autotune: warning: {kept.file} is not used: {why}", file=sys.stderr)
        return {}
