"""Approvals on the wire: certificates for the gateway, at once and by the outbox, and what steps are told.

Implements `ports_approvals.ApprovalNotices` and `ApprovalPoint`. Can go wrong: a gateway that does not answer in time.
Nothing is then known, and the outbox goes on asking.
"""

import json
from collections.abc import Sequence
from uuid import UUID

from google.protobuf import json_format, struct_pb2
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2

from libs.fence.certificates import Certificate, Standing
from libs.kernel.ids import IdSource
from libs.kernel.refusal import Refusal
from libs.telemetry.traces import traceparent
from services.launch.clients.notices import RAISE
from services.launch.clients.points import Raises
from services.launch.domain.approvals import Answered, HeldAnswer
from services.launch.domain.facts import Notice

GATEWAY = "gateway"


def certificate_message(certificate: Certificate) -> fence_pb2.ApprovalCertificate:
    """A certificate on the wire."""
    subject = certificate.subject
    return fence_pb2.ApprovalCertificate(
        approval_id=subject.approval_id.bytes,
        run_id=subject.run_id.bytes,
        step_key=subject.step_key,
        slot=subject.slot,
        tool=subject.tool,
        digest=subject.digest,
        policy=subject.policy,
        proposal_version=subject.proposal_version,
        hold_micros=subject.hold_micros,
        expires_ms=subject.expires_ms,
        standing=fence_pb2.ApprovalStanding.ValueType(int(certificate.standing)),
        signatures=[
            fence_pb2.ApprovalSignature(
                public_key=one.public_key,
                signature=one.signature,
                approver=one.approver,
                break_glass=one.break_glass,
                reason=one.reason,
            )
            for one in certificate.signatures
        ],
        effect_class=subject.effect_class,
        total_micros=subject.total_micros,
    )


def _request(certificates: Sequence[Certificate]) -> fence_pb2.RaiseFencesRequest:
    return fence_pb2.RaiseFencesRequest(service=GATEWAY, approvals=[certificate_message(one) for one in certificates])


def held_answer(run_id: UUID, approval_id: UUID, answer: fence_pb2.ApprovalAnswer) -> HeldAnswer | None:
    """How an approval stands at the gateway; None: it was not judged."""
    if not answer.committed:
        return None
    return HeldAnswer(run_id, approval_id, Standing(int(answer.standing)), answer.consumed_ms, answer.problem)


def carried(payload: bytes, answer: bytes) -> HeldAnswer | None:
    """What the answer to a row of the outbox says of an approval; None where the row was none."""
    sent = fence_pb2.RaiseFencesRequest.FromString(payload).approvals
    if not sent:
        return None
    ids = UUID(bytes=sent[0].run_id), UUID(bytes=sent[0].approval_id)
    return held_answer(*ids, fence_pb2.ApprovalAnswer.FromString(answer))


class ApprovalNotices:
    """Builds them."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    def certificate(self, certificate: Certificate) -> Notice:
        """A raise at the gateway."""
        return Notice(GATEWAY, RAISE, certificate.subject.run_id, _request([certificate]).SerializeToString())

    def answered(self, answer: Answered, now_ms: int) -> Notice:
        """CommandAnswered."""
        result = json_format.Parse(json.dumps(answer.facts), struct_pb2.Value())
        fact = events_pb2.CommandAnswered(
            run_id=answer.run_id.bytes,
            step_key=answer.step_key,
            slot=answer.command_slot,
            kind=events_pb2.COMMAND_KIND_APPROVAL,
            refused=answer.refused,
            result=result.SerializeToString(deterministic=True),
            by=answer.by,
            at_ms=now_ms,
        )
        event = events_pb2.Event(
            event_id=self._ids.random128().bytes, at_ms=now_ms, traceparent=traceparent(), command_answered=fact
        )
        return Notice("readiness", "command_answered", answer.run_id, event.SerializeToString())


class GatewayApprovals:
    """Asks the gateway at once."""

    def __init__(self, peers: Raises) -> None:
        self._peers = peers

    async def hold(self, certificates: Sequence[Certificate], deadline_ms: int) -> list[HeldAnswer]:
        """How those stand that it judged within the deadline."""
        try:
            response = await self._peers.raise_fences(GATEWAY, _request(certificates), deadline_ms=deadline_ms)
        except Refusal:
            return []
        found = [
            held_answer(one.subject.run_id, one.subject.approval_id, answer)
            for one, answer in zip(certificates, response.approvals, strict=False)  # an older gateway answers none
        ]
        return [answer for answer in found if answer is not None]
