"""``autotune profile job.yaml``: show why the job takes as long as it does, without tuning it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.run import tools_asked
from autotune.cli.show import print_captured
from autotune.errors import InputError
from autotune.flags import Ncu, Nsys
from autotune.job.load import load_job
from autotune.job.mistakes import did_you_mean
from autotune.job.spec import JobSpec
from autotune.job.yaml_lines import YamlMistake, parse_yaml
from autotune.profiling import profile_job
from autotune.report.profile import print_profile
from autotune.run_directory import PROFILE_SUMMARY, RUNS, check_run_dir
from autotune_spaces.base import Value
from autotune_spaces.knobs import create, names


def profile(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="Set this knob; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for page and traces. [default: autotune-runs/<name>-profile]"),
    ] = None,
    nvtx_modules: Annotated[
        int,
        typer.Option(
            min=0, max=2, help="Also show the model's modules in the timeline, down to this depth."
        ),
    ] = 0,
    nsys: Nsys = False,
    ncu: Ncu = False,
    json: Annotated[bool, typer.Option("--json", help="Print summary.json instead.")] = False,
) -> None:
    """Show where a training job's time goes: bottleneck, operators, findings and a trace. Nothing
    is tuned.

    The job runs twice, for a few seconds after its warm-up (the second time for a trace with Python
    frames). An earlier profile is moved aside, not deleted.
    """
    spec = with_settings(load_job(job), settings or [])
    directory = (out or RUNS / f"{spec[0].name}-profile").absolute()
    check_run_dir(directory, "--out")
    found = profile_job(
        *spec, directory, nvtx_modules=nvtx_modules, tools=tools_asked(nsys, ncu), shown=not json
    )
    if json:
        typer.echo((directory / PROFILE_SUMMARY).read_text(encoding="utf-8").rstrip("\n"))
    else:
        print_captured(lambda console: print_profile(console, found, directory, job))


def with_settings(spec: JobSpec, settings: list[str]) -> tuple[JobSpec, dict[str, Value]]:
    """The job with the knobs of ``KNOB=VALUE`` words in its search space, and their configuration.

    Raises:
        InputError: there is no such knob, or it can never have that value.
    """
    config: dict[str, Value] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        known = {k.name: k for k in spec.search_space.knobs}
        if not sign or (name not in known and name not in names()):
            raise InputError(
                "there is no such knob" if sign else "it has no value",
                where=f"--set {setting}",
                expected="KNOB=VALUE, e.g. num_workers=4",
                remedy=did_you_mean(
                    name, sorted({*known, *names()} - {name}), "`autotune knobs` lists them"
                ),
            )
        knob = known.get(name) or create(name)
        try:
            value = knob.parse(parse_yaml(text).data)
        except YamlMistake:
            value = text
        wrong = knob.check_value(value)
        if wrong:
            raise InputError(
                wrong,
                where=f"--set {setting}",
                expected=knob.range or f"a value of {name}",
                remedy=f"`autotune knobs {name}` explains it",
            )
        if name not in known:
            spec = replace(
                spec,
                search_space=replace(spec.search_space, knobs=(*spec.search_space.knobs, knob)),
            )
        config[name] = value
    return spec, config
