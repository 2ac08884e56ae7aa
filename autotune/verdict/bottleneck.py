"""What limits the job, from two measurements that have to agree.

    time       share of the job's time spent waiting for batches and at epoch boundaries; direct and precise
    ceiling    how much faster it runs when batches cost nothing: what a cure would really gain, but as noisy as a block

If the ceiling stands out from the noise, it decides: waiting is no loss if the job is no faster
without it, and a reader that never keeps the model waiting may still take its cores. Otherwise the
time decides, unless the gain it promises would have been visible through the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.results import NO_FASTER, Anatomy, Bottleneck
from autotune.words import factor_words

# Shares of the time from which a phase is called the bottleneck. A perfect cure of a phase with a
# fifth of the time gives a 1.25x speed-up, worth a headline; below it no single phase is "the"
# bottleneck.
LOADER_SHARE, OPTIMIZER_SHARE, OTHER_SHARE = 0.20, 0.25, 0.40
UNSEEN = 0.15  # share saved without the loader, beyond what waiting shows, that is worth a word
QUIET = 0.02  # noise below which a ceiling is reported without it
BASELINE_BLOCKS = 4  # the ceiling is the ratio of their mean to one block with cached batches
# standard errors: 95%, one-sided, of Student's t with 2 degrees of freedom, because the noise is
# the scatter of these four blocks around a line
SURE = 2.920


@dataclass(frozen=True)
class Shares:
    """Shares of the time of an iteration, including its part of the epoch boundary."""

    waiting: float
    epoch_ends: float
    forward_backward: float
    optimizer: float
    other: float

    @property
    def loader(self) -> float:
        """What free batches would save if nothing else became the limit."""
        return self.waiting + self.epoch_ends


def shares(parts: Anatomy) -> Shares:
    """Where the time goes."""
    iteration_s = sum(parts.phases_s.values()) or parts.batch_cost_s
    whole_s = iteration_s + parts.epoch_ends_s
    if whole_s <= 0:
        return Shares(0.0, 0.0, 0.0, 0.0, 0.0)
    of = {phase: seconds / whole_s for phase, seconds in parts.phases_s.items()}
    return Shares(
        waiting=parts.reader_ratio * iteration_s / whole_s,
        epoch_ends=parts.epoch_ends_s / whole_s,
        forward_backward=of.get("forward", 0.0) + of.get("backward", 0.0),
        optimizer=of.get("optimizer", 0.0),
        other=of.get("other", 0.0),
    )


def is_loader_bound(share: float, ceiling: float | None, noise: float) -> bool:
    """Whether free batches would save a fifth of the time or more.

    Args:
        share: share of the time spent waiting for batches and at epoch boundaries.
        ceiling: measured speed-up with free batches; None: not measured.
        noise: standard deviation of the log cost of one block.
    """
    if ceiling is None or ceiling <= 0:
        return share >= LOADER_SHARE
    found, sigma = math.log(ceiling), ceiling_sigma(noise)
    if abs(found) > SURE * sigma:
        return 1.0 - 1.0 / ceiling >= LOADER_SHARE
    promised = -math.log(max(1.0 - share, 1e-6))
    return share >= LOADER_SHARE and promised - found <= SURE * sigma


def outdoes_waiting(parts: Anatomy, ceiling: float) -> bool:
    """Whether a ceiling promises much more than the waiting explains: reason to measure it again."""
    return 1.0 - 1.0 / ceiling > shares(parts).loader + UNSEEN


def ceiling_sigma(noise: float) -> float:
    """Standard error of the log of a ceiling, from the noise of one block."""
    return noise * math.sqrt(1.0 + 1.0 / BASELINE_BLOCKS)


def name_bottleneck(
    parts: Anatomy, ceiling: float | None, noise: float = 0.0, *, restarts_workers: bool = False
) -> tuple[Bottleneck, str]:
    """(kind, one sentence with the figures).

    Args:
        restarts_workers: whether the job restarts its DataLoader workers for every epoch.
    """
    share = shares(parts)
    bound = (
        f"; with an infinitely fast loader it would run {_bound(ceiling, noise)}" if ceiling else ""
    )
    if is_loader_bound(share.loader, ceiling, noise):
        if share.loader >= LOADER_SHARE and ceiling and outdoes_waiting(parts, ceiling):
            bound = f", and preparing batches slows the rest down{bound}"
        return _loader(parts, share, bound, restarts_workers)
    doubt = ""
    if share.loader >= LOADER_SHARE:  # contradicted by the ceiling
        doubt = (
            f"; {share.loader:.0%} of it is spent on the loader, but the loader is not the"
            f" limit: with an infinitely fast one it would run {_bound(ceiling, noise)}"
        )
        bound = doubt
    if share.optimizer >= OPTIMIZER_SHARE:
        return (
            Bottleneck.OPTIMIZER,
            f"{share.optimizer:.0%} of the time is spent in the optimizer step{doubt}",
        )
    if share.other >= OTHER_SHARE:
        return (
            Bottleneck.OVERHEAD,
            (
                f"{share.other:.0%} of the time is spent outside loading, forward, backward and"
                f" optimizer{doubt}"
            ),
        )
    return (
        Bottleneck.COMPUTE,
        f"{share.forward_backward:.0%} of the time is spent in forward and backward{bound}",
    )


def _loader(
    parts: Anatomy, share: Shares, bound: str, restarts_workers: bool
) -> tuple[Bottleneck, str]:
    if share.loader < LOADER_SHARE:
        return (
            Bottleneck.LOADER,
            (
                f"only {share.loader:.0%} of the time is spent on the loader, but preparing batches"
                f" slows the rest down{bound}"
            ),
        )
    if share.epoch_ends <= share.waiting:
        ends = (
            f", and {share.epoch_ends:.0%} is lost at epoch ends"
            if share.epoch_ends >= 0.05
            else ""
        )
        return (
            Bottleneck.LOADER,
            f"{share.waiting:.0%} of the time is spent waiting for the next batch{ends}{bound}",
        )
    restarts = ", where its workers are restarted" if restarts_workers else ""
    return (
        Bottleneck.EPOCH_ENDS,
        (
            f"{share.epoch_ends:.0%} of the time is lost at epoch ends, {parts.turnover_s:.2g}"
            f" s every {parts.epoch_iterations} iterations{restarts}{bound}"
        ),
    )


def _bound(ceiling: float | None, noise: float) -> str:
    if ceiling is None or ceiling < NO_FASTER:
        return "no faster"
    within = ", within the noise" if math.log(ceiling) <= SURE * ceiling_sigma(noise) else ""
    return f"{factor_words(ceiling)} as fast" + (
        f" (± {noise:.0%}{within})" if noise >= QUIET else ""
    )
