"""`python -m tests.simulation --seed N` replays a seed and prints what happened. See --help for the rest."""

import argparse
import json
import sys
from pathlib import Path

from tests.simulation.days import DAYS
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import Size, Verdict
from tests.simulation.soak import hunt, judge_mutants, soak
from tests.simulation.stage import fixed_hashing, stage


def main() -> int:
    """Runs what was asked; 1 where an invariant was broken, or a mutant was not noticed."""
    asked = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    asked.add_argument("--seed", type=int, default=1, help="the seed, or the first one")
    asked.add_argument("--mutant", default="", choices=["", *MUTANTS], help="with a guard taken out")
    asked.add_argument("--day", default="", choices=["", *DAYS], help="a directed day of the seed instead of faults by chance")
    asked.add_argument(
        "--mutants", action="store_true", help="every mutant (or --mutant) on the day made for it, and the days without"
    )
    asked.add_argument("--torment", type=float, default=Size().torment_s, help="virtual seconds of faults")
    asked.add_argument("--runs", type=int, default=Size().runs)
    asked.add_argument("--quiet", action="store_true", help="the verdict without the history")
    asked.add_argument("--soak", type=float, default=0, help="seeds for so many real seconds, with a report")
    asked.add_argument("--report", type=Path, default=Path("build/soak"))
    asked.add_argument("--hunt", type=int, default=0, help="so many seeds at most for each mutant, until one notices it")
    asked.add_argument("--jobs", nargs="+", default=[], metavar="SEED[:MUTANT][@DAY]", help="verdicts as lines of JSON")
    options = asked.parse_args()
    fixed_hashing()
    size = Size(options.torment, options.runs)
    with stage() as found:
        if options.mutants:
            return judge_mutants(found, options.seed, [options.mutant] if options.mutant else list(MUTANTS))
        if options.soak:
            return soak(found, size, options.seed, options.soak, options.report)
        if options.hunt:
            return hunt(found, size, options.seed, options.hunt, [options.mutant] if options.mutant else list(MUTANTS))
        if options.jobs:
            for job in options.jobs:
                plain, _, day = job.partition("@")
                seed, _, mutant = plain.partition(":")
                print(json.dumps(found.run(int(seed), size, mutant=mutant, day=day).plain()), flush=True)
            return 0
        verdict = found.run(options.seed, size, mutant=options.mutant, day=options.day, echo=not options.quiet)
    return _tell(verdict)


def _tell(verdict: Verdict) -> int:
    plain = verdict.plain()
    del plain["tail"]
    for name, value in plain.items():
        print(f"{name}: {value}")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
