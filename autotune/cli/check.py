"""``autotune check job.yaml``"""

from __future__ import annotations

import shlex
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.job.load import load_job
from autotune.job.spec import JobSpec
from autotune.run_directory import RUNS, check_run_dir
from autotune.secrets import mask_command, mask_url
from autotune.words import yaml_words


def check(
    job: Annotated[Path, typer.Argument(help="The job file.")] = Path("job.yaml"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Validate a job file and show what a run would do. The job itself is not started."""
    spec = load_job(job)
    check_run_dir(RUNS / spec.name)
    summary = summarize(spec)
    if json:
        typer.echo(dumps(summary, indent=2))
    else:
        typer.echo(_text(summary))


def summarize(spec: JobSpec) -> dict[str, Any]:
    """What a run of ``spec`` would do, as JSON data."""
    return {
        "name": spec.name,
        "command": mask_command(spec.command),
        "workdir": str(spec.workdir),
        "env": sorted(spec.env),  # names only: values may be secrets
        "objective": spec.objective,
        "second_objective": spec.second_objective,
        "planned_steps": spec.planned_steps,
        "budget": {"minutes": spec.budget.minutes, "trials": spec.budget.trials},
        "convergence": {"tolerance": spec.convergence.tolerance, "steps": spec.convergence.steps},
        "tracking": spec.tracking.uri and mask_url(spec.tracking.uri),
        "run_dir": f"autotune-runs/{spec.name}",
        "search_space": spec.search_space.preset,
        "knobs": [
            {
                "name": knob.name,
                "values": None if knob.values is None else list(knob.values),
                "scope": knob.scope.value,
                "numerics": knob.numerics.value,
                "options": dict(knob.options),
            }
            for knob in spec.search_space.knobs
        ],
        "digest": spec.digest(),
    }


def _text(summary: dict[str, Any]) -> str:
    knobs = summary["knobs"]
    width = max((len(k["name"]) for k in knobs), default=4)
    head = {"name": "knob", "scope": "scope", "numerics": "numerics"}
    rows = [
        f"  {k['name']:{width}}  {k['scope']:7}  {k['numerics']:11}  {values}".rstrip()
        for k, values in [(head, "values"), *((k, _values(k["values"])) for k in knobs)]
    ]
    budget, loss = summary["budget"], summary["convergence"]
    objective = " and ".join(filter(None, (summary["objective"], summary["second_objective"])))
    trials = "" if budget["trials"] is None else f" and {budget['trials']} trials"
    return "\n".join(
        [
            f"{summary['name']}: {shlex.join(summary['command'])}",
            f"  in {summary['workdir']}",
            f"  objective {objective}, budget {budget['minutes']:g} minutes{trials}",
            f"  loss compared over {loss['steps']} steps, tolerance {100 * loss['tolerance']:g}%",
            f"  a run writes to {summary['run_dir']}",
            "",
            (
                f"search space {summary['search_space']}: {len(knobs)} knobs (a run leaves out what"
                " does not apply to the job or this machine)"
            ),
            *rows,
            "",
            "The file is valid.",
        ]
    )


def _values(values: list[Any] | None) -> str:
    if values is None:
        return "chosen when the run starts"
    return ", ".join(map(yaml_words, values))
