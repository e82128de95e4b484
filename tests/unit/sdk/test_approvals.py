"""What the SDK signs, digests and asks is what the services check: two writings of one contract, and the file that keeps a key."""

import os
import stat
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from runway.launch.v1 import approval_service_pb2 as pb
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway_sdk import ApproverKey, RunwayError, StepFailed
from runway_sdk.approvals import digest_of, key_path, statement
from runway_sdk.asking import MOST_BYTES, approved, ask_for_call
from runway_sdk.errors import ApprovalRequired
from runway_sdk.values import from_value, to_value
from runway_sdk.waiting import StepWaits, Yielding

from libs.fence import certificates
from libs.kernel.ids import digest
from libs.rpc.values import plain_value
from services.gateway.domain.arguments import canonical

pytestmark = pytest.mark.requirement("fx.approval")
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
DETAIL = {"slot": "pay", "tool": "git.push", "digest": "ab", "version": "3", "hold_micros": "7"}


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**47), TEXT, TEXT, TEXT, st.booleans(), st.booleans())
def test_both_sides_write_one_statement(raw: bytes, number: int, slot: str, who: str, why: str, yes: bool, glass: bool) -> None:
    subject = certificates.Subject(UUID(int=1), UUID(int=2), "step", slot, "tool", raw, "p" * 64, number, number, number)
    expires = Timestamp()
    expires.FromMilliseconds(number)
    shown = pb.Approval(
        approval_id=str(UUID(int=1)),
        run_id=str(UUID(int=2)),
        step_key="step",
        slot=slot,
        tool="tool",
        digest=raw.hex(),
        policy="p" * 64,
        proposal_version=number,
        hold_micros=number,
        expires_at=expires,
    )
    facts = {"approve": yes, "approver": who, "reason": why, "break_glass": glass}
    assert statement(shown, **facts) == certificates.statement(subject, **facts)  # type: ignore[arg-type]


@given(JSON)
def test_both_sides_take_one_digest(data: Any) -> None:
    try:
        value = to_value(data)
        wanted = digest(canonical(plain_value(value))).hex()
    except RunwayError:
        return
    assert digest_of(value) == wanted


def test_a_key_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, path = ApproverKey.generate(), tmp_path / "deep" / "approver.key"
    key.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ApproverKey.read(path).public == key.public
    assert certificates.key_name(key.public) == key.key_id
    with pytest.raises(FileExistsError):
        ApproverKey.generate().write(path)
    for mode in (0o640, 0o604):
        path.chmod(mode)
        with pytest.raises(RunwayError, match="may be read by others"):
            ApproverKey.read(path)
    secret = path.read_text().splitlines()[1]
    assert secret not in repr(key) + str(vars(key))
    monkeypatch.delenv("RUNWAY_APPROVER_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert key_path() == tmp_path / "runway" / "approver.key"
    monkeypatch.setenv("RUNWAY_APPROVER_KEY", os.fspath(path))
    assert key_path() == path


def told(state: str = "done", **value: Any) -> dict[str, Any]:
    return {"kind": "approval", "state": state, "value": value, "at_ms": 5, "by": "rita"}


def test_each_proposal_is_asked_about_under_a_slot_of_its_own_and_again_where_it_was_answered() -> None:
    needed = ApprovalRequired("no", detail=DETAIL)
    waits = StepWaits({})
    with pytest.raises(Yielding):
        ask_for_call(waits, needed, to_value({"a": 1}))
    (item,) = waits.yielded().commands
    assert (item.slot, item.type) == ("approval 3.0 pay", wk.COMMAND_TYPE_APPROVAL)
    said = {**DETAIL, "version": 3, "hold_micros": 7, "content": {"a": 1}}
    assert from_value(item.payload) == said
    again = StepWaits({"approval 3.0 pay": told()})
    with pytest.raises(Yielding):
        ask_for_call(again, needed, to_value({"a": 1}))
    assert again.yielded().commands[0].slot == "approval 3.1 pay"
    refused = StepWaits({"approval 3.0 pay": told("refused")})
    with pytest.raises(StepFailed):
        ask_for_call(refused, needed, to_value({"a": 1}))
    long = ApprovalRequired("no", detail={**DETAIL, "slot": "x" * 200})
    with pytest.raises(Yielding):
        ask_for_call(waits, long, to_value({}))
    assert max(len(one.slot) for one in waits.yielded().commands) <= 200
    with pytest.raises(StepFailed) as large:
        ask_for_call(waits, needed, to_value("x" * MOST_BYTES))
    assert large.value.failure_class == "validation"


def test_what_was_allowed_is_what_was_shown() -> None:
    content = {"version": "1.2"}
    good = told(state="approved", digest=digest_of(to_value(content)), approval_id="i", approvers=["rita"], break_glass=False)
    good["state"], good["value"]["state"] = "done", "approved"

    def ask(waits: StepWaits, shown: Any) -> Any:
        return approved(waits, "go", "Go?", shown, need=1, eligible=(), expires_s=0)

    assert ask(StepWaits({"go": good}), content).approvers == ("rita",)
    with pytest.raises(StepFailed) as other:
        ask(StepWaits({"go": good}), {"version": "1.3"})
    assert (other.value.failure_class, other.value.type) == ("policy", "APPROVAL_STALE")
    stale = {**good, "value": {**good["value"], "state": "stale"}}
    with pytest.raises(StepFailed):
        ask(StepWaits({"go": stale}), content)
