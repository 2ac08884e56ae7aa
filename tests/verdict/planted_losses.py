"""Synthetic trainings with a known truth: paired loss curves with a planted difference.

A run of seed s has its own curve (level and speed vary with the seed) and the noise of its batches.
The candidate with the same seed gets the same batches; rounding makes it drift away in a random
walk that grows with the steps, as in chaotic dynamics.
"""

from __future__ import annotations

import numpy as np

from autotune.verdict.runs import LossRun

STEPS = 240
BATCH = 32


def run(
    seed: int,
    *,
    side: int = 0,
    steps: int = STEPS,
    batch: int = BATCH,
    start: float = 2.3,
    end: float = 0.6,
    decay: float = 80.0,
    batch_noise: float = 0.10,
    rounding: float = 0.002,
    own_noise: float = 0.0,
    shift: float = 0.0,
    speed: float = 1.0,
    norm_factor: float = 1.0,
    norm_lag: int = 0,
    norm_noise: float = 0.0,
) -> LossRun:
    """One seeded run.

    Args:
        side: 0 baseline, 1 candidate: different rounding and own noise, the same batches.
        rounding: standard deviation of the drift from rounding after 240 steps, share of the loss.
        own_noise: noise of single steps that the two sides do not share (another dropout stream),
            share of the loss.
        shift: planted difference of the loss, in its unit, which reaches its full size over the
            first quarter.
        speed: planted factor on the speed of learning.
        norm_factor, norm_lag, norm_noise: gradient norms are scaled, delayed by steps, scattered.
    """
    shared = np.random.default_rng([seed, 1])
    own = np.random.default_rng([seed, 2 + side])
    t = np.arange(steps) * batch / BATCH
    level, pace = np.exp(shared.normal(0, 0.02)), np.exp(shared.normal(0, 0.05))
    loss = end * level + (start - end) * np.exp(-t * speed * pace / decay)
    noise = shared.normal(0, batch_noise, steps) * np.sqrt(BATCH / batch)
    walk = np.cumsum(own.normal(0, 1, steps)) / np.sqrt(STEPS) * rounding
    loss = loss * (1 + noise * 0.5 + walk + own.normal(0, own_noise, steps))
    loss = loss + shift * np.minimum(t / 60, 1)
    norms = (
        3
        * np.exp(-np.arange(20) / 40)
        * np.exp(np.random.default_rng([seed, 3]).normal(0, 0.15, 20))
    )
    norms = (
        np.concatenate([norms[:1].repeat(norm_lag), norms])[:8]
        * norm_factor
        * np.exp(own.normal(0, norm_noise, 8))
    )
    return LossRun(
        tuple(map(float, loss)),
        tuple(float(i * batch) for i in range(steps)),
        tuple(map(float, norms)),
        tuple(map(float, norms * 0.01)),
    )


def side(seeds: range, **planted: float) -> dict[int, LossRun]:
    return {seed: run(seed, **planted) for seed in seeds}
