"""How much of the possible speed-up does the tool find? Regret on real jobs, compared with other
methods at equal wall time.

    python benchmarks/regret/run.py best JOB [--minutes 60]
                           the best known, by a search independent of the tool
    python benchmarks/regret/run.py climb JOB [--minutes 15]
                           what a single further change to the fastest scored one would gain
    python benchmarks/regret/run.py answer JOB --method tpe --minutes 3 10 30
                           the tool, or one of the rivals
    python benchmarks/regret/run.py loadtune JOB
                           the answer of loadtune 0.3, on jobs that it can take (loadtune_jobs.py)
    python benchmarks/regret/run.py expert JOB
                           what an engineer would set (experts.py)
    python benchmarks/regret/run.py score JOB [--rounds 6] [--incumbents]
                           all answers again, in fresh processes in turns
    python benchmarks/regret/run.py page
                           writes README.md's tables

Measurements are written to results/<job>.jsonl before they are used: the same command resumes. JOB
is a file of jobs/, or `digits`, the example. Run nothing else on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATHS = [str(ROOT), str(ROOT / "trials"), str(ROOT / "search_spaces")]
sys.path[:0] = PATHS
# for the tool's own command
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from jobs_table import LOADTUNE_JOBS, RIVALS, scripts  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    best, climb = commands.add_parser("best"), commands.add_parser("climb")
    for command, minutes in ((best, 60.0), (climb, 15.0)):
        command.add_argument(
            "--minutes",
            type=float,
            default=minutes,
            help="of the search, over all processes that worked on it",
        )
    answer = commands.add_parser("answer")
    answer.add_argument("--method", required=True, choices=("ours", *RIVALS))
    answer.add_argument("--minutes", type=float, nargs="+", required=True)
    answer.add_argument("--seed", type=int, default=0)
    answer.add_argument(
        "--again",
        action="store_true",
        help="ours: even if there is an answer; the earlier run is moved aside",
    )
    score = commands.add_parser("score")
    score.add_argument("--rounds", type=int, default=6)
    score.add_argument(
        "--incumbents", action="store_true", help="also what TPE would have answered on its way"
    )
    expert = commands.add_parser("expert")
    for command in (best, climb, answer, expert, score):
        command.add_argument("job", choices=sorted(scripts()))
    commands.add_parser("loadtune").add_argument("job", choices=LOADTUNE_JOBS)
    commands.add_parser("page")
    options = parser.parse_args()
    if options.what == "page":
        from regret_page import write_page

        print(write_page())
        return
    if options.what == "loadtune":
        from methods import loadtune

        print(loadtune(options.job))
        return
    if options.what == "answer" and options.method == "ours":
        from methods import ours

        for minutes in sorted(options.minutes):
            print(ours(options.job, minutes, options.seed, options.again))
        return
    from processes import Processes

    with Processes(options.job) as processes:
        act(processes, options)


def act(processes, options) -> None:  # type: ignore[no-untyped-def]
    """The actions that need fresh processes of the job."""
    from best import climb_on, search_best
    from experts import expert
    from methods import rival
    from score import score

    if options.what == "best":
        print(search_best(processes, options.minutes))
    elif options.what == "climb":
        print(climb_on(processes, options.minutes))
    elif options.what == "expert":
        print(expert(processes))
    elif options.what == "score":
        found = score(processes, options.rounds, options.incumbents)
        print(f"{len(found['configs'])} configurations, {len(found['log_costs'][0])} rounds")
    else:
        for minutes in sorted(options.minutes):
            print(rival(processes, options.method, minutes, options.seed))


if __name__ == "__main__":
    main()
