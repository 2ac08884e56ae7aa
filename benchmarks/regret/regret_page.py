"""README.md's tables, from the files in results/."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from jobs_table import HERE
from records import Records, known_jobs

from autotune.job.configs import in_words, key_of
from autotune.verdict.sequential import robust_mean

MARK = "<!-- Made by run.py page; what follows is overwritten. -->"
METHODS = (
    "ours",
    "expert",
    "loadtune",
    "tpe",
    "tpe-confirmed",
    "random",
    "random-confirmed",
    "ofat",
    "ofat-confirmed",
)


def write_page() -> str:
    path = HERE / "README.md"
    before = path.read_text(encoding="utf-8").partition(MARK)[0] if path.exists() else ""
    text = "\n".join(lines({job: Records(job) for job in known_jobs()}))
    path.write_text(f"{before}{MARK}\n\n{text}\n", encoding="utf-8")
    return text


def lines(jobs: Mapping[str, Records]) -> Iterator[str]:
    scored = {job: Scored(records) for job, records in jobs.items() if records.all("score")}
    machines = {line["machine"] for records in jobs.values() for line in records.all("space")}
    yield f"Measured on {'; '.join(sorted(machines))}."
    yield ""
    yield "| job | bottleneck | as it is | best known | its configuration | search |"
    yield "|---|---|---|---|---|---|"
    for job, records in jobs.items():
        space, best = records.find("space") or {}, records.find("best")
        score = scored.get(job)
        fastest = score.fastest if score else best["config"] if best else None
        speed = (
            f"{score.speedup(fastest):.2f}x ± {score.error(fastest):.1%}"
            if score
            else f"{best['speedup']:.2f}x"
            if best
            else "not known"
        )
        how = (
            f"{best['runs']} runs, {best['wall_s'] / 60:.0f}"
            f" min{', from the best answer' if 'start' in best else ''}"
            f"{'' if best['finished'] else ', cut off'}"
            if best
            else ""
        )
        if score and best and fastest != best["config"]:
            how += f"; its own best {score.speedup(best['config']):.2f}x"
        words = in_words(fastest) if fastest is not None else ""
        iteration = f"{1e3 * space['iteration_s']:.1f} ms" if space else ""
        yield f"| {job} | {space.get('bottleneck', '')} | {iteration} | {speed} | {words} | {how} |"
    yield ""
    if scored:
        yield from answers(scored)


def answers(scored: Mapping[str, Scored]) -> Iterator[str]:
    every = {(job, a["key"]): a for job, score in scored.items() for a in score.answers}
    yield "| job | method | minutes | its answer | speed | regret | took | reported |"
    yield "|---|---|---|---|---|---|---|---|"
    for (job, _), a in sorted(
        every.items(),
        key=lambda item: (item[0][0], item[1]["minutes"], METHODS.index(item[1]["method"])),
    ):
        score = scored[job]
        told = (
            f"{a['speedup']['estimate']:.2f}x"
            if a.get("verdict") == "tuned"
            else a.get("verdict", "")
        )
        yield (
            f"| {job} | {a['method']} | {a['minutes']:g} | {in_words(a['config'])} |"
            f" {score.speedup(a['config']):.2f}x | {score.regret(a['config']):.1%} |"
            f" {a['wall_s'] / 60:.1f} min, {a['trials']} trials | {told} |"
        )
    yield ""
    yield (
        "| method | minutes | answers | mean regret | within 3 % | within 10 % | mean time | TPE as"
        " far after |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for method in METHODS:
        for minutes in sorted({a["minutes"] for a in every.values() if a["method"] == method}):
            mine = [
                (scored[job], a)
                for (job, _), a in every.items()
                if (a["method"], a["minutes"]) == (method, minutes)
            ]
            regrets = [score.regret(a["config"]) for score, a in mine]
            within = [sum(r <= bar for r in regrets) for bar in (0.03, 0.10)]
            reached = [score.tpe_as_far_s(a) for score, a in mine]
            known = [r for r in reached if r is not None]
            tpe = (
                f"{fmean(known) / 60:.1f} min ({len(known)} of {len(mine)})"
                if method == "ours" and known
                else ""
            )
            yield (
                f"| {method} | {minutes:g} | {len(mine)} | {fmean(regrets):.1%} | {within[0]} of"
                f" {len(mine)} | {within[1]} of {len(mine)} |"
                f" {fmean(a['wall_s'] for _, a in mine) / 60:.1f} min | {tpe} |"
            )


class Scored:
    """The latest scoring of a job, and the answers in it."""

    def __init__(self, records: Records) -> None:
        last = records.all("score")[-1]
        self.costs: dict[str, list[float]] = {
            key_of(c): costs for c, costs in zip(last["configs"], last["log_costs"], strict=True)
        }
        self.fastest: dict[str, Any] = min(last["configs"], key=lambda c: -self.speedup(c))
        self.answers = [a for a in records.all("answer") if key_of(a["config"]) in self.costs]

    def _ahead(self, config: Mapping[str, Any], of: Mapping[str, Any]) -> list[float]:
        return [
            b - a for a, b in zip(self.costs[key_of(config)], self.costs[key_of(of)], strict=True)
        ]

    def speedup(self, config: Mapping[str, Any]) -> float:
        return math.exp(robust_mean(self._ahead(config, {}))[0])

    def error(self, config: Mapping[str, Any]) -> float:
        """Standard error of the log of the speed-up."""
        return robust_mean(self._ahead(config, {}))[1]

    def regret(self, config: Mapping[str, Any]) -> float:
        return 0.0 - math.expm1(robust_mean(self._ahead(config, self.fastest))[0])

    def tpe_as_far_s(self, answer: Mapping[str, Any]) -> float | None:
        """Seconds after which plain TPE's best trial stayed within 1 % of this answer; None: never,
        or it was not scored.
        """
        for other in sorted(self.answers, key=lambda a: -a["minutes"]):
            if (
                other["method"] == "tpe"
                and other["minutes"] >= answer["minutes"]
                and all(key_of(c) in self.costs for _, c in other["incumbents"])
            ):
                reached: float | None = None
                for at_s, config in other["incumbents"]:
                    near = robust_mean(self._ahead(config, answer["config"]))[0] > -0.01
                    reached = (at_s if reached is None else reached) if near else None
                return reached
        return None
