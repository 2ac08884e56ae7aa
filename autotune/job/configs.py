"""Configurations: their parts by scope, and in words.

A configuration holds only the knobs that differ from the job's own values; the baseline is ``{}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from autotune.words import clean, config_words, value_words
from autotune_spaces.base import Config, Numerics, Scope, SearchSpace, Value, same
from autotune_trials.protocol.messages import KnobChoice


def key_of(config: Config) -> str:
    """A string that is equal for equal configurations, in any order of their knobs."""
    return json.dumps(dict(sorted(config.items())), separators=(",", ":"))


def live_knobs_of(config: Config, space: SearchSpace) -> tuple[KnobChoice, ...]:
    """The part of ``config`` that a running job can be switched to, as sent to the agent.

    In the order of the search space.
    """
    return tuple(
        KnobChoice(k.name, config[k.name], dict(k.options))
        for k in space.knobs
        if k.name in config and k.scope_of(config[k.name]) is Scope.LIVE
    )


def fixed_run_knobs(config: Config, space: SearchSpace) -> tuple[KnobChoice, ...]:
    """The part of ``config`` that the agent holds from the start of a fresh run.

    A fresh run is as the user will run the job.
    """
    return tuple(
        KnobChoice(k.name, config[k.name], dict(k.options))
        for k in space.knobs
        if k.name in config and k.scope is Scope.LIVE
    )


def started_with(config: Config, space: SearchSpace) -> dict[str, Value]:
    """The part of ``config`` that a fresh run is started with."""
    return {
        k.name: config[k.name] for k in space.knobs if k.name in config and k.scope is Scope.PROCESS
    }


def live_domains(
    domains: Mapping[str, Sequence[Value]], defaults: Config, space: SearchSpace
) -> dict[str, tuple[Value, ...]]:
    """For each knob, the job's own value and those that a running job can be switched to.

    Knobs with no other value are left out.
    """
    found = {}
    for name, values in domains.items():
        live = tuple(
            v for v in values if same(v, defaults[name]) or space[name].scope_of(v) is Scope.LIVE
        )
        if len(live) > 1:
            found[name] = live
    return found


def without(config: Config, *names: str) -> dict[str, Value]:
    return {k: v for k, v in config.items() if k not in names}


def numerics_of(config: Config, space: SearchSpace) -> Numerics:
    """The worst class among the knobs of ``config``; exact for the baseline."""
    return max(
        (space[name].numerics for name in config), key=lambda n: n.severity, default=Numerics.EXACT
    )


def normalize(
    values: Config, defaults: Mapping[str, Value], space: SearchSpace
) -> dict[str, Value]:
    """Drop values that equal the job's own, and those that another knob makes meaningless."""
    full = {**defaults, **values}
    return {
        k.name: full[k.name]
        for k in space.knobs
        if k.name in defaults
        and not same(full[k.name], defaults[k.name])
        and k.active(full, defaults)
    }


def in_words(config: Config, defaults: Mapping[str, Value] | None = None) -> str:
    """``num_workers 0 → 2, amp_dtype off → bfloat16`` or, without defaults, ``num_workers=2,
    amp_dtype=bfloat16``.
    """
    if not config or defaults is None:
        return config_words(config)
    return ", ".join(
        f"{clean(k)} {value_words(defaults.get(k))} → {value_words(v)}" for k, v in config.items()
    )
