"""The best known configuration of a job: a search independent of the tool, with fresh processes
only and as much time as it needs.

    random configurations ─▶ successive halving: 24, 8, 3
      ─▶ from each of the three, and from the baseline: coordinate search over every value of every
         knob, until a whole pass changes nothing
      ─▶ the leaders and the baseline in turns

It searches further than the tool: WIDER has values outside the tool's domains.

`climb_on` is the short way: the same coordinate search, only from the fastest configuration scored
so far, whoever found it. It shows what a single further change would gain.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from processes import Config, Processes, Series, Space, TimeUp, digest, in_turns
from regret_page import Scored

from autotune.job.configs import key_of
from autotune.verdict.sequential import robust_mean

SECONDS, FINAL_SECONDS = 3.0, 6.0  # per window
# random configurations; probability that each of their knobs differs from the job's own value
DRAWN, CHANGED = 24, 0.4
LEADERS, FINAL_ROUNDS = 4, 6
AHEAD = 0.01  # log gain that is worth a second look
WIDER: Mapping[str, tuple[Any, ...]] = {
    "num_workers": (0, 1, 2, 4, 8, 16, 32, 64),
    "prefetch_factor": (2, 4, 8, 16),
}


def search_best(processes: Processes, minutes: float) -> dict[str, Any]:
    """Search (resuming), compare the leaders, and record the best."""
    series = Series(processes, "best", minutes * 60, SECONDS)
    space = wider(processes.space)
    finished, climbed = True, []
    try:
        for start in [*halving(series, space), {}]:
            climbed.append(climb(series, space, start))
    except TimeUp:
        finished = False
    configs = leaders(series, climbed)
    finals = Series(processes, f"finals-{digest(configs)}", math.inf, FINAL_SECONDS)
    costs = [robust_mean(c)[0] for c in in_turns(finals, configs, FINAL_ROUNDS)]
    best = min(range(len(configs)), key=costs.__getitem__)
    found = {
        "config": configs[best],
        "speedup": math.exp(costs[0] - costs[best]),
        "runs": len(series.done),
        "wall_s": round(series.spent_s),
    }
    table = [[c, math.exp(costs[0] - cost)] for c, cost in zip(configs, costs, strict=True)]
    return processes.records.append("best", **found, finished=finished, finals=table)


def climb_on(processes: Processes, minutes: float) -> dict[str, Any]:
    """Search (resuming) from the fastest scored configuration, and record where it leads."""
    start = Scored(processes.records).fastest
    series = Series(processes, f"climb-{digest([start])}", minutes * 60, SECONDS)
    steps = [start]
    finished = True
    try:
        climb(series, wider(processes.space), start, steps.append)
    except TimeUp:
        finished = False
    found = {"config": steps[-1], "runs": len(series.done), "wall_s": round(series.spent_s)}
    return processes.records.append("best", **found, finished=finished, start=start)


def wider(space: Space) -> Space:
    domains = {
        name: list(dict.fromkeys([*values, *WIDER.get(name, ())]))
        for name, values in space.domains.items()
    }
    return replace(space, domains=domains)


def halving(series: Series, space: Space) -> list[Config]:
    """The three best of the random configurations; better ones are measured more often."""
    drawn = random.Random(1)
    lot: list[Config] = []
    for _ in range(20 * DRAWN):
        values = {
            n: drawn.choice(list(vs)) for n, vs in space.domains.items() if drawn.random() < CHANGED
        }
        config = space.normalized(values)
        if config not in lot and len(lot) < DRAWN:
            lot.append(config)
    costs: dict[str, list[float]] = defaultdict(list)
    for keep, looks in ((8, 1), (3, 1), (3, 2)):
        for _ in range(looks):
            for config in lot:
                costs[key_of(config)].append(series.log_cost(config))
        lot = sorted(lot, key=lambda c: fmean(costs[key_of(c)]))[:keep]
    return lot


def climb(
    series: Series, space: Space, start: Config, told: Callable[[Config], None] = lambda _: None
) -> Config:
    """Improve ``start`` knob by knob until nothing helps; ``told`` of each improvement."""
    current, order = start, random.Random(2)
    changed = True
    while changed:
        changed = False
        for name in order.sample(sorted(space.domains), len(space.domains)):
            better = _better(series, current, others(space, current, name))
            if better is not None:
                current, changed = better, True
                told(better)
    return current


def others(space: Space, current: Config, name: str) -> list[Config]:
    """``current`` with every other value of one knob."""
    found: list[Config] = []
    for value in space.domains[name]:
        config = space.normalized({**current, name: value})
        if config != current and config not in found:
            found.append(config)
    return found


def _better(series: Series, current: Config, configs: Sequence[Config]) -> Config | None:
    """The best of ``configs`` if it beats ``current`` twice, the second time measured in turns."""
    if not configs:
        return None
    own = [series.log_cost(current)]
    costs = [series.log_cost(c) for c in configs]
    own.append(series.log_cost(current))
    best = min(range(len(configs)), key=costs.__getitem__)
    if costs[best] > fmean(own) - AHEAD:
        return None
    # Leave out the look that chose it: being chosen for its lead makes that lead too large.
    mine, its = in_turns(series, [current, configs[best]], 4)
    return configs[best] if fmean(its) < fmean(mine) - AHEAD / 2 else None


def leaders(series: Series, climbed: Sequence[Config]) -> list[Config]:
    """The baseline, the results of the climbs, and the best of the rest by their runs."""
    costs: dict[str, list[float]] = defaultdict(list)
    configs: dict[str, Config] = {}
    for _, config, cost in series.done:
        costs[key_of(config)].append(cost)
        configs[key_of(config)] = config
    # penalize few runs: one lucky run must not lead
    ranked = sorted(configs, key=lambda k: fmean(costs[k]) + 0.03 / len(costs[k]))
    found: list[Config] = [{}]
    for config in [*climbed, *(configs[k] for k in ranked[:LEADERS])]:
        if config not in found:
            found.append(config)
    return found
