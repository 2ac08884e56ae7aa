"""Reads tuned.yaml and reports every mistake in it with its line."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import InputError
from autotune.export.tuned import (
    FILE_NAME,
    TUNED_SCHEMA_VERSION,
    Provenance,
    TunedConfig,
    TunedKnob,
)
from autotune.job.mistakes import Mistake, nearest, to_error
from autotune.job.yaml_lines import Document, KeyPath, YamlMistake, parse_yaml, read_text, read_yaml
from autotune.results import Interval
from autotune.run_directory import RESULT, directory_kind, find_directory, no_run, refuse_untuned
from autotune_spaces.codec import decode, fits
from autotune_spaces.knobs import create, names
from autotune_spaces.knobs.via import VARIABLE_NAME

KEYS = tuple("schema_version name command workdir env env_from_launch knobs provenance".split())
KNOB_KEYS = ("value", "was", "gain", "options")
T = TypeVar("T")


def find_tuned(path: Path) -> Path:
    """The tuned.yaml that ``path`` means: the file itself, or the one of a run.

    Args:
        path: the file, a run's directory, or its name under ``autotune-runs/``.

    Raises:
        InputError: the directory has none, or ``path`` is a result.json.
    """
    if path.name == RESULT and os.path.isfile(path):
        raise InputError(
            "this is the record of a run",
            where=str(path),
            expected=f"a finished run's directory, or a {FILE_NAME}",
            remedy=f"give the run's directory: {path.parent}",
        )
    directory = None if os.path.isfile(path) else find_directory(path, FILE_NAME)
    if directory is None:
        return path
    inside = directory / FILE_NAME
    if os.path.isfile(inside):
        return inside
    refuse_untuned(directory, f"a finished run's directory, or a {FILE_NAME}")
    unfinished = directory_kind(directory) == "run"
    raise InputError(
        f"no {FILE_NAME} in it" + (": the run has not finished" if unfinished else ""),
        where=str(directory),
        expected=f"a finished run's directory, or a {FILE_NAME}",
        remedy=(
            "`autotune run` on the same job continues where it stopped"
            if unfinished
            else "`autotune run job.yaml` creates one"
        ),
    )


def load_tuned(path: Path | str) -> TunedConfig:
    """Read a tuned.yaml: as :func:`find_tuned`, or an open descriptor such as /dev/fd/3.

    Raises:
        InputError: with file and line of every mistake.
    """
    file = find_tuned(Path(path))
    try:
        # A pipe can be read only once, and has no directory for relative paths to refer to.
        document = (
            read_yaml(file) if file.is_file() else parse_yaml(file.read_text(encoding="utf-8"))
        )
    except YamlMistake as mistake:
        raise InputError(
            str(mistake), where=f"{file}:{mistake.line}", expected=mistake.expected
        ) from None
    except FileNotFoundError:
        raise no_run("no such file or run", str(file), FILE_NAME) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(file)
        ) from None
    reader = _Reader(document, file)
    tuned = reader.tuned()
    if reader.mistakes:
        raise to_error(reader.mistakes, document, file)
    return tuned


class _Reader:
    """Parses the document; collects mistakes and substitutes harmless values for them."""

    def __init__(self, document: Document, file: Path) -> None:
        self.document, self.file = document, file
        self.mistakes: list[Mistake] = []

    def wrong(self, place: KeyPath, found: str, expected: str, words: tuple[str, ...] = ()) -> None:
        self.mistakes.append(
            Mistake(place, found, expected, nearest(place[-1], words) if words and place else "")
        )

    def tuned(self) -> TunedConfig:
        data = self.document.data
        if not isinstance(data, dict):
            found = "the file is empty" if data is None else "not a mapping"
            self.wrong((), found, f"the keys {', '.join(KEYS)}")
            return TunedConfig("", (), self.file.parent)
        number = data.get("schema_version")
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not 1 <= number <= TUNED_SCHEMA_VERSION
        ):
            found = (
                "schema_version is missing" if number is None else f"schema_version is {number!r}"
            )
            expected = f"schema_version: {TUNED_SCHEMA_VERSION}; a newer one needs a newer autotune"
            remedy = ""
            if number is None and "command" in data and "knobs" not in data:
                found, expected = "this is a job file", f"the {FILE_NAME} that a run of it writes"
                remedy = f"`autotune run {self.file.name}` first"
            self.mistakes.append(Mistake(("schema_version",), found, expected, remedy=remedy))
            return TunedConfig("", (), self.file.parent)
        self.known_keys(data, (), KEYS)
        # not Path.expanduser, which raises for an unknown user
        workdir = Path(os.path.expanduser(self.text(data, ("workdir",), ".")))
        return TunedConfig(
            name=self.text(data, ("name",), "job"),
            command=self.words(data, "command", needed=True),
            workdir=self.file.resolve().parent / workdir,  # itself, if it is absolute
            env=self.variables(data, ("env",)),
            env_from_launch=self.words(data, "env_from_launch"),
            knobs={
                name: self.knob(name, entry)
                for name, entry in self.mapping(data, ("knobs",), needed=True).items()
            },
            provenance=self.provenance(data),
        )

    def known_keys(self, data: dict[str, Any], place: KeyPath, keys: tuple[str, ...]) -> None:
        for key in data:
            if key not in keys:
                self.wrong((*place, key), f"unknown key '{key}'", f"one of {', '.join(keys)}", keys)

    def text(self, data: dict[str, Any], place: KeyPath, default: str = "") -> str:
        value = data.get(str(place[-1]), default)
        if isinstance(value, (dict, list)) or value is None:
            self.wrong(
                place,
                f"'{place[-1]}' is {'empty' if value is None else 'not a single value'}",
                "text",
            )
            return default
        return read_text(self.document, place, value)

    def words(self, data: dict[str, Any], key: str, *, needed: bool = False) -> tuple[str, ...]:
        value = data.get(key, [])
        if (
            not isinstance(value, list)
            or any(isinstance(v, (dict, list)) or v is None for v in value)
            or (needed and not value)
        ):
            self.wrong(
                (key,),
                f"'{key}' is {'missing' if key not in data else 'not a list of words'}",
                "a list with one word per item",
            )
            return ()
        return tuple(read_text(self.document, (key, i), v) for i, v in enumerate(value))

    def mapping(
        self, data: dict[str, Any], place: KeyPath, *, needed: bool = False
    ) -> dict[str, Any]:
        value: Any = data.get(str(place[-1]), None if needed else {})
        if not isinstance(value, dict):
            found = f"'{place[-1]}' is {'missing' if place[-1] not in data else 'not a mapping'}"
            self.wrong(
                place,
                found,
                "keys and values" + ("; {} to change nothing" if place == ("knobs",) else ""),
            )
            return {}
        return value

    def variables(self, data: dict[str, Any], place: KeyPath) -> dict[str, str]:
        found = self.mapping(data, place)
        for name in found:
            if not VARIABLE_NAME.fullmatch(name):
                self.wrong((*place, name), f"{name!r} is not a valid variable name", "NAME: text")
        return {name: self.text(found, (*place, name)) for name in found}

    def knob(self, name: str, entry: Any) -> TunedKnob:
        place: KeyPath = ("knobs", name)
        if not isinstance(entry, dict) or "value" not in entry:
            example = f"{{value: {entry}}}" if isinstance(entry, (str, bool, int)) else "value: …"
            self.wrong(place, f"'{name}' has no value", example)
            return TunedKnob(None)
        self.known_keys(entry, place, KNOB_KEYS)
        options = self.mapping(entry, (*place, "options"))
        gain = entry.get("gain")
        if gain is not None:
            gain = self.decoded(Interval, gain, (*place, "gain"))
        knob = TunedKnob(entry["value"], entry.get("was"), gain, options)
        try:
            made = create(name, options)
        except KeyError:
            close = nearest(name, names())
            self.mistakes.append(
                Mistake(
                    place,
                    f"unknown knob '{name}'",
                    "a knob that `autotune knobs` lists",
                    remedy="remove what another version of autotune wrote, or tune again"
                    + (f"; did you mean '{close}'?" if close else ""),
                )
            )
            return knob
        except ValueError as error:
            self.wrong(
                (*place, "options"), f"{name}: {error}", "the options as `autotune run` wrote them"
            )
            return knob
        trouble = made.check_value(knob.value)
        if trouble:
            self.wrong(
                (*place, "value"),
                f"{name}: {trouble}",
                f"{made.range or 'a value of this knob'}; see `autotune knobs {name}`",
            )
        return knob

    def provenance(self, data: dict[str, Any]) -> Provenance:
        """Each field by itself, so that a mistake is told with its line."""
        fields = self.mapping(data, ("provenance",))
        found = Provenance()
        for name in Provenance.__dataclass_fields__:
            if fields.get(name) is not None:
                one = self.decoded(Provenance, {name: fields[name]}, ("provenance", name))
                found = found if one is None else replace(found, **{name: getattr(one, name)})
        return found

    def decoded(self, cls: type[T], value: Any, place: KeyPath) -> T | None:
        """Decode ``value`` as :func:`encode` wrote it; None if it is malformed."""
        try:
            found = decode(cls, value)
            if fits(cls, found) and _finite(value):
                return found
        except (TypeError, ValueError, KeyError, AttributeError):
            pass
        self.wrong(
            place, f"'{place[-1]}' is malformed", "what `autotune run` wrote; or leave it out"
        )
        return None


def _finite(data: Any) -> bool:
    """Whether no number in ``data``, at any depth, is NaN or infinite."""
    if isinstance(data, (dict, list)):
        return all(map(_finite, data.values() if isinstance(data, dict) else data))
    return not isinstance(data, float) or math.isfinite(data)
