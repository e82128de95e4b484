"""Authoritative for how a refusal crosses the wire: `google.rpc.Status` with ErrorInfo first, then what helps.

Can go wrong: trailing metadata over 8 KiB, which many clients reject whole. Texts and violations are cut to a budget, and
what was cut is counted. Everything is redacted here, because this is the last place that sees it.
"""

from typing import Any, TypeVar

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from libs.kernel.refusal import Reason, Refusal
from libs.telemetry.redaction import redact

DOMAIN = "runway.dev"
DETAILS_KEY = "grpc-status-details-bin"
HANDBOOK = "deploy/handbook/errors"
_MESSAGE_CHARS = 400
_DETAIL_CHARS = 200
_STATUS_BYTES = 4500
_UNTYPED = {
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: Reason.METHOD_DENIED,
    grpc.StatusCode.UNIMPLEMENTED: Reason.METHOD_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.INVALID_FIELD,
    grpc.StatusCode.NOT_FOUND: Reason.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.TOO_LARGE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE: Reason.AUTHORITY_UNREACHABLE,
    grpc.StatusCode.CANCELLED: Reason.AUTHORITY_UNREACHABLE,
}
M = TypeVar("M", bound=Message)
_LOST = (Reason.DEADLINE_EXCEEDED, Reason.AUTHORITY_UNREACHABLE)


def code_of(refusal: Refusal) -> grpc.StatusCode:
    """The gRPC code of a refusal."""
    code: grpc.StatusCode = getattr(grpc.StatusCode, refusal.status)
    return code


def status_of(refusal: Refusal) -> status_pb2.Status:
    """The refusal as it goes over the wire, redacted and within its budget."""
    message = _cut(refusal.message, _MESSAGE_CHARS)
    facts = {key: _cut(value, _DETAIL_CHARS) for key, value in refusal.detail.items()}
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=refusal.reason.value, domain=DOMAIN, metadata=facts)]
    if refusal.retry_after_ms is not None:
        delay = duration_pb2.Duration(seconds=refusal.retry_after_ms // 1000, nanos=refusal.retry_after_ms % 1000 * 1_000_000)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if refusal.remedy:
        link = error_details_pb2.Help.Link(
            description=_cut(refusal.remedy, _MESSAGE_CHARS), url=f"{HANDBOOK}/{refusal.reason.value}.md"
        )
        details.append(error_details_pb2.Help(links=[link]))
    subject = facts.get("subject", refusal.field)
    if refusal.status == "FAILED_PRECONDITION":
        unmet = error_details_pb2.PreconditionFailure.Violation(type=refusal.reason.value, subject=subject, description=message)
        details.append(error_details_pb2.PreconditionFailure(violations=[unmet]))
    if refusal.status == "RESOURCE_EXHAUSTED":
        used_up = error_details_pb2.QuotaFailure.Violation(subject=subject, description=message)
        details.append(error_details_pb2.QuotaFailure(violations=[used_up]))
    status = status_pb2.Status(code=code_of(refusal).value[0], message=message)
    for detail in details:
        status.details.add().Pack(detail)
    if refusal.violations:
        status.details.add().Pack(_bad_request(refusal.violations, _STATUS_BYTES - status.ByteSize()))
    return status


def _bad_request(violations: tuple[tuple[str, str], ...], budget: int) -> error_details_pb2.BadRequest:
    """As many violations as fit; the last entry counts the rest."""
    bad = error_details_pb2.BadRequest()
    for index, (field, problem) in enumerate(violations):
        entry = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(field, _DETAIL_CHARS), description=_cut(problem, _DETAIL_CHARS)
        )
        budget -= entry.ByteSize() + 4
        if budget < 0:
            bad.field_violations.add(description=f"and {len(violations) - index} more")
            break
        bad.field_violations.append(entry)
    return bad


async def abort(context: Any, refusal: Refusal) -> None:
    """Ends the call with the refusal. Raises, as gRPC's abort does."""
    status = status_of(refusal)
    await context.abort(code_of(refusal), status.message, ((DETAILS_KEY, status.SerializeToString()),))


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """What the other side refused. Without our details (a lost connection, a proxy) the code is all there is to judge by."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                found = _from_status(status_pb2.Status.FromString(value))
            except DecodeError:
                found = None
            if found is not None:
                return found
    reason = _UNTYPED.get(error.code(), Reason.INTERNAL)
    text = redact(error.details() or error.code().name)
    if reason in _LOST:
        return Refusal(
            reason,
            f"no answer came: {text}",
            remedy="what became of the call is unknown; repeat it with the same ids",
            retry_after_ms=500,
            detail={"commit": "unknown"},
        )
    return Refusal(reason, text, remedy="see the message")


def _from_status(status: status_pb2.Status) -> Refusal | None:
    info = _unpack(status, error_details_pb2.ErrorInfo())
    if info is None or info.domain != DOMAIN:
        return None
    try:
        reason = Reason(info.reason)
    except ValueError:
        reason = _UNTYPED.get(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), Reason.INTERNAL)
    retry = _unpack(status, error_details_pb2.RetryInfo())
    help_page = _unpack(status, error_details_pb2.Help())
    bad = _unpack(status, error_details_pb2.BadRequest())
    violations = tuple((item.field, item.description) for item in bad.field_violations) if bad else ()
    return Refusal(
        reason,
        status.message,
        field=violations[0][0] if len(violations) == 1 else "",
        remedy=help_page.links[0].description if help_page and help_page.links else "",
        retry_after_ms=retry.retry_delay.seconds * 1000 + retry.retry_delay.nanos // 1_000_000 if retry else None,
        detail=dict(info.metadata),
        violations=violations,
    )


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _unpack(status: status_pb2.Status, empty: M) -> M | None:
    for detail in status.details:
        if detail.Is(empty.DESCRIPTOR):
            detail.Unpack(empty)
            return empty
    return None


def _cut(text: str, limit: int) -> str:
    clean = redact(text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
