"""Seeds for as long as you like, with a report; and mutants, each until a seed notices it.

A seed that fails is printed with the one command that replays it, and its last events are kept. Can go wrong: a soak in which
nothing was done. The report counts work and faults.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.mutants import MUTANTS
from tests.simulation.run import Size, Verdict
from tests.simulation.stage import Stage


def command(verdict: Verdict, size: Size, mutant: str = "") -> str:
    """What replays a seed."""
    plain = Size()
    words = ["python -m tests.simulation", f"--seed {verdict.seed}"]
    if size.torment_s != plain.torment_s:
        words.append(f"--torment {size.torment_s:g}")
    if size.runs != plain.runs:
        words.append(f"--runs {size.runs}")
    return " ".join([*words, f"--mutant {mutant}"] if mutant else words)


def soak(stage: Stage, size: Size, first: int, seconds: float, folder: Path) -> int:
    """Runs seeds from `first` on until the time has passed; 1 where one failed."""
    folder.mkdir(parents=True, exist_ok=True)
    began, done, failed = time.monotonic(), 0, []
    outcomes: dict[str, int] = {}
    counts: dict[str, int] = {}
    virtual_s = 0.0
    while time.monotonic() - began < seconds:
        verdict = stage.run(first + done, size)
        done += 1
        virtual_s += verdict.virtual_s
        for total, part in ((outcomes, verdict.outcomes), (counts, verdict.counts)):
            for name, count in part.items():
                total[name] = total.get(name, 0) + count
        if verdict.violations:
            failed.append(verdict)
            _keep(verdict, folder)
            print(f"seed {verdict.seed} fails: {verdict.violations[0]}\n    {command(verdict, size)}", flush=True)
        elif done % 10 == 0:
            print(f"{done} seeds, {virtual_s:.0f} virtual s, {time.monotonic() - began:.0f} s", flush=True)
    lines = [
        "# Simulation soak",
        "",
        f"{done} seeds from {first} on, {virtual_s:.0f} virtual seconds in {time.monotonic() - began:.0f} s; {len(failed)} failed.",
        "",
        *[f"- seed {one.seed}: {one.violations[0]}: `{command(one, size)}`" for one in failed],
        "",
        "| what | how often |",
        "| --- | --- |",
        *[f"| run {name} | {count} |" for name, count in sorted(outcomes.items())],
        *[f"| {name} | {count} |" for name, count in sorted(counts.items())],
        "",
    ]
    (folder / "simulation.md").write_text("\n".join(lines))
    print(f"{done} seeds, {len(failed)} failed; the report is {folder / 'simulation.md'}")
    return 1 if failed else 0


def _keep(verdict: Verdict, folder: Path) -> None:
    (folder / f"seed-{verdict.seed}.txt").write_text("\n".join([*verdict.violations, "", *verdict.tail, ""]))


def judge_mutants(stage: Stage, seed: int, names: Sequence[str]) -> int:
    """Each mutant on the day that is made for it, and each of these days with every guard in place; 1 where one says the wrong thing."""
    wrong = 0
    for day in dict.fromkeys(MUTANTS[name].day for name in names):
        verdict = stage.run(seed, Size(), day=day)
        wrong += bool(verdict.violations)
        print(
            f"{day}: {verdict.violations[0] if verdict.violations else 'green with its guards'} ({verdict.cpu_s:.1f} s)",
            flush=True,
        )
    for name in names:
        mutant = MUTANTS[name]
        verdict = stage.run(seed, Size(), mutant=name, day=mutant.day)
        found = next((one for one in verdict.violations if mutant.reason in one), "")
        wrong += not found
        print(f"{name} ({mutant.what}), {mutant.day}: {'red' if found else 'NOT NOTICED'} ({verdict.cpu_s:.1f} s)")
        print(
            f"    {found or verdict.violations}\n    python -m tests.simulation --seed {seed} --day {mutant.day} --mutant {name}",
            flush=True,
        )
    print(f"{len(names)} mutants, {wrong} wrong answers")
    return 1 if wrong else 0


def hunt(stage: Stage, size: Size, first: int, most: int, names: Sequence[str]) -> int:
    """For each mutant the first seed that notices it; 1 where one was never noticed."""
    missed = 0
    for name in names:
        for number in range(most):
            verdict = stage.run(first + number, size, mutant=name)
            if verdict.violations:
                print(f"{name} ({MUTANTS[name].what}): noticed by seed {verdict.seed}, {verdict.cpu_s:.1f} s of processor")
                print(f"    {verdict.violations[0]}\n    {command(verdict, size, name)}", flush=True)
                break
        else:
            missed += 1
            print(f"{name} ({MUTANTS[name].what}): not noticed by {most} seeds", flush=True)
    return 1 if missed else 0
