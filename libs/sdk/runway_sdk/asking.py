"""Asking people before something is done: by a step's own words, or because the gateway says that a call needs it.

Either way the attempt yields and costs nothing; a later one runs the step again and passes here. Can go wrong: a step that
asks for something else than it asked before. What was allowed is bound to its content, so it is refused, or asked anew.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, NoReturn

from google.protobuf import struct_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from runway_sdk.approvals import Approved, digest_of, facts_of
from runway_sdk.errors import ApprovalRequired, StepFailed
from runway_sdk.values import to_value
from runway_sdk.waiting import StepWaits

MOST_BYTES = 200_000
"""What people can be asked to look at: more than this belongs into an artifact, whose digest is asked about."""
_SLOT_CHARS = 200


def ask_for_call(waits: StepWaits, needed: ApprovalRequired, content: struct_pb2.Value) -> NoReturn:
    """Asks for the approval that a call was refused for want of. Each proposal is asked about under a slot of its own; where
    one was answered and the call still needs it (it expired meanwhile, for example), it is asked again."""
    facts, slot = needed.detail, needed.detail["slot"]
    for again in count():
        name = f"approval {facts['version']}.{again} {slot}"
        if len(name) > _SLOT_CHARS:
            name = f"approval {facts['version']}.{again} {digest_of(to_value(slot))}"
        if waits.told(name, "approval") is None:
            break
    said: dict[str, Any] = {
        "slot": slot,
        "tool": facts["tool"],
        "digest": facts["digest"],
        "version": int(facts["version"]),
        "hold_micros": int(facts["hold_micros"]),
    }
    said |= {name: facts[name] for name in ("effect_class", "policy") if name in facts}  # an older gateway says less
    if "total_micros" in facts:
        said["total_micros"] = int(facts["total_micros"])
    waits.ask(name, pb.COMMAND_TYPE_APPROVAL, _payload(said, content))


def approved(
    waits: StepWaits, slot: str, title: str, content: Any, *, need: int, eligible: Sequence[str], expires_s: float
) -> Approved:
    """What people said to a step's own question; until they did, the attempt ends here."""
    shown = to_value(content, "content")
    told = waits.told(slot, "approval")
    if told is None:
        said = {
            "slot": slot,
            "title": title,
            "need": need,
            "eligible": list(eligible),
            "expires_ms": int(expires_s * 1000),
        }
        waits.ask(slot, pb.COMMAND_TYPE_APPROVAL, _payload(said, shown))
    facts = facts_of(told)
    if facts.get("state") != "approved" or facts.get("digest") != digest_of(shown):
        text = f"slot {slot}: people were asked about other content than this; ask about it under a slot of its own"
        raise StepFailed(text, "policy", "APPROVAL_STALE")
    at = datetime.fromtimestamp(told["at_ms"] / 1000, UTC)
    return Approved(facts["approval_id"], tuple(facts["approvers"]), bool(facts["break_glass"]), at)


def _payload(said: dict[str, Any], content: struct_pb2.Value) -> struct_pb2.Value:
    if content.ByteSize() > MOST_BYTES:
        text = f"people cannot be asked about {content.ByteSize()} bytes; put the content into an artifact and name its digest"
        raise StepFailed(text, "validation", "APPROVAL_TOO_LARGE")
    payload = to_value(said, "approval")
    payload.struct_value.fields["content"].CopyFrom(content)
    return payload
