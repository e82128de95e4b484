"""`python -m tests.models [NAME …] [--mutant M] [--fast]`: searches models and says what was found.

Without names: every model within its wide bounds, and each mutant; the exit status is 1 if anything surprises. With a name and a
mutant: the shortest trace to the rule that this mutant breaks.
"""

import argparse
import sys
import textwrap

from tests.models.catalogue import MODELS, verdict, verdicts


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *MODELS], metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--mutant", default="", help="a guard to take away; prints the trace")
    parser.add_argument("--fast", action="store_true", help="the bounds of the normal tests")
    parser.add_argument("--list", action="store_true", help="names the models and their mutants")
    asked = parser.parse_args()
    names = asked.names or list(MODELS)
    if asked.list:
        return catalogue(names)
    if asked.mutant:
        return replay(names, asked.mutant)
    surprises = [problem for name in names for problem in report(name, wide=not asked.fast)]
    for problem in surprises:
        print(f"\nSURPRISE: {problem}")
    print(f"\n{len(names)} models: " + (f"{len(surprises)} surprises" if surprises else "as expected"))
    return 1 if surprises else 0


def catalogue(names: list[str]) -> int:
    """What there is."""
    for name in names:
        print(f"{name}: {MODELS[name].about}")
        for mutant, guard in MODELS[name].mutants.items():
            print(f"    {mutant:26} {guard}")
    return 0


def replay(names: list[str], mutant: str) -> int:
    """The trace of one mutant."""
    owners = [name for name in names if mutant in MODELS[name].mutants]
    if not owners:
        print(f"no mutant {mutant!r} in {', '.join(names)}; --list names them")
        return 2
    for name in owners:
        found = verdict(MODELS[name], mutant)
        print(f"{name} without the guard: {MODELS[name].mutants[mutant]}\n{found.result.violation or found.wrong}")
        if found.wrong:
            return 1
    return 0


def report(name: str, *, wide: bool) -> list[str]:
    """Prints a line for the protocol and one for its mutants; what surprises."""
    surprises = []
    caught, seconds = 0, 0.0
    for found in verdicts(MODELS[name], wide=wide):
        result = found.result
        if found.wrong:
            surprises.append(found.wrong)
        if found.mutant:
            caught += not found.wrong
            seconds += result.seconds
            continue
        word = "SURPRISE" if found.wrong else "holds"
        print(
            f"{name:9} {result.states:>9,} states  depth {result.depth:>3}  {result.seconds:>6.1f} s  {word}",
            end="  ",
            flush=True,
        )
    print(f"{caught} of {len(MODELS[name].mutants)} mutants caught in {seconds:.1f} s", flush=True)
    return [textwrap.dedent(problem) for problem in surprises]


if __name__ == "__main__":
    sys.exit(main())
