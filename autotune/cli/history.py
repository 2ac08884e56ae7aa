"""``autotune history list|show|export|import|forget``"""

from __future__ import annotations

import time
from json import dumps
from math import exp
from pathlib import Path
from typing import Annotated

import typer

from autotune.disk import writing
from autotune.errors import InputError
from autotune.history.records import PastRun
from autotune.history.store import Store, StoreError, own_path, readable
from autotune.job.mistakes import did_you_mean
from autotune.words import config_words, factor_words, plural
from autotune_spaces.codec import encode
from autotune_trials.paths import write_where_told

EXPORTED = "a file that `autotune history export` wrote"
ACTIONS = "list, show RUN…, export [FILE], import FILE…, forget RUN… (or: forget all)"


def history(
    action: Annotated[str, typer.Argument(help=ACTIONS)] = "list",
    what: Annotated[
        list[str] | None, typer.Argument(help="Run IDs or their first characters, or files.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help=(
                "The history file. [default: AUTOTUNE_STORE, else history.sqlite in"
                " ~/.local/share/autotune]"
            )
        ),
    ] = None,
) -> None:
    """List, show, export, import or forget what earlier runs measured.

    Example: autotune history export team.jsonl
    """
    actions = {
        "list": _list,
        "show": _show,
        "export": _export,
        "import": _import,
        "forget": _forget,
    }
    if action not in actions:
        raise InputError(
            f"no action '{action}'",
            where="autotune history",
            expected=ACTIONS,
            remedy=did_you_mean(action, actions),
        )
    try:
        actions[action](Store(store or own_path()), what or [])
    except StoreError as error:
        raise InputError(
            str(error), where="autotune history", expected="a history that autotune wrote"
        ) from None


def _list(store: Store, what: list[str]) -> None:
    runs = store.runs()
    for run in runs:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.at))
        typer.echo(f"{run.id[:12]}  {when}  job {run.keys.job[:8]}  {_outcome(run)}")
    if not runs:
        typer.echo(f"{store.path}: no runs")


def _show(store: Store, what: list[str]) -> None:
    for run in _chosen(store, what):
        typer.echo(dumps(encode(run), indent=2))


def _export(store: Store, what: list[str]) -> None:
    runs = store.runs(most=-1)
    text = "".join(f"{dumps(encode(run), separators=(',', ':'))}\n" for run in runs)
    if not what:
        typer.echo(text, nl=False)
        return
    with writing(what[0]):
        write_where_told(Path(what[0]), text)
    if Path(what[0]).is_file():  # not a pipe, which may be standard output
        typer.echo(f"{what[0]}: {plural(len(runs), 'run')}")


def _import(store: Store, what: list[str]) -> None:
    if not what:
        raise InputError("no file given", where="autotune history import", expected=EXPORTED)
    for name in what:
        try:
            lines = Path(name).read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8 text"
            raise InputError(f"cannot be read: {why}", where=name, expected=EXPORTED) from None
        runs = [readable(line) for line in lines]
        if None in runs:
            number = runs.index(None) + 1
            raise InputError(
                "is not a run that this version can read",
                where=f"{name}:{number}",
                expected=EXPORTED,
            )
        new = store.add([run for run in runs if run])
        typer.echo(f"{name}: {new} of {plural(len(runs), 'run')} added")


def _forget(store: Store, what: list[str]) -> None:
    runs = store.runs(most=-1) if what == ["all"] else _chosen(store, what, single=True)
    typer.echo(f"{plural(store.forget([run.id for run in runs]), 'run')} forgotten")


def _chosen(store: Store, what: list[str], *, single: bool = False) -> list[PastRun]:
    """The runs that ``what`` names.

    Args:
        single: refuse a word that several IDs begin with.
    """
    runs = store.runs(most=-1)
    found: dict[str, PastRun] = {}
    wrong = "" if what else "no run given"
    for word in what:
        named = [run for run in runs if run.id == word]
        named = named or [run for run in runs if word and run.id.startswith(word)]
        if not named:
            wrong = wrong or f"no run {word!r}"
        elif single and len(named) > 1:
            wrong = wrong or f"the IDs of {len(named)} runs begin with {word}"
        found |= {run.id: run for run in named}
    if wrong:
        raise InputError(wrong, where=str(store.path), expected="IDs that `autotune history` lists")
    return list(found.values())


def _outcome(run: PastRun) -> str:
    if not run.answer:
        return "keep your settings"
    return f"{factor_words(exp(run.log_gain))}  {config_words(run.answer)}"
