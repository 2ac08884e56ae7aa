"""SEARCH: Optuna proposes, a live session measures, clear losers are cut after one block.

    seeds        one trial a knob, most promising first (from the bottleneck)
    combined     the winners among them together
    sampler      TPE over all live knobs, until plateau, budget or an exhausted space
    process      knobs that need a new process, tried one by one on the best of the above, in fresh processes

Live figures steer; they are never reported as the result. On a cluster every slot has a live session of its own, and as many trials
are in flight as there are slots (lanes.py); each is compared with baseline blocks of its own session.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from statistics import median

from autotune.errors import BaselineError
from autotune.executors.base import SessionFailed
from autotune.job.configs import key_of, normalise
from autotune.results import Observation, Trial
from autotune.search.proposer import Proposer
from autotune.search.seeds import seeds
from autotune.search.stopping import best_of
from autotune.stages.bench import Bench
from autotune.stages.lanes import MOST_LOST, spread
from autotune.stages.live import CLEAR_LOSS, BlockFailed, LiveComparison
from autotune.stages.observe import explain_failure
from autotune.stages.pairs import Pairs, prepared_s
from autotune.stages.proposals import PROMISING, Proposal, Proposals, late, learn, store
from autotune.verdict.speedup import LogRatio
from autotune.verdict.timing import start_up_excess, warm_up_end
from autotune_spaces.base import Config, Scope
from autotune_spaces.codec import decode
from autotune_trials.protocol import Record

PROCESS_SHARE = 0.65  # as SEARCH_SHARE, for knobs that need a new process: a value of one costs two runs of the job at least
PROCESS_PAIRS = 3  # fresh-process pairs a process knob's value is tried with


def search(bench: Bench, observation: Observation) -> tuple[Trial, ...]:
    """All trials, in the order they were measured; those of a resumed run come from the journal."""
    bench.progress.stage("search", f"{len(observation.domains)} knobs")
    trials = [decode(Trial, e.data) for e in bench.journal.all("trial")]
    if bench.journal.find("search-done") is not None or not observation.domains:
        return tuple(trials)
    _search_live(bench, observation, trials)
    _search_process(bench, observation, trials)
    bench.journal.append("search-done", "", {})
    return tuple(trials)


def _search_live(bench: Bench, observation: Observation, trials: list[Trial]) -> None:
    space = bench.spec.search_space
    domains = {n: v for n, v in observation.domains.items() if space[n].scope is Scope.LIVE}
    if not domains:
        return
    proposer = Proposer(bench.run_dir / "optuna.log", space, domains, observation.defaults, bench.seed)
    proposer.restore(trials)
    for trial in trials:
        learn(proposer, trial, bench, warn=False)
    for config in seeds(observation.bottleneck, domains, observation.defaults):
        proposer.enqueue(config, "seed")
    proposals = Proposals(bench, proposer, observation, trials)

    def serve(lane: Bench, pieces: Iterator[Proposal]) -> None:
        with LiveComparison(lane, noise=observation.noise, room=observation.anatomy.iterations) as live:
            for proposal in pieces:
                proposals.measured(_measure(lane, live, proposal, proposals))

    def give_up(proposal: Proposal, failure: SessionFailed) -> None:
        reason = f"{MOST_LOST} times the machine was lost that it was measured on; the last time: {failure.detail}"
        proposals.measured(Trial(proposal.number, proposal.config, "failed", reason=reason, origin=proposal.origin))

    spread(bench, proposals.take, serve, give_up)


def _measure(bench: Bench, live: LiveComparison, proposal: Proposal, proposals: Proposals) -> Trial:
    """Raises:
    SessionFailed: "lost"; nothing is known of the configuration.
    """
    number, config, origin, node, started = proposal.number, proposal.config, proposal.origin, bench.executor.node, time.monotonic()
    bench.progress.measuring(f"trial {number}", config)
    try:
        comparison = live.compare(config, {}, enough=lambda ratio: _enough(ratio, proposals.best()))
    except BlockFailed as failure:
        return Trial(number, config, failure.kind, reason=failure.reason, origin=origin, wall_s=time.monotonic() - started, node=node)
    except SessionFailed as failure:
        if failure.kind == "lost":
            raise
        raise explain_failure(bench, failure) from failure
    useless = {k: why for k, why in comparison.no_effect.items() if k in config}
    state = "failed" if useless else "pruned" if comparison.pruned else "complete"
    reason = "; ".join(f"{k} had no effect: {why}" for k, why in useless.items())
    if comparison.pruned:
        reason = reason or f"{math.exp(comparison.ratio.estimate):.2f}x the baseline's time after its first block"
    return Trial(
        number, config, state, comparison.ratio.estimate, comparison.ratio.standard_error, comparison.ratio.pairs,
        reason, origin, useless, comparison.anatomy, time.monotonic() - started, comparison.settle_s, node,
    )


def _enough(ratio: LogRatio, best: Trial | None) -> bool:
    """False for a candidate that may be the new best: it is the one whose figure matters, so it gets two more pairs."""
    if ratio.pairs > 2 or ratio.estimate > -PROMISING:
        return True
    return best is not None and ratio.estimate > (best.log_ratio or 0.0) + ratio.sigma


def _search_process(bench: Bench, observation: Observation, trials: list[Trial]) -> None:
    """Coordinate search over process knobs, each value on top of the best configuration so far, in paired fresh runs."""
    space = bench.spec.search_space
    knobs = [n for n in observation.domains if space[n].scope is Scope.PROCESS]
    live_best = best_of(trials)
    best: dict = dict(live_best.config) if live_best else {}
    best_ratio = live_best.log_ratio or 0.0 if live_best else 0.0
    known = {key_of(t.config): t for t in trials}
    for name in knobs:
        start, start_ratio = dict(best), best_ratio
        for value in observation.domains[name]:
            config = normalise({**start, name: value}, observation.defaults, space)
            if config == start or bench.spec.budget.tried(len(trials)):
                continue
            trial = known.get(key_of(config))
            if trial is None and late(bench, trials, PROCESS_SHARE):
                bench.progress.note(f"no time is left to try {name}={value}")
                continue
            if trial is None:
                trial = _measure_fresh(bench, config, start, start_ratio, len(trials), observation.noise)
                store(bench, observation.defaults, trials, trial)
                bench.stop.check()
            if trial.state == "complete" and (trial.log_ratio or 0.0) < best_ratio - PROMISING:
                best, best_ratio = dict(config), trial.log_ratio or 0.0


def _measure_fresh(
    bench: Bench, config: Config, reference: Config, reference_ratio: float, number: int, noise: float
) -> Trial:
    """``config`` against ``reference`` in interleaved fresh processes; the ratio is given against the baseline."""
    started = time.monotonic()
    bench.progress.measuring(f"trial {number}", config)
    pairs = Pairs(bench, config, reference, label=f"trial{number}")
    try:
        pairs.ensure(1)
        if not _useless(pairs) and pairs.log_speedups()[0] > -max(CLEAR_LOSS, 4 * noise):
            pairs.ensure(PROCESS_PAIRS)
    except SessionFailed as failure:
        kind = "infeasible" if failure.kind in ("oom", "killed") else "failed"
        return Trial(number, config, kind, reason=str(failure), origin="process", wall_s=time.monotonic() - started)
    except BaselineError as error:
        return Trial(number, config, "failed", reason=error.found, origin="process", wall_s=time.monotonic() - started)
    if useless := _useless(pairs):
        for name, why in useless.items():
            bench.progress.warning(f"{name}={config[name]} had no effect: {why}")
        reason = "; ".join(f"{name} had no effect: {why}" for name, why in useless.items())
        return Trial(number, config, "failed", reason=reason, origin="process", no_effect=useless, wall_s=time.monotonic() - started)
    gain = pairs.gain(noise)
    lost = gain.pairs < PROCESS_PAIRS
    reason = f"{math.exp(-gain.estimate):.2f}x the time after the first pair of runs" if lost else ""
    return Trial(
        number, config, "pruned" if lost else "complete", reference_ratio - gain.estimate, gain.standard_error, gain.pairs,
        reason, "process", {}, pairs.anatomies()[1], time.monotonic() - started, _start_up_s(pairs), pairs.nodes,
    )


def _useless(pairs: Pairs) -> dict[str, str]:
    """Knobs that tell the candidate from the reference and did nothing in it."""
    before, after = pairs.configs["reference"], pairs.configs["candidate"]
    found = {name: why for record in pairs.candidate.values() for name, why in record.no_effect.items()}
    return {name: why for name, why in found.items() if name in after and (name not in before or before[name] != after[name])}


def _start_up_s(pairs: Pairs) -> float:
    """What the candidate's start costs more than the reference's, in the median pair: searching kernels in its first iterations, and
    what had to be prepared before."""
    def excess_s(record: Record) -> float:
        return start_up_excess(record.window, warm_up_end(record.window.times_s)) + prepared_s(record)

    seeds = pairs.candidate.keys() & pairs.reference.keys()
    return max(median(excess_s(pairs.candidate[s]) - excess_s(pairs.reference[s]) for s in seeds), 0.0)
