"""The fastest configuration under given coefficients: coordinate descent, all draws at once."""

from __future__ import annotations

import numpy as np

from autotune.search.model.columns import Columns

SWEEPS = 4


def fastest(
    columns: Columns,
    coefficients: np.ndarray,
    allowed: np.ndarray,
    start: np.ndarray,
    *,
    start_up_costs: np.ndarray | None = None,
    fixed: frozenset[int] = frozenset(),
) -> np.ndarray:
    """Index vectors, one for each row of ``coefficients``.

    Workers and threads that compete for cores may only pay together, which a descent over single
    knobs cannot find: it is repeated for each number of threads.

    Args:
        allowed: (knob, value) -> whether it may be used.
        start: index vector from which the descent starts.
        start_up_costs: (knob, value) -> log cost on top of its effect.
        fixed: knobs that stay as in ``start``.
    """
    if columns.competing is None or fixed & set(columns.competing):
        return _descended(columns, coefficients, allowed, start, start_up_costs, fixed)
    threads = columns.competing[1]
    found, costs = [], []
    for value in allowed[threads].nonzero()[0]:
        index = start.copy()
        index[threads] = value
        index = _descended(columns, coefficients, allowed, index, start_up_costs, fixed | {threads})
        cost = (columns.rows(index) * coefficients).sum(axis=1)
        if start_up_costs is not None:
            cost = cost + start_up_costs[np.arange(index.shape[1]), index].sum(axis=1)
        found.append(index)
        costs.append(cost)
    best = np.array(costs).argmin(axis=0)
    return np.array(found)[best, np.arange(len(coefficients))]


def _descended(
    columns: Columns,
    coefficients: np.ndarray,
    allowed: np.ndarray,
    start: np.ndarray,
    start_up_costs: np.ndarray | None,
    fixed: frozenset[int],
) -> np.ndarray:
    count, knobs = len(coefficients), len(columns.knobs)
    effects = columns.effects(coefficients)
    if start_up_costs is not None:
        effects = effects + start_up_costs
    effects = np.where(allowed, effects, np.inf)
    index = np.tile(start, (count, 1))
    every = np.arange(count)
    dependents = _dependents(columns)
    of_knob = _pairs_of(columns)
    for _ in range(SWEEPS):
        before = index.copy()
        for k in range(knobs):
            if k in fixed:
                continue
            cost = effects[:, k, :].copy()
            for p, mine, other, theirs in of_knob[k]:
                cost += (coefficients[:, p] * theirs[index[:, other]])[:, None] * mine
            if columns.conditions[k]:  # where it has no effect, all values cost the same
                active: np.ndarray = np.ones(count, dtype=bool)
                for j, means_something in columns.conditions[k]:
                    active &= means_something[index[:, j]]
                cost[~active] = np.where(allowed[k], 0.0, np.inf)
            for j, means_something in dependents[k]:
                cost += means_something * effects[every, j, index[:, j]][:, None]
            best = cost.argmin(axis=1)
            better = cost[every, best] < cost[every, index[:, k]] - 1e-12
            index[:, k] = np.where(better, best, index[:, k])
        if (index == before).all():
            break
    return columns.settle(index)


def _dependents(columns: Columns) -> list[list[tuple[int, np.ndarray]]]:
    """For each knob, the knobs that have an effect only beside some of its values."""
    found: list[list[tuple[int, np.ndarray]]] = [[] for _ in columns.knobs]
    for k, conditions in enumerate(columns.conditions):
        for j, means_something in conditions:
            found[j].append((k, means_something))
    return found


def _pairs_of(columns: Columns) -> list[list[tuple[int, np.ndarray, int, np.ndarray]]]:
    """For each knob, its pairs: (coefficient, own values in it, the other knob, its values)."""
    found: list[list[tuple[int, np.ndarray, int, np.ndarray]]] = [[] for _ in columns.knobs]
    in_a, in_b = columns.in_a.astype(float), columns.in_b.astype(float)
    for p, pair in enumerate(columns.pairs):
        found[pair.a].append((columns.mains + p, in_a[p], pair.b, in_b[p]))
        found[pair.b].append((columns.mains + p, in_b[p], pair.a, in_a[p]))
    return found
