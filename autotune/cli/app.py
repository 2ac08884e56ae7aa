"""The commands. A module is imported only when its command is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from autotune import __version__

# Each is a function in the module of its name, whose annotations are its arguments.
COMMANDS = {
    "init": "Write a first job.yaml for a command.",
    "check": "Validate a job.yaml and show what would be searched.",
    "run": "Tune a job.",
    "profile": "Show where a job's time goes, without tuning it.",
    "show": "Show the result of a run.",
    "compare": "Compare two runs: verdicts, knobs, times, operators.",
    "judge": "Say whether a change is faster and trains the same way.",
    "launch": "Run the job with its tuned settings.",
    "export": "Write tuned settings as a script, a patch or a cluster job.",
    "ui": "Compare trials in MLflow.",
    "submit": "Tune a job on a Ray cluster.",
    "jobs": "List the runs on a cluster.",
    "logs": "Show the output of a run on a cluster.",
    "stop": "End a run on a cluster.",
    "sync": "Send what was recorded offline to MLflow.",
    "history": "List, export or forget what earlier runs measured.",
    "knobs": "List the knobs, or explain one.",
    "doctor": "Show what this machine offers and which knobs apply.",
    "schema": "Print the JSON Schema of job.yaml, for editors.",
}


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and summary, and loads one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        summary = COMMANDS.get(name)
        return summary and TyperCommand(name, help=summary, callback=lambda: None)

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
    function: Callable[..., Any] = getattr(importlib.import_module(f"autotune.cli.{name}"), name)
    single = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
    )
    single.command(name, help=function.__doc__)(function)
    return typer.main.get_command(single)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune {__version__}")
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
