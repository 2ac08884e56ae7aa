"""Parse a job's search space, the value of ``search_space`` in job.yaml, into knobs.

    auto                                            a preset
    {preset: auto, exclude: [compile_mode],         a preset, without some knobs
     num_workers: [0, 4, 8]}                          and with some redefined
    {num_workers: auto, batch_size: {values: [32, 64], lr_scaling: sqrt},
     dtype: {via: "--dtype {}", values: [float32, bfloat16], default: float32, numerics: rounding}}

A knob is described by ``auto`` (its own choice of values), a list of values, one value, ``off``
(left out), or a mapping with ``values`` and the knob's options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from autotune_spaces.base import Config, Knob, Numerics, SearchSpace, Value, nearest, same
from autotune_spaces.knobs import create, get, names
from autotune_spaces.knobs.via import ViaKnob
from autotune_spaces.shell_line import filled_command, shell_line

VIA_KEYS = ("via", "values", "default", "numerics")


class SpaceError(Exception):
    """The search space is invalid.

    Args:
        path: keys and indexes that lead from the value of ``search_space`` to the mistake.
        found: what is wrong, in one sentence.
        expected: what would be valid.
        nearest: the valid word closest to what was found, or "".

    ``others`` are the mistakes in other knobs of the same search space.
    """

    others: tuple[SpaceError, ...] = ()

    def __init__(
        self, path: Sequence[str | int], found: str, expected: str = "", nearest: str = ""
    ) -> None:
        super().__init__(found)
        self.path, self.found, self.expected, self.nearest = tuple(path), found, expected, nearest

    def each(self) -> tuple[SpaceError, ...]:
        """This mistake and those in other knobs."""
        return (self, *self.others)


@dataclass(frozen=True)
class Preset:
    name: str
    description: str
    knobs: Mapping[str, Any]  # knob -> its description, as in a job file


def load_space(definition: Any, *, command: Sequence[str] = ()) -> SearchSpace:
    """The search space described by ``definition``, the parsed value of ``search_space``.

    ``command`` is the job's own; current values of ``via`` flags and ``{name}`` placeholders are
    read from it.

    Raises:
        SpaceError: the first mistake of each knob, or one in the definition as a whole.
    """
    if definition is None or isinstance(definition, str):
        preset = load_preset(definition or "auto", ())
        return SearchSpace(preset.name, _build(preset.knobs, command))
    if not isinstance(definition, Mapping):
        raise SpaceError(
            (), f"search_space is {definition!r}", "the name of a preset, or a mapping of knobs"
        )
    entries = {_name(key): value for key, value in definition.items()}
    name = entries.pop("preset", None)
    excluded = _excluded(entries.pop("exclude", None), entries)
    if name is None and excluded:
        raise SpaceError(
            ("exclude",), "exclude without a preset to exclude from", "preset: auto next to it"
        )
    merged: dict[str, Any] = {} if name is None else dict(load_preset(name, ("preset",)).knobs)
    merged.update(entries)
    if not merged:
        raise SpaceError((), "search_space is empty", "the name of a preset, or a mapping of knobs")
    for knob in excluded:
        merged.pop(knob, None)
    knobs = _build(merged, command)
    if not knobs:
        raise SpaceError(
            (), "every knob is left out, so there is nothing to search", "at least one knob"
        )
    return SearchSpace("custom" if name is None else str(name), knobs)


def preset_names() -> tuple[str, ...]:
    """Names of the presets that are shipped, ``auto`` first."""
    from importlib.resources import files

    found = sorted(
        f.name.removesuffix(".yaml")
        for f in files("autotune_spaces").joinpath("presets").iterdir()
        if f.name.endswith(".yaml")
    )
    return tuple(sorted(found, key=lambda name: name != "auto"))


def load_preset(name: Any, path: Sequence[str | int] = ()) -> Preset:
    """A shipped preset.

    Raises:
        SpaceError: there is none with this name; ``path`` says where it was requested.
    """
    known = preset_names()
    if name not in known:
        raise _not_one_of(known, name, path, f"there is no preset {name!r}")
    return _read_preset(str(name))


@cache
def _read_preset(name: str) -> Preset:
    from importlib.resources import files

    import yaml

    data = yaml.safe_load(
        files("autotune_spaces").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    )
    knobs = dict.fromkeys(names(), "auto") if data["knobs"] == "every" else data["knobs"]
    return Preset(name, data["description"], knobs)


def command_line(argv: Sequence[str], knobs: Iterable[Knob], config: Config) -> list[str]:
    """The job's command under ``config``: ``via`` flags set, ``{name}`` placeholders filled in.

    A placeholder whose knob is not in ``config`` gets the job's own value; the rest is unchanged.
    """
    words = list(argv)
    for knob in knobs:
        if knob.name in config:
            words = knob.command(words, config[knob.name])
        elif isinstance(knob, ViaKnob) and not knob.via:
            words = knob.command(words, knob.default)
    return words


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise SpaceError(
            (key,), f"{key!r} is not the name of a knob", f"one of {', '.join(names())}"
        )
    return key


def _excluded(value: Any, entries: Mapping[str, Any]) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise SpaceError(("exclude",), f"exclude is {value!r}", "a list of knobs")
    for index, name in enumerate(value):
        if not isinstance(name, str) or (name not in names() and name not in entries):
            raise _unknown(("exclude", index), name)
    return tuple(value)


def _unknown(path: Sequence[str | int], name: Any) -> SpaceError:
    return _not_one_of(names(), name, path, f"there is no knob {name!r}")


def _not_one_of(
    known: Iterable[Any], word: Any, path: Sequence[str | int], found: str
) -> SpaceError:
    words = [str(k) for k in known]
    return SpaceError(path, found, f"one of {', '.join(words)}", nearest(word, words))


def _build(descriptions: Mapping[str, Any], command: Sequence[str]) -> tuple[Knob, ...]:
    order = {name: index for index, name in enumerate(names())}
    knobs, mistakes = [], []
    for name, description in descriptions.items():
        try:
            knobs.append(_knob(name, description, command, (name,)))
        except SpaceError as mistake:
            mistakes.append(mistake)
    if mistakes:
        mistakes[0].others = tuple(mistakes[1:])
        raise mistakes[0]
    return tuple(
        sorted((k for k in knobs if k is not None), key=lambda k: order.get(k.name, len(order)))
    )


def _knob(
    name: str, description: Any, command: Sequence[str], path: tuple[str | int, ...]
) -> Knob | None:
    """One knob; None if it is left out."""
    if name not in names():
        return _via(name, description, command, path)
    # YAML reads an unquoted off as False
    if description is False or description in ("off", "exclude"):
        return None
    if description is None or description == "auto":
        return create(name)
    if not isinstance(description, Mapping):
        listed = isinstance(description, list)
        return create(
            name, values=_values(get(name), description if listed else [description], path, listed)
        )
    if "via" in description:
        raise SpaceError(
            (*path, "via"),
            f"{name} is one of autotune's own knobs",
            "a different name for the job's setting",
        )
    knob, options = get(name), {}
    for key, value in description.items():
        if key == "values":
            continue
        if key not in knob.accepts:
            valid = ("values", *knob.accepts)
            raise _not_one_of(valid, key, (*path, key), f"{name} has no option {key!r}")
        choices = knob.accepts[key]
        value = "none" if value is None and "none" in choices else value
        if value not in choices:
            raise _not_one_of(choices, value, (*path, key), f"{key} is {value!r}")
        options[key] = value
    chosen = description.get("values", "auto")
    if chosen in (None, "auto"):
        return create(name, options)
    if not isinstance(chosen, list):
        raise SpaceError((*path, "values"), f"values is {chosen!r}", "a list of values")
    return create(name, options, _values(knob, chosen, (*path, "values"), True))


def _values(
    knob: Knob, raw: Sequence[Any], path: tuple[str | int, ...], listed: bool
) -> tuple[Value, ...]:
    """``raw``, each value checked. ``listed``: the file has a list, so errors give an index."""
    if not raw:
        raise SpaceError(path, f"{knob.name} has an empty list of values", knob.range)
    values: list[Value] = []
    for index, item in enumerate(raw):
        value = knob.parse(item)
        reason = knob.check_value(value)
        if reason:
            words = knob.range.replace("(CUDA)", "").replace(",", " ").split()
            raise SpaceError(
                (*path, index) if listed else path,
                f"{knob.name}: {reason}",
                knob.range,
                nearest(value, words),
            )
        if not any(same(value, v) for v in values):
            values.append(value)
    return tuple(values)


def _via(name: str, description: Any, command: Sequence[str], path: tuple[str | int, ...]) -> Knob:
    in_command = filled_command(command, {name: ""}) != list(command)
    if not isinstance(description, Mapping) or ("via" not in description and not in_command):
        raise _unknown(path, name)
    for key in description:
        if key not in VIA_KEYS:
            raise _not_one_of(VIA_KEYS, key, (*path, key), f"{name} has no option {key!r}")
    via = description.get("via", "")
    if not isinstance(via, str):
        raise SpaceError(
            (*path, "via"), f"via is {via!r}", 'text such as "--dtype {}" or "env NAME"'
        )
    classes = [n.value for n in Numerics]
    numerics = description.get("numerics", Numerics.STATISTICAL.value)
    if numerics not in classes:
        raise _not_one_of(classes, numerics, (*path, "numerics"), f"numerics is {numerics!r}")
    try:
        knob = ViaKnob(name, options={"via": via, "numerics": numerics})
    except ValueError as error:
        raise SpaceError(
            (*path, "via"),
            str(error),
            '"--flag {}", "--flag={}", "--flag" (present or absent), or "env NAME"',
        ) from None
    if knob.words and shell_line(command) is not None:
        raise SpaceError(
            (*path, "via"),
            "the command is a shell line, to which no flag can be added",
            f"{{{name}}} in the command, and no via",
        )
    values = _via_values(knob, description, path)
    default = _via_default(knob, description, values, command, path)
    if not any(same(default, v) for v in values):
        values = (default, *values)
    return create(name, {"via": via, "default": default, "numerics": numerics}, values)


def _via_values(
    knob: ViaKnob, description: Mapping[str, Any], path: tuple[str | int, ...]
) -> tuple[Value, ...]:
    raw = description.get("values", [False, True] if knob.switch else None)
    if not isinstance(raw, list):
        raise SpaceError(
            (*path, "values") if "values" in description else path,
            f"{knob.name} has no list of values",
            "values: [a, b]",
        )
    return _values(knob, raw, (*path, "values"), True)


def _via_default(
    knob: ViaKnob,
    description: Mapping[str, Any],
    values: Sequence[Value],
    command: Sequence[str],
    path: tuple[str | int, ...],
) -> Value:
    """The job's own value: as declared, else as found in the command."""
    if "default" in description:
        default: Value = description["default"]
        reason = knob.check_value(default)
        if reason:
            raise SpaceError(
                (*path, "default"),
                f"{knob.name}: {reason}",
                "the value that the unchanged job uses",
            )
        return default
    if knob.switch:
        size = len(knob.words)
        return any(tuple(command[i : i + size]) == knob.words for i in range(len(command)))
    text = knob.value_in(command)
    if text is None:
        raise SpaceError(
            path, f"{knob.name} does not say what the unchanged job uses", "default: that value"
        )
    return next((v for v in values if _says(text, v)), text)


def _says(text: str, value: Value) -> bool:
    """Whether ``text`` is ``value``; 1e-3 is 0.001."""
    try:
        return text == str(value) or (isinstance(value, (int, float)) and float(text) == value)
    except ValueError:
        return False
