"""A few seeds of the simulation, one of them twice, and guards whose absence a seed must notice.

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

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (7, 5, 8)
MUTANTS = {"3:quiesced": "terminal with unresolved effects", "7:quiesced": "terminal with unresolved effects"}
"""Seed and guard taken out → what must be noticed."""
SIZE = ("--torment", "10", "--runs", "6")
LIMIT_S = 400
pytestmark = pytest.mark.xdist_group("simulation")


@pytest.fixture(scope="module")
def verdicts() -> Mapping[str, Any]:
    """Verdicts by job; the second run of a seed is `again`."""
    jobs = [*MUTANTS, *(str(seed) for seed in SEEDS), str(SEEDS[0])]
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
    assert sum(verdict["outcomes"].values()) == 6, replay


def test_the_days_were_bad_and_work_was_done(verdicts: Mapping[str, Any]) -> None:
    days = [verdicts[str(seed)] for seed in SEEDS]
    assert sum(day["outcomes"].get("succeeded", 0) for day in days) >= 5
    assert sum(day["counts"]["provider effects"] for day in days) >= 20
    assert sum(count for day in days for name, count in day["counts"].items() if name.startswith("fault ")) >= 10
    assert sum(day["counts"]["lock waits"] for day in days) >= 10


def test_a_seed_is_a_history(verdicts: Mapping[str, Any]) -> None:
    first, again = verdicts[str(SEEDS[0])], verdicts["again"]
    assert (first["digest"], first["events"]) == (again["digest"], again["events"]), _first_difference(first, again)
    assert first["digest"] != verdicts[str(SEEDS[1])]["digest"]


def _first_difference(first: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    pairs = zip(first["tail"], again["tail"], strict=False)
    return next((f"{one!r} and then {other!r}" for one, other in pairs if one != other), "before the last lines")


@pytest.mark.parametrize("job", MUTANTS)
def test_a_guard_that_is_missing_is_noticed(verdicts: Mapping[str, Any], job: str) -> None:
    assert any(MUTANTS[job] in problem for problem in verdicts[job]["violations"]), verdicts[job]["violations"]
