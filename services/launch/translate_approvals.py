"""Approvals between protobuf and launch's domain, both ways. Authoritative for the digest of what people are asked.

Can go wrong: a worker that shows people other content than it will send. Its digest is taken here, over the content that is
shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import rfc8785
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError
from runway.events.v1 import events_pb2
from runway.launch.v1 import approval_service_pb2 as pb

from libs.fence.rules import CLASSES
from libs.kernel.ids import digest, uuid_from_bytes, uuid_from_text
from libs.kernel.refusal import Refusal, invalid_field
from libs.rpc.identity import Caller
from libs.rpc.values import check_value, plain_value
from services.launch.domain.approvals import Approval, ApproverKey, Asked, DecisionFacts
from services.launch.translate import timestamp

MOST_TEXT = 200
MOST_LENGTH_MS = 30 * 24 * 3_600_000
_TITLE = 300


class _Unreadable(Exception):
    """What an attempt asks is nothing that people can be asked."""


def approver_of(caller: Caller) -> str:
    """Who decides: by the name of the key, so that two keys of one name are one approver."""
    return caller.name or caller.key_id


def asked(fact: events_pb2.CommandRecorded) -> Asked:
    """What an attempt asks. What cannot be read is told to the next attempt."""
    run_id = uuid_from_bytes(fact.run_id, "command_recorded.run_id")
    if not fact.slot or not fact.step_key:
        raise invalid_field("command_recorded", "lacks a step or a slot", "send what the scheduler sends")
    try:
        value = struct_pb2.Value.FromString(fact.payload)
        check_value(value, "payload")
        said = plain_value(value)
        if not isinstance(said, dict):
            raise _Unreadable("its payload is no object")
        return _read(fact, run_id, said, value.struct_value.fields["content"])
    except (DecodeError, Refusal, _Unreadable, rfc8785.CanonicalizationError) as error:
        text = error.message if isinstance(error, Refusal) else str(error)
        return Asked(run_id, fact.step_key, fact.slot, fact.slot, problem=text[:500] or "it cannot be read")


def _read(fact: events_pb2.CommandRecorded, run_id: UUID, said: Mapping[str, Any], content: struct_pb2.Value) -> Asked:
    shown = content.SerializeToString(deterministic=True)
    mine = digest(rfc8785.dumps(said.get("content")))
    tool = _text(said, "tool")
    slot = _text(said, "slot") or fact.slot
    if not slot.isprintable():
        raise _Unreadable("slot has characters that cannot be printed")
    title = _text(said, "title", _TITLE)
    if tool:
        if said.get("digest") != mine.hex():
            raise _Unreadable("digest is not that of the canonical content")
        version, hold = _number(said, "version", 1, 2**53), _number(said, "hold_micros", 0, 10**15)
        effect_class, policy = _text(said, "effect_class", 100), _text(said, "policy", 64)
        if effect_class != " ".join(sorted({*effect_class.split()} & {*CLASSES})):
            raise _Unreadable(f"effect_class must name classes, of {', '.join(CLASSES)}, in this order")
        return Asked(
            run_id=run_id,
            step_key=fact.step_key,
            command_slot=fact.slot,
            slot=slot,
            tool=tool,
            title=title,
            content=shown,
            digest=mine,
            proposal_version=version,
            hold_micros=hold,
            effect_class=effect_class,
            total_micros=_number(said, "total_micros", 0, 2**53) if "total_micros" in said else -1,
            policy=policy,
        )
    eligible = said.get("eligible") or []
    if not isinstance(eligible, list) or len(eligible) > 64 or not all(_name(one) for one in eligible):
        raise _Unreadable("eligible must be a list of at most 64 printable names")
    need = _number(said, "need", 1, 16)
    length_ms = _number(said, "expires_ms", 0, MOST_LENGTH_MS)
    names = tuple(sorted(set(eligible)))
    return Asked(run_id, fact.step_key, fact.slot, slot, "", title, shown, mine, 0, 0, need, names, length_ms)


def _name(one: object) -> bool:
    return isinstance(one, str) and 0 < len(one) <= MOST_TEXT and one.isprintable()


def _text(said: Mapping[str, Any], name: str, most: int = MOST_TEXT) -> str:
    text = said.get(name, "")
    if not isinstance(text, str) or "\0" in text or len(text) > most:
        raise _Unreadable(f"{name} must be text of at most {most} characters without NUL")
    return text


def _number(said: Mapping[str, Any], name: str, least: int, most: int) -> int:
    number = said.get(name, least)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise _Unreadable(f"{name} must be a whole number from {least} to {most}")
    return number


def consumed(fact: events_pb2.ApprovalConsumed) -> tuple[UUID, UUID, int]:
    """(run, approval, when) of an approval that was used."""
    run_id = uuid_from_bytes(fact.run_id, "approval_consumed.run_id")
    return run_id, uuid_from_bytes(fact.approval_id, "approval_consumed.approval_id"), fact.at_ms


def place(token: str) -> UUID | None:
    """A page token of approvals: the last one's id."""
    return uuid_from_text(token, "page_token") if token else None


def approval_message(approval: Approval, said: Sequence[DecisionFacts] = (), *, content: bool = False) -> pb.Approval:
    """An approval."""
    subject = approval.subject
    return pb.Approval(
        approval_id=str(subject.approval_id),
        run_id=str(subject.run_id),
        step_key=subject.step_key,
        slot=subject.slot,
        tool=subject.tool,
        title=approval.title,
        content=struct_pb2.Value.FromString(approval.content) if content and approval.content else None,
        digest=subject.digest.hex(),
        policy=subject.policy,
        proposal_version=subject.proposal_version,
        hold_micros=subject.hold_micros,
        need=approval.need,
        eligible=approval.eligible,
        state=pb.ApprovalState.ValueType(int(approval.state)),
        requested_at=timestamp(approval.requested_ms),
        expires_at=timestamp(subject.expires_ms),
        decided_at=timestamp(approval.decided_ms) if approval.decided_ms else None,
        consumed_at=timestamp(approval.consumed_ms) if approval.consumed_ms else None,
        requester=approval.requester,
        owner=approval.owner,
        decisions=[_decision(one) for one in said],
        workflow=approval.workflow,
        effective=bool(approval.effective_ms),
        reason=approval.reason,
        root_run_id=str(approval.root_run_id or subject.run_id),
        owners_above=approval.owners_above,
        effect_class=subject.effect_class,
        total_micros=subject.total_micros,
    )


def _decision(said: DecisionFacts) -> pb.ApprovalDecision:
    return pb.ApprovalDecision(
        approver=said.approver,
        decision=pb.DECISION_APPROVE if said.approve else pb.DECISION_REJECT,
        decided_at=timestamp(said.decided_ms),
        reason=said.reason,
        break_glass=said.break_glass,
        key_id=said.key_id,
    )


def key_message(key: ApproverKey) -> pb.ApproverKey:
    """A public key."""
    return pb.ApproverKey(
        key_id=key.key_id,
        public_key=key.public_key,
        approver=key.approver,
        created_at=timestamp(key.created_ms),
        revoked_at=timestamp(key.revoked_ms) if key.revoked_ms else None,
    )
