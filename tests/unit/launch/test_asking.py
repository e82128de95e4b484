"""What a step may ask people, and what is refused before anybody is asked: commands, rules of a version, rules of a grant."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runway.events.v1 import events_pb2 as ev
from runway.launch.v1 import workflow_pb2 as wf
from runway_sdk.approvals import digest_of
from runway_sdk.values import to_value

from libs.fence.rules import Call, Rule, governing, inherited, lifted_to, rule_text, rules_of, unsaid
from services.launch.domain.workflow import violations
from services.launch.translate_approvals import asked
from services.launch.translate_versions import canonical_spec, spec_of

pytestmark = pytest.mark.requirement("fx.approval")
RUN = UUID(int=5)
CONTENT = {"to": "everybody", "amount": 3}
GOOD = {
    "slot": "pay",
    "tool": "http.request",
    "digest": digest_of(to_value(CONTENT)),
    "version": 2,
    "hold_micros": 7,
    "content": CONTENT,
}


def command(payload: Any, slot: str = "approval 2.0 pay") -> ev.CommandRecorded:
    raw = payload if isinstance(payload, bytes) else to_value(payload).SerializeToString()
    return ev.CommandRecorded(run_id=RUN.bytes, step_key="publish", slot=slot, kind=ev.COMMAND_KIND_APPROVAL, payload=raw)


def test_a_call_is_asked_about_as_it_will_be_sent() -> None:
    found = asked(command(GOOD))
    assert (found.problem, found.tool, found.slot, found.command_slot) == ("", "http.request", "pay", "approval 2.0 pay")
    assert (found.digest.hex(), found.proposal_version, found.hold_micros) == (GOOD["digest"], 2, 7)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "00" * 32},
        {"digest": None},
        {"content": {"to": "everybody", "amount": 4}},
        {"version": 0},
        {"version": 1.5},
        {"version": True},
        {"hold_micros": -1},
        {"total_micros": -1},
        {"total_micros": "1"},
        {"effect_class": "dangerous"},
        {"effect_class": "pure idempotent"},
        {"slot": "a\nb"},
        {"slot": "x" * 201},
        {"title": 7},
        {"tool": "", "need": 17},
        {"tool": "", "need": 0},
        {"tool": "", "eligible": "rita"},
        {"tool": "", "eligible": [""]},
        {"tool": "", "eligible": ["a\nb"]},
        {"tool": "", "expires_ms": 10**12},
    ],
    ids=str,
)
def test_what_nobody_can_be_asked_is_told_to_the_step(change: dict[str, Any]) -> None:
    assert asked(command(GOOD | change)).problem


@pytest.mark.parametrize("raw", [b"\xff", to_value([1]).SerializeToString(), b""])
def test_what_cannot_be_read_is_told_to_the_step(raw: bytes) -> None:
    assert asked(command(raw)).problem


def spec(*rules: wf.ApprovalRule) -> list[str]:
    step = wf.StepSpec(key="act", tools=["git.push"], models=["small"], approvals=rules)
    made = canonical_spec(wf.WorkflowSpec(name="w", build="1", steps=[step]))
    return [field for field, _ in violations(spec_of(made))]


@pytest.mark.requirement("wf.validate")
def test_rules_that_cannot_be_kept_are_not_published() -> None:
    assert spec(wf.ApprovalRule(tools=["git.push", "model:small"]), wf.ApprovalRule(tools=["*"], need=2)) == []
    assert spec(wf.ApprovalRule(tools=["http.request"])) == ["spec.steps[0].approvals[0].tools[0]"]
    assert spec(wf.ApprovalRule(tools=["*"], need=2, eligible=["rita"])) == ["spec.steps[0].approvals[0].need"]
    assert spec(wf.ApprovalRule(tools=["*"], need=2, eligible=["reviewer"])) == []
    assert spec(wf.ApprovalRule(tools=["*"], eligible=["a\tb"])) == ["spec.steps[0].approvals[0].eligible[0]"]
    short = wf.ApprovalRule(tools=["*"])
    short.expires_in.FromMilliseconds(10)
    assert spec(short) == ["spec.steps[0].approvals[0].expires_in"]
    assert spec(wf.ApprovalRule(tools=["*"], above_micros=-1)) == ["spec.steps[0].approvals[0].above_micros"]
    assert spec(wf.ApprovalRule()) == ["spec.steps[0].approvals[0].tools"]
    assert spec(wf.ApprovalRule(effects=["non_replayable", "pure"], above_total_micros=5)) == []
    assert spec(wf.ApprovalRule(effects=["dangerous"])) == ["spec.steps[0].approvals[0].effects[0]"]
    assert spec(wf.ApprovalRule(tools=["@pure"])) == ["spec.steps[0].approvals[0].tools[0]"]
    assert spec(wf.ApprovalRule(tools=["*"], above_micros=1, above_total_micros=1)) == [
        "spec.steps[0].approvals[0].above_total_micros"
    ]


NAMES = st.sampled_from(["act", "send", "act.part"])
TOOLS = st.sampled_from(["git.push", "model:small", "a:b:c"])


@given(NAMES, st.integers(1, 16), st.integers(0, 10**15), TOOLS | st.just("*"))
def test_a_rule_comes_back_out_of_its_text(step: str, need: int, above: int, tool: str) -> None:
    text = rule_text(step, tool, need, above, "ab" * 32)
    (found,) = rules_of(["tool:git.push", text, "model:*"])
    assert found == Rule(step, need, above, "ab" * 32, tool)
    (down,) = rules_of(inherited([text], f"{step}[7]"))
    assert down == Rule(f"*{step}", need, above, "ab" * 32, tool)
    assert inherited([rule_text(down.step, tool, need, above, down.policy)], "whichever") == inherited([text], step)
    assert inherited([text], "another") == []


def test_the_rule_that_needs_most_governs() -> None:
    grant = [
        rule_text("act", "*", 1, 0, "aa"),
        rule_text("act", "git.push", 3, 1000, "aa"),
        rule_text("*", "git.push", 2, 0, "bb"),
        rule_text("other", "git.push", 9, 0, "aa"),
    ]

    def need(step: str, tool: str, hold: int) -> int:
        found = governing(grant, Call(step, tool, hold))
        return found.need if found else 0

    assert [need("act", "git.push", hold) for hold in (0, 1000, 1001)] == [2, 2, 3]
    assert [need("act[4]", "model:m", 0), need("third", "git.push", 0), need("third", "model:m", 0)] == [1, 2, 0]
    assert governing([], Call("act", "git.push")) is None


def test_a_class_is_named_whatever_the_step_declares() -> None:
    grant = [rule_text("act", "@non_replayable", 2, 0, "aa"), rule_text("act", "@pure", 1, 0, "aa")]
    found = {
        said: [rule.tool for rule in rules_of(grant) if rule.names(Call("act", "http.request", 0, said))]
        for said in ("pure", "idempotent", "idempotent non_replayable", "non_replayable pure")
    }
    assert found == {
        "pure": ["@pure"],
        "idempotent": [],
        "idempotent non_replayable": ["@non_replayable"],
        "non_replayable pure": ["@non_replayable", "@pure"],
    }
    assert unsaid(grant, Call("act", "http.request"), total=True) == "effect_class"
    assert unsaid(grant, Call("other", "http.request"), total=False) == ""


def test_an_approval_lifts_a_total_to_the_next_multiple_and_never_past_another_rules() -> None:
    grant = [rule_text("act", "*", 1, 0, "aa", 1_000), rule_text("act", "a", 1, 0, "aa", 4_500)]
    totals = (0, 1_000, 1_001, 2_000, 2_001, 4_200, 4_501)
    assert [lifted_to(grant, Call("act", "a", 0, "", total)) for total in totals] == [0, 0, 2_000, 2_000, 3_000, 4_500, 5_000]
    assert lifted_to(grant, Call("other", "a", 0, "", 10_000)) == 0
    assert [bool(governing(grant, Call("act", "b", 0, "", total))) for total in totals[:3]] == [False, False, True]
    assert unsaid(grant, Call("act", "b"), total=False) == "total_micros"


def test_whose_rule_governs_is_as_the_gateway_says() -> None:
    grant = [rule_text("act", "*", 3, 0, "aa", 10), rule_text("*up", "*", 2, 0, "bb", 20)]
    call = Call("act", "a", 0, "", 30)
    found = [governing(grant, call, policy) for policy in ("", "aa", "bb", "cc")]
    assert [rule and rule.policy for rule in found] == ["aa", "aa", "bb", "aa"]
