"""Protobuf ↔ scheduler's domain, both ways."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from google.protobuf import struct_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from runway.common.v1 import common_pb2
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.scheduler.v1 import scheduler_service_pb2 as people
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.kernel.epochs import StepFence
from libs.kernel.ids import NIL, digest, uuid_from_bytes, uuid_from_text
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.rpc.identity import Caller
from services.scheduler.app.beat_attempts import Beaten
from services.scheduler.app.claims import ClaimAsk, GrantedLease
from services.scheduler.app.complete_attempts import Completion
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import Acknowledgement, Command, Holder
from services.scheduler.domain.ending import IN_DOUBT
from services.scheduler.domain.lease import Beat
from services.scheduler.domain.resources import amounts
from services.scheduler.domain.ticket import POINT_BITS, Contract, End, Failure, Key, Successor, Ticket, Wanted

_YIELDS = frozenset({"drain", "wait", "approval", "input", ""})
_TEXT = 2_000
_STATES = {
    0: people.ATTEMPT_STATE_LEASED,
    1: people.ATTEMPT_STATE_SUCCEEDED,
    2: people.ATTEMPT_STATE_FAILED,
    3: people.ATTEMPT_STATE_YIELDED,
    4: people.ATTEMPT_STATE_TIMED_OUT,
    5: people.ATTEMPT_STATE_CANCELLED,
    6: people.ATTEMPT_STATE_LOST,
    7: people.ATTEMPT_STATE_UNCERTAIN,
}


@lru_cache(maxsize=10_000)
def timestamp(at_ms: int) -> Timestamp | None:
    """A point in time; None for zero. A run's deadline and a batch's expiry come again and again: copy, never change."""
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000) if at_ms else None


@lru_cache(maxsize=1_000)
def duration(ms: int) -> Duration | None:
    """A length of time; None for zero. The same few come again and again: copy, never change."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000) if ms else None


def ms_of(length: Duration) -> int:
    """Milliseconds."""
    return length.seconds * 1000 + length.nanos // 1_000_000


def ticket(event: events_pb2.Event) -> Ticket:
    """StepReady."""
    said = event.step_ready
    contract = said.contract
    for name in (*contract.tools, *contract.models, *contract.requires, *contract.resources):
        if "\n" in name:
            raise invalid_field("step_ready.contract", "has a line break in a name", "send names without line breaks")
    if not said.step_key or said.ticket_sequence < 1 or not said.tenant:
        raise invalid_field("step_ready", "lacks a step, a sequence or a tenant", "send what readiness sends")
    if not 0 <= said.run_class < 2**15:
        raise invalid_field("step_ready.run_class", "is no class", "send what readiness sends")
    return Ticket(
        run_id=uuid_from_bytes(said.run_id, "step_ready.run_id"),
        step_key=said.step_key,
        ticket_sequence=said.ticket_sequence,
        tenant=said.tenant,
        project=said.project,
        run_class=said.run_class,
        priority=said.priority,
        deadline_ms=said.deadline_ms,
        contract=contract_of(contract),
        input=said.input,
        workflow_digest=said.workflow_digest,
        attempt_number=said.attempt_number,
        epoch=said.epoch,
        traceparent=event.traceparent,
        launched_by=said.launched_by,
        wanted=wanted_of(said.capacity) if said.HasField("capacity") else None,
    )


def wanted_of(said: events_pb2.CapacityWait) -> Wanted:
    """What a ticket waits for."""
    for name in (said.slot, said.call):
        if "\n" in name or "\0" in name or not name:
            raise invalid_field("step_ready.capacity", "lacks a name, or has a line break in one", "send what readiness sends")
    if said.calls < 1 or said.until_ms < 0:
        raise invalid_field("step_ready.capacity", "wants nothing, or until before all time", "send what readiness sends")
    return Wanted(said.slot, said.call, said.calls, said.until_ms)


def contract_of(said: events_pb2.StepContract) -> Contract:
    """What a step's attempts may do and need."""
    return Contract(
        handler=said.handler,
        timeout_ms=said.timeout_ms,
        lease_ttl_ms=said.lease_ttl_ms,
        tools=tuple(said.tools),
        models=tuple(said.models),
        requires=frozenset(said.requires),
        points=said.points & 3,
        resources=amounts(said.resources),
    )


def successors(said: events_pb2.StepReady) -> dict[str, tuple[Successor, ...]]:
    """Who follows whom, for this step and those after it; a step of which nothing is told is not named."""
    following: dict[str, tuple[Successor, ...]] = {}
    left = [(said.step_key, said.successors)]
    while left:
        step_key, told = left.pop()
        limit = told.input_limit_bytes
        following[step_key] = tuple(
            Successor(after.step_key, contract_of(after.contract), limit, told.whole) for after in told.steps
        )
        left += [(after.step_key, after.successors) for after in told.steps if after.HasField("successors")]
    return following


def revocation(said: events_pb2.StepRevoked) -> tuple[Key, int, str]:
    """StepRevoked: step, sequence, why."""
    return (uuid_from_bytes(said.run_id, "step_revoked.run_id"), said.step_key), said.ticket_sequence, said.reason[:_TEXT]


def acknowledgement(receiver: str, payload: bytes, answer: bytes) -> Acknowledgement:
    """A point's answer to the raise of one step."""
    step = fence_pb2.RaiseFencesRequest.FromString(payload).steps[0]
    said = fence_pb2.RaiseAnswer.FromString(answer)
    unresolved: dict[str, int] = {}
    for effect in said.unresolved:
        if effect.state in IN_DOUBT:
            unresolved[effect.slot] = max(effect.version, unresolved.get(effect.slot, 0))
    fence = StepFence(step.authority_epoch, step.lease_epoch, NIL)
    run_id = uuid_from_bytes(step.run_id, "steps.run_id")
    return Acknowledgement(run_id, step.step_key, fence, POINT_BITS[receiver], unresolved)


def name(text: str, field: str) -> str:
    """A name that can be stored beside others, a line each; refused here, where it spoils nobody else's batch."""
    if "\0" in text or "\n" in text:
        raise invalid_field(field, "holds a NUL character or a line break", "leave it out")
    return text


def clean(text: str, most: int) -> str:
    """Text for people, as much of it as can be stored: a failure is reported whatever its words are."""
    return text.replace("\0", "")[:most]


def claim(request: pb.ClaimAttemptsRequest, who: Asker, most_bytes: int = 2**62) -> ClaimAsk:
    """ClaimAttempts. `most_bytes`: what an answer may weigh where the worker does not ask for less."""
    free = amounts({name(what, "free"): amount for what, amount in request.free.items()})
    total = dict(free)
    for what, amount in request.resources.items():
        total[name(what, "resources")] = max(amount, total.get(what, 0))
    return ClaimAsk(
        claim_id=uuid_from_bytes(request.claim_id, "claim_id"),
        worker_id=name(request.worker_id, "worker_id"),
        who=who,
        handlers=frozenset(name(handler, "handlers") for handler in request.handlers),
        capabilities=frozenset(name(label, "capabilities") for label in request.capabilities),
        slots=request.slots,
        room_bytes=min(request.max_bytes or most_bytes, most_bytes),
        free=free,
        total=amounts(total),
        total_slots=request.total_slots,
        process=request.process,
    )


def asker(caller: Caller) -> Asker:
    """Whose key a worker shows. A fleet's key is bound to no project."""
    return Asker(caller.tenant, "" if caller.fleet else caller.project, caller.fleet)


def lease(granted: GrantedLease) -> pb.Lease:
    """A lease, for its worker."""
    held = granted.lease
    return pb.Lease(
        lease_token=granted.signed.token,
        run_id=str(held.run_id),
        step_key=held.step_key,
        attempt_id=held.fence.attempt_id.bytes,
        lease_epoch=held.fence.lease_epoch,
        authority_epoch=held.fence.authority_epoch,
        epoch=held.epoch,
        handler=held.contract.handler,
        input=struct_pb2.Value.FromString(granted.input),
        attempt_number=held.attempt_number,
        deadline=timestamp(held.deadline_ms),
        timeout=duration(held.contract.timeout_ms),
        heartbeat_interval=duration(max(1, held.ttl_ms // 3)),
        lease_ttl=duration(held.ttl_ms),
        tenant=held.tenant,
        project=held.project,
        traceparent=granted.traceparent,
        token_expires_at=timestamp(granted.signed.expires_at_ms),
        resources=dict(held.contract.resources) if held.contract.resources else None,
        capacity_timed_out=held.lapsed,
    )


def beat(said: pb.Heartbeat) -> Beat:
    """One heartbeat."""
    attempt_id = uuid_from_bytes(said.attempt_id, "heartbeats.attempt_id")
    return Beat(uuid_from_text(said.run_id, "heartbeats.run_id"), said.step_key, attempt_id, said.lease_epoch)


def beat_result(answered: Beaten) -> pb.HeartbeatResult:
    """The answer to one."""
    status = pb.LeaseStatus.ValueType(int(answered.answer))
    result = pb.HeartbeatResult(status=status, please_yield=answered.please_yield)
    if answered.signed is not None:
        result.lease_token = answered.signed.token
        at = timestamp(answered.signed.expires_at_ms)
        if at is not None:
            result.token_expires_at.CopyFrom(at)
    return result


def command(item: pb.CommandItem, limit_bytes: int) -> Command:
    """One command."""
    payload = item.payload.SerializeToString()
    if len(payload) > limit_bytes:
        raise too_large(f"the payload of command {item.slot}", len(payload), limit_bytes)
    return Command(name(item.slot, "commands.slot"), int(item.type), payload)


def completion(said: pb.Completion, holder: Holder, output_limit: int, command_limit: int) -> Completion:
    """One report; its digest is what a repeat is known by."""
    kind = said.WhichOneof("result")
    if kind == "output":
        output = said.output.SerializeToString(deterministic=True)
        if len(output) > output_limit:
            raise too_large(f"the output of step {holder.step_key}", len(output), output_limit)
        return Completion(holder, End.SUCCEEDED, digest(b"output" + output), output=output)
    if kind == "failure":
        failed = said.failure
        failure = Failure(clean(failed.failure_class, 200) or "attempt", clean(failed.message, _TEXT), clean(failed.type, 200))
        return Completion(
            holder, End.FAILED, digest(b"failure" + failed.SerializeToString(deterministic=True)), failure=failure
        )
    if kind == "yielded":
        if said.yielded.reason not in _YIELDS:
            raise invalid_field("completions.yielded.reason", "is no reason", "send drain, wait, approval or input")
        commands = tuple(command(item, command_limit) for item in said.yielded.commands)
        report = digest(b"yield" + said.yielded.SerializeToString(deterministic=True))
        why = Failure("yield", said.yielded.reason or "drain", "YIELDED")
        return Completion(holder, End.YIELDED, report, failure=why, commands=commands)
    raise invalid_field("completions.result", "is missing", "send an output, a failure or a yield")


def too_large(what: str, size: int, limit: int) -> Refusal:
    """TOO_LARGE for one item."""
    return Refusal(
        Reason.TOO_LARGE,
        f"{what} has {size} bytes, more than {limit}",
        remedy="store it as an artifact and return its digest",
        detail={"bytes": str(size), "limit_bytes": str(limit)},
    )


def attempt(row: Mapping[str, Any], beating: bool) -> people.Attempt:
    """An attempt for people."""
    failed = row["failure_class"]
    state = people.ATTEMPT_STATE_RUNNING if row["end_kind"] == 0 and beating else _STATES[row["end_kind"]]
    failure = common_pb2.Failure(failure_class=failed, message=row["failure_message"], type=row["failure_type"])
    return people.Attempt(
        step_key=row["step_key"],
        attempt_id=row["attempt_id"].hex,
        attempt_number=row["attempt_number"],
        state=state,
        worker_id=row["worker_id"],
        authority_epoch=row["authority_epoch"],
        lease_epoch=row["lease_epoch"],
        leased_at=timestamp(row["leased_ms"]),
        ended_at=timestamp(row["ended_ms"]),
        failure=failure if failed else None,
    )


def attempts_token(row: Mapping[str, Any]) -> str:
    """Where the next page begins."""
    return f"{row['leased_ms']}:{row['attempt_id'].hex}"


def parse_attempts_token(token: str) -> tuple[int, UUID]:
    """See attempts_token."""
    if not token:
        return 0, NIL
    at, _, attempt_id = token.partition(":")
    if not (at.isascii() and at.isdecimal() and len(at) <= 18) or len(attempt_id) != 32:
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return int(at), uuid_from_text(attempt_id, "page_token")
