"""A few seeds of the simulation, one of them twice, and directed days with and without the guard that each aims at.

All in one child process with hashes of its own. `make soak` runs as many seeds as you like, `make mutants` every mutant.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.days import DAYS
from tests.simulation.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (36, 14, 24)
FEW = (
    "gate_lock",
    "raise_before_regrant",
    "settle_window",
    "deposed_commit",
    "spawn_lock",
    "event_lock",
    "loser_in_doubt",
    "capacity_told",
    "approval_maximum",
    "hold_settles",
)
"""Guards taken out here; the others are for `make mutants`."""
JOBS = {name: (f"1:{name}@{MUTANTS[name].day}", f"1@{MUTANTS[name].day}") for name in FEW}
"""Guard → its day without it, and with it."""
PLAYED = {
    ("events told", "timers passed", "capacity told"): 8,
    ("paused",): 2,
    ("raises", "revocations"): 3,
    ("approved by a person", "asked back", "questions answered"): 4,
    ("holds that all act on",): 2,
}
"""What the seeds play of the life of runs, at the least: another commit is another history, so of each sort about half of what was seen."""
SIZE = ("--torment", "10", "--runs", "6")
LIMIT_S = 400
pytestmark = pytest.mark.timeout(LIMIT_S)


@pytest.fixture(scope="module")
def verdicts() -> Mapping[str, Any]:
    """Verdicts by job; the second run of a seed is `again`."""
    jobs = [*(job for pair in JOBS.values() for job in pair), *(str(seed) for seed in SEEDS), str(SEEDS[0])]
    command = [sys.executable, "-m", "tests.simulation", *SIZE, "--jobs", *jobs]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(jobs), f"{len(lines)} verdicts for {len(jobs)} jobs:\n{done.stderr[-4000:]}"
    found = [json.loads(line) for line in lines]
    return dict(zip(jobs[:-1], found, strict=False)) | {"again": found[-1]}


@pytest.mark.requirement("attempt.fenced")
@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_bad_day_breaks_nothing(verdicts: Mapping[str, Any], seed: int) -> None:
    verdict = verdicts[str(seed)]
    replay = f"replay: python -m tests.simulation {' '.join(SIZE)} --seed {seed}"
    assert not verdict["violations"], "\n".join([*verdict["violations"], replay])
    assert sum(verdict["outcomes"].values()) >= 6, replay


def test_the_days_were_bad_and_work_was_done(verdicts: Mapping[str, Any]) -> None:
    days = [verdicts[str(seed)] for seed in SEEDS]
    assert sum(day["outcomes"].get("succeeded", 0) for day in days) >= 5
    assert sum(day["counts"]["provider effects"] for day in days) >= 20
    assert sum(count for day in days for name, count in day["counts"].items() if name.startswith("fault ")) >= 10
    assert sum(day["counts"]["lock waits"] for day in days) >= 10
    assert sum(sum(day["outcomes"].values()) for day in days) >= 3 * 6 + 8, "runs had children"
    for kinds, least in PLAYED.items():
        assert sum(day["counts"][kind] for day in days for kind in kinds) >= least, kinds


def test_a_seed_is_a_history(verdicts: Mapping[str, Any]) -> None:
    first, again = verdicts[str(SEEDS[0])], verdicts["again"]
    assert (first["digest"], first["events"]) == (again["digest"], again["events"]), _first_difference(first, again)
    assert first["digest"] != verdicts[str(SEEDS[1])]["digest"]


def _first_difference(first: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    pairs = zip(first["tail"], again["tail"], strict=False)
    return next((f"{one!r} and then {other!r}" for one, other in pairs if one != other), "before the last lines")


@pytest.mark.requirement("attempt.fenced")
@pytest.mark.parametrize("name", FEW)
def test_a_guard_that_is_missing_is_noticed_on_its_day(verdicts: Mapping[str, Any], name: str) -> None:
    without, with_it = (verdicts[job] for job in JOBS[name])
    assert any(MUTANTS[name].reason in problem for problem in without["violations"]), without["violations"]
    assert not with_it["violations"], with_it["violations"]
    assert sum(with_it["outcomes"].values()) >= 1


def test_every_mutant_has_a_day_and_a_reason_and_every_day_a_mutant() -> None:
    assert {mutant.day for mutant in MUTANTS.values()} == set(DAYS)
    assert all(mutant.what and mutant.reason for mutant in MUTANTS.values())
