"""The crash kit on workflows that keep the rules and on workflows that break them; one installation, real processes."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from runway_sdk.testing import BOUNDARIES, Scorecard, Stack, crash_matrix, crash_test
from runway_sdk.testing.judge import judge

from tests.system.conftest import Counter
from tests.system.crash_flows import buying, counting, posting, rolling

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests.system.crash_flows"
pytestmark = pytest.mark.requirement("ux.dev")


def orders(counter: Counter, stack: Stack) -> Callable[[str], object]:
    """What the shop holds for a run, found by the label in the run's input."""

    async def seen(run_id: str) -> int:
        run = await stack.client.get(run_id)
        label = run.input.struct_value.fields["label"].string_value
        return counter.done(f"/order/{label}/") + counter.done(f"/direct/{label}")

    return seen


def verdicts(card: Scorecard) -> dict[str, str]:
    return {row.boundary: row.verdict for row in card.rows}


async def test_a_workflow_that_keeps_the_rules_is_green_whatever_dies(stack: Stack, counter: Counter) -> None:
    most = [*BOUNDARIES, "zombie_tool"]
    card = await crash_matrix(buying, {"label": "{run}"}, stack=stack, boundaries=most, observe=orders(counter, stack))
    assert verdicts(card) == dict.fromkeys(most, "green"), card.text()
    assert card.green
    assert card.references[0].observed == 2
    assert card.references[0].result == "{run}: [200, 200]"
    by_name = {row.boundary: row for row in card.rows}
    assert (by_name["after_call"].step, by_name["after_call"].slot) == ("order", "order-1")
    assert by_name["after_call"].facts.repeated == {}, "the worker outlives the gateway"
    assert by_name["before_completion"].facts.repeated == {"order": 2}
    assert [item.state for item in by_name["zombie_tool"].facts.attempts if item.step == "order"] == ["lost", "succeeded"]


async def test_each_time_and_a_chosen_step(stack: Stack, counter: Counter) -> None:
    options = {"stack": stack, "observe": orders(counter, stack)}
    card = await crash_matrix(f"{HERE}:buying", {"label": "{run}"}, boundaries=["during_step"], every=True, **options)
    assert [(row.boundary, row.step, row.verdict) for row in card.rows] == [
        ("during_step", "order", "green"),
        ("during_step#2", "thank", "green"),
    ], card.text()
    card = await crash_matrix(
        f"{HERE}:buying", {"label": "{run}"}, boundaries=["during_step", "before_tool"], step="thank", **options
    )
    assert [(row.step, row.verdict) for row in card.rows] == [("thank", "green"), ("", "not reached")], card.text()


async def test_an_effect_beside_the_gateway_is_seen_from_outside(stack: Stack, counter: Counter) -> None:
    card = await crash_matrix(
        posting,
        {"label": "{run}", "port": counter.port},
        stack=stack,
        boundaries=["during_step", "before_completion", "after_call"],
        observe=orders(counter, stack),
    )
    assert verdicts(card) == {"during_step": "green", "before_completion": "red", "after_call": "not reached"}, card.text()
    assert card.reasons == ["before_completion: what is observed outside differs: 1 undisturbed, 2 here"]
    with pytest.raises(AssertionError, match="NOT GREEN"):
        card.check()


async def test_a_result_that_chance_decides_is_no_measure(stack: Stack) -> None:
    card = await crash_matrix(rolling, {"label": "{run}"}, stack=stack, boundaries=["during_step"])
    assert not card.green
    assert card.rows == []
    assert "two undisturbed runs differ in result" in card.text()


async def test_a_result_that_a_crash_changes_is_red(stack: Stack) -> None:
    card = await crash_matrix(counting, {"label": "{run}"}, stack=stack, boundaries=["during_step"])
    assert card.reasons == ["during_step: result differs: 1 undisturbed, 2 here"]


async def test_what_only_a_person_can_say_is_said_and_may_be_allowed(stack: Stack, counter: Counter) -> None:
    card = await crash_matrix(f"{HERE}:mailing", {"label": "{run}"}, stack=stack, boundaries=["after_call"], allow_unknown=True)
    assert verdicts(card) == {"after_call": "green"}, card.text()
    (row,) = card.rows
    assert [effect.state for effect in row.facts.waits_for_a_person] == ["needs_reconciliation"]
    assert "no look-up can tell" in card.text()
    assert judge(*card.references, row.facts).verdict == "needs a person"


async def test_the_command_ends_a_ci_job_as_it_should(counter: Counter, tmp_path: Path) -> None:
    ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{counter.port}/done/direct/{{run}}').read())"
    options = [
        "--at",
        "before_completion",
        "--at",
        "after_call",
        "--output",
        "junit",
        "--observe",
        f'{sys.executable} -c "{ask}"',
    ]
    given = json.dumps({"label": "{run}", "port": counter.port})
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "libs.cli.main", "crash", *options, "--", f"{HERE}:posting", "--input", given],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    suite = ElementTree.fromstring(done.stdout)
    assert [case.get("name") for case in suite] == ["undisturbed", "before_completion", "after_call"]
    assert (suite.get("skipped"), suite.get("failures")) == ("1", "1")
    assert "not green: before_completion: what is observed outside differs: b'1' undisturbed, b'2' here" in done.stderr
    assert [found.name for found in tmp_path.glob("runway-crash-*/workers.log")], "a red card's logs are kept"


async def test_a_plain_test_function_needs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    card = await asyncio.to_thread(crash_test, rolling, {"label": "{run}"}, boundaries=["before_completion"], compare=len)
    assert (card.green, card.references[0].result) == (True, 8)
    assert not any(tmp_path.iterdir()), "the installation of a green card is not kept"
