"""All answers found for a job, the best known and the baseline, measured again in fresh processes
in turns.

Regret is 1 − speed of the answer / speed of the best known. The best known is whatever is fastest
here, whoever found it: chance favors the fastest of several, so regret is stated too high rather
than too low.
"""

from __future__ import annotations

import math
from typing import Any

from processes import Config, Processes, Series, digest, in_turns
from records import Records

SECONDS = 6.0  # per window


def score(processes: Processes, rounds: int, incumbents: bool) -> dict[str, Any]:
    """``incumbents``: also score TPE's intermediate answers, to see when it reaches the tool's."""
    configs = answered(processes.records, incumbents)
    name = digest(configs)
    series = Series(processes, f"score-{name}", math.inf, SECONDS)
    costs = in_turns(series, configs, rounds)
    return processes.records.append("score", name, configs=configs, log_costs=costs)


def answered(records: Records, incumbents: bool) -> list[Config]:
    """The baseline first, then the best known, then the answers, without duplicates."""
    best = records.find("best")
    found: list[Config] = [{}, *([best["config"]] if best else [])]
    for answer in records.all("answer"):
        found.append(answer["config"])
        if incumbents and answer["method"] == "tpe":
            found += [config for _, config in answer["incumbents"]]
    return [c for n, c in enumerate(found) if c not in found[:n]]
