"""The commands and their modules. A module is imported only when its command is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Command:
    """A command: ``function`` in ``module``, whose annotations are the command's arguments."""

    module: str
    function: str
    summary: str


COMMANDS: dict[str, Command] = {
    "init": Command("autotune.cli.init", "init", "Write a first job.yaml for a command."),
    "check": Command(
        "autotune.cli.check", "check", "Validate a job.yaml and show what would be searched."
    ),
    "run": Command("autotune.cli.run", "run", "Tune a job."),
    "profile": Command(
        "autotune.cli.profile", "profile", "Show where a job's time goes, without tuning it."
    ),
    "show": Command("autotune.cli.show", "show", "Show the result of a run."),
    "compare": Command(
        "autotune.cli.compare", "compare", "Compare two runs: verdicts, knobs, times, operators."
    ),
    "judge": Command(
        "autotune.cli.judge", "judge", "Say whether a change is faster, and trains the same way."
    ),
    "launch": Command("autotune.cli.launch", "launch", "Run the job with its tuned settings."),
    "export": Command(
        "autotune.cli.export",
        "export",
        "Write tuned settings as a script, a patch or a cluster job.",
    ),
    "ui": Command("autotune.cli.ui", "ui", "Compare trials in MLflow."),
    "submit": Command("autotune.cli.submit", "submit", "Tune a job on a Ray cluster."),
    "jobs": Command("autotune.cli.jobs", "jobs", "List the runs on a cluster."),
    "logs": Command("autotune.cli.logs", "logs", "Show what a run on a cluster has printed."),
    "stop": Command("autotune.cli.stop", "stop", "End a run on a cluster."),
    "sync": Command("autotune.cli.sync", "sync", "Send what was recorded offline to MLflow."),
    "history": Command(
        "autotune.cli.history", "history", "List, export or forget what earlier runs measured."
    ),
    "knobs": Command("autotune.cli.knobs", "knobs", "List the knobs, or explain one."),
    "doctor": Command(
        "autotune.cli.doctor", "doctor", "Show what this machine offers and which knobs apply."
    ),
    "schema": Command(
        "autotune.cli.schema", "schema", "Print the JSON Schema of job.yaml, for editors."
    ),
}


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and summary, and loads one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        entry = COMMANDS.get(name)
        return (
            None if entry is None else TyperCommand(name, help=entry.summary, callback=lambda: None)
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _interruptible():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _interruptible():
            return super().invoke(ctx)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Leave Ctrl-C to main(), which knows the documented message and code; typer has its own."""
    try:
        yield
    except (KeyboardInterrupt, EOFError) as stop:
        from autotune.errors import Interrupted

        raise Interrupted("interrupted") from stop


def load(name: str) -> Any:
    """The command ``name``; imports its module."""
    entry = COMMANDS[name]
    function: Callable[..., Any] = getattr(importlib.import_module(entry.module), entry.function)
    single = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
    )
    single.command(name, help=function.__doc__)(function)
    return typer.main.get_command(single)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"autotune {version('autotune-torch')}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Find the fastest runtime settings for a PyTorch training job on this machine, and prove that
    training converges the same way.
    """


def build() -> Any:
    """The whole command line as one command object with ``main()``."""
    app = typer.Typer(
        cls=LazyGroup,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return typer.main.get_command(app)
