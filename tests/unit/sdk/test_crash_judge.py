"""What the crash kit calls green: each rule, with the run that breaks it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from runway_sdk.testing import CATALOGUE
from runway_sdk.testing.crash import CrashError, _asked, _filled, name_of
from runway_sdk.testing.judge import AttemptFacts, EffectFacts, Judgement, RunFacts, Try, alike, judge
from runway_sdk.testing.scorecard import Row, Scorecard
from typer.testing import CliRunner

from libs.cli.main import app
from tests.system.crash_flows import buying

pytestmark = pytest.mark.requirement("ux.dev")
DONE = EffectFacts("s", "a", "t", "succeeded", "non_replayable", "d1", (Try("01", "succeeded", 2.0),))
FIRST = AttemptFacts("s", "01", "succeeded", "w1", 1.0)
GOOD = RunFacts("r", "l", 1.0, True, "succeeded", 7, effects=(DONE,), attempts=(FIRST,), observed="1")
LOST = (replace(FIRST, state="lost"), AttemptFacts("s", "02", "succeeded", "w2", 5.0))


def changed(effect: dict[str, Any] | None = None, **facts: Any) -> RunFacts:
    return replace(GOOD, **({"effects": (replace(DONE, **effect),)} if effect else {}), **facts)


def test_the_same_again_is_green_also_where_a_look_up_found_it() -> None:
    assert judge(GOOD, GOOD, GOOD) == Judgement("green", [], [])
    assert judge(GOOD, GOOD, changed({"state": "observed"})).verdict == "green"
    voided = (Try("01", "absent", 2.0), Try("02", "succeeded", 6.0))
    assert judge(GOOD, GOOD, changed({"tries": voided}, attempts=LOST)).verdict == "green"


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (changed(outcome="failed"), "outcome differs"),
        (changed(failure="ValueError"), "outcome differs"),
        (changed(result=8), "result differs: 7 undisturbed, 8 here"),
        (changed(observed="2"), "what is observed outside differs"),
        (changed(settled=False), "not settled"),
        (changed(trouble=("observe failed: x",)), "observe failed"),
        (changed(effects=()), "s/a (t) is missing"),
        (changed(effects=(DONE, replace(DONE, slot="b"))), "s/b (t) is one too many"),
        (changed({"state": "failed"}), "is succeeded undisturbed, failed here"),
        (changed({"state": "requested"}), "is left requested"),
        (changed({"tries": DONE.tries * 2}), "may have been sent 2 times"),
        (changed({"tries": (*DONE.tries, Try("01", "unknown", 2.0))}), "may have been sent 2 times"),
        (changed({"tries": DONE.tries * 2, "replay_class": "reconcilable"}), "may have been sent 2 times"),
        (changed({"tries": DONE.tries * 2, "replay_class": "idempotent"}), "was done more than once"),
        (changed({"tries": (Try("01", "succeeded", 6.0),)}, attempts=LOST), "for an attempt that another had followed"),
    ],
)
def test_whatever_a_crash_changed_is_red_with_its_reason(run: RunFacts, reason: str) -> None:
    judgement = judge(GOOD, GOOD, run)
    assert judgement.verdict == "red"
    assert reason in "\n".join(judgement.reasons)


def test_a_zombies_report_that_was_taken_is_red() -> None:
    taken = changed(attempts=(FIRST, AttemptFacts("s", "02", "lost", "w2", 5.0)))
    assert judge(GOOD, GOOD, taken, zombie="w1").verdict == "red"
    assert judge(GOOD, GOOD, changed(attempts=LOST), zombie="w1").verdict == "green"


def test_what_a_person_owns_is_said_and_hides_no_double_effect() -> None:
    open_ = changed({"state": "needs_reconciliation", "tries": (Try("01", "unknown", 2.0),)}, settled=False, outcome="")
    assert judge(GOOD, GOOD, open_).verdict == "needs a person"
    assert judge(GOOD, GOOD, open_, allow_unknown=True).verdict == "green"
    twice = changed({"state": "needs_reconciliation", "tries": (Try("01", "unknown", 2.0),) * 2}, settled=False)
    assert judge(GOOD, GOOD, twice, allow_unknown=True).verdict == "red"


def test_only_what_two_undisturbed_runs_agree_in_is_a_measure() -> None:
    assert alike(GOOD, GOOD) == []
    assert "differ in result: 7 and 8" in alike(GOOD, changed(result=8))[0]
    assert "differ in effects" in alike(GOOD, changed(effects=()))[0]
    assert "is needs_reconciliation" in alike(GOOD, changed({"state": "needs_reconciliation"}))[0]
    assert "not settled" in alike(changed(settled=False), GOOD)[0]
    other = changed({"digest": "d2"})
    assert "other arguments" in judge(GOOD, GOOD, other).notes[0]
    assert judge(GOOD, other, changed({"digest": "d3"})).notes == []


def card(*judgements: Judgement, unstable: tuple[str, ...] = ()) -> Scorecard:
    rows = [Row(f"b{n}", found, GOOD, struck=found.verdict != "not reached") for n, found in enumerate(judgements)]
    return Scorecard("m:f", (GOOD, GOOD), rows, unstable)


def test_a_card_is_green_only_where_something_was_reached_and_all_of_it_is() -> None:
    green, missed, red = Judgement("green"), Judgement("not reached"), Judgement("red", ["a < b \x01"])
    assert card(green, missed).green
    assert not card(missed).green
    assert not card().green
    assert not card(green, red).green
    assert not card(green, Judgement("needs a person", ["x"])).green
    assert not card(green, unstable=("two runs differ",)).green
    suite = ElementTree.fromstring(card(green, missed, red).junit())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "1")
    assert "a < b ?" in ElementTree.tostring(suite, encoding="unicode").replace("&lt;", "<")
    assert json.loads(card(green).json())["green"] is True


def test_what_is_asked_is_checked_before_anything_starts() -> None:
    assert _asked(["after_call#2"], "") == [("after_call", 2)]
    assert "after_grant" not in [name for name, _ in _asked([], "order")]
    for boundaries, step in ((["nosuch"], ""), (["after_call#0"], ""), (["after_call#x"], ""), (["after_grant"], "order")):
        with pytest.raises(CrashError):
            _asked(boundaries, step)


def test_every_boundary_is_listed_and_in_the_handbook() -> None:
    listed = CliRunner().invoke(app, ["crash", "--list"])
    page = (Path(__file__).resolve().parents[3] / "deploy/handbook/crash-kit.md").read_text()
    for name, boundary in CATALOGUE.items():
        assert f"{name} " in listed.stdout
        assert boundary.text in listed.stdout
        assert f"| `{name}` |" in page


@pytest.mark.parametrize(
    "words", [[], ["nosuch"], ["--at", "nosuch", "m:f"], ["m:f", "extra"], ["tests.system.crash_flows:dice"]]
)
def test_wrong_usage_starts_nothing(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["crash", *words]).exit_code == 2


def test_inputs_are_labelled_and_workflows_found() -> None:
    assert _filled({"a": ["x-{run}", 1]}, "l") == {"a": ["x-l", 1]}
    assert _filled(lambda label: label * 2, "l") == "ll"
    assert name_of(buying) == "tests.system.crash_flows:buying"
    with pytest.raises(CrashError, match="MODULE:NAME"):
        name_of(replace(buying))
