"""Authoritative for refusals: every one has a stable reason, one gRPC status, and a page under `deploy/handbook/errors/`.

Can go wrong: a refusal invented in passing. Reasons are an enum, each bound to its status here, and an architecture test
asks for its page.
"""

from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """Why something was refused. Stable: callers branch on it."""

    INVALID_FIELD = "INVALID_FIELD"
    WORKFLOW_INVALID = "WORKFLOW_INVALID"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    METHOD_DENIED = "METHOD_DENIED"
    NOT_AVAILABLE = "NOT_AVAILABLE"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    NOT_FOUND = "NOT_FOUND"
    LEASE_FENCED = "LEASE_FENCED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    LEASE_INVALID = "LEASE_INVALID"
    EPOCH_STALE = "EPOCH_STALE"
    RUN_PAUSED = "RUN_PAUSED"
    RUN_CANCELLED = "RUN_CANCELLED"
    RUN_CLOSED = "RUN_CLOSED"
    RUN_NOT_ENDED = "RUN_NOT_ENDED"
    SCOPE_STOPPED = "SCOPE_STOPPED"
    EFFECT_UNKNOWN = "EFFECT_UNKNOWN"
    EFFECT_IN_FLIGHT = "EFFECT_IN_FLIGHT"
    DUPLICATE_EFFECT = "DUPLICATE_EFFECT"
    EFFECT_FAILED = "EFFECT_FAILED"
    CASE_DECIDED = "CASE_DECIDED"
    INPUT_CLOSED = "INPUT_CLOSED"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    APPROVAL_CLOSED = "APPROVAL_CLOSED"
    APPROVAL_STALE = "APPROVAL_STALE"
    APPROVAL_NOT_ELIGIBLE = "APPROVAL_NOT_ELIGIBLE"
    SIGNATURE_INVALID = "SIGNATURE_INVALID"
    APPROVER_KEY_TAKEN = "APPROVER_KEY_TAKEN"
    INCOMPATIBLE_RUNTIME = "INCOMPATIBLE_RUNTIME"
    CAPABILITY_DENIED = "CAPABILITY_DENIED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    PROVIDER_SATURATED = "PROVIDER_SATURATED"
    CHECKPOINT_CONFLICT = "CHECKPOINT_CONFLICT"
    CHECKPOINT_CORRUPT = "CHECKPOINT_CORRUPT"
    CONTENT_MISSING = "CONTENT_MISSING"
    TOO_LARGE = "TOO_LARGE"
    NO_LEADER = "NO_LEADER"
    NO_SUCCESSOR = "NO_SUCCESSOR"
    DRAINING = "DRAINING"
    AUTHORITY_UNREACHABLE = "AUTHORITY_UNREACHABLE"
    OVERLOADED = "OVERLOADED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"


STATUS: Mapping[Reason, str] = {
    Reason.INVALID_FIELD: "INVALID_ARGUMENT",
    Reason.WORKFLOW_INVALID: "INVALID_ARGUMENT",
    Reason.UNAUTHENTICATED: "UNAUTHENTICATED",
    Reason.METHOD_DENIED: "PERMISSION_DENIED",
    Reason.NOT_AVAILABLE: "UNIMPLEMENTED",
    Reason.REQUEST_ID_REUSED: "ALREADY_EXISTS",
    Reason.VERSION_CONFLICT: "ABORTED",
    Reason.NOT_FOUND: "NOT_FOUND",
    Reason.LEASE_FENCED: "FAILED_PRECONDITION",
    Reason.LEASE_EXPIRED: "FAILED_PRECONDITION",
    Reason.LEASE_INVALID: "UNAUTHENTICATED",
    Reason.EPOCH_STALE: "FAILED_PRECONDITION",
    Reason.RUN_PAUSED: "FAILED_PRECONDITION",
    Reason.RUN_CANCELLED: "FAILED_PRECONDITION",
    Reason.RUN_CLOSED: "FAILED_PRECONDITION",
    Reason.RUN_NOT_ENDED: "FAILED_PRECONDITION",
    Reason.SCOPE_STOPPED: "FAILED_PRECONDITION",
    Reason.EFFECT_UNKNOWN: "FAILED_PRECONDITION",
    Reason.EFFECT_IN_FLIGHT: "FAILED_PRECONDITION",
    Reason.DUPLICATE_EFFECT: "FAILED_PRECONDITION",
    Reason.EFFECT_FAILED: "FAILED_PRECONDITION",
    Reason.CASE_DECIDED: "FAILED_PRECONDITION",
    Reason.INPUT_CLOSED: "FAILED_PRECONDITION",
    Reason.APPROVAL_REQUIRED: "FAILED_PRECONDITION",
    Reason.APPROVAL_CLOSED: "FAILED_PRECONDITION",
    Reason.APPROVAL_STALE: "FAILED_PRECONDITION",
    Reason.APPROVAL_NOT_ELIGIBLE: "PERMISSION_DENIED",
    Reason.SIGNATURE_INVALID: "INVALID_ARGUMENT",
    Reason.APPROVER_KEY_TAKEN: "ALREADY_EXISTS",
    Reason.INCOMPATIBLE_RUNTIME: "FAILED_PRECONDITION",
    Reason.CAPABILITY_DENIED: "PERMISSION_DENIED",
    Reason.BUDGET_EXHAUSTED: "RESOURCE_EXHAUSTED",
    Reason.QUOTA_EXCEEDED: "RESOURCE_EXHAUSTED",
    Reason.PROVIDER_SATURATED: "RESOURCE_EXHAUSTED",
    Reason.CHECKPOINT_CONFLICT: "ABORTED",
    Reason.CHECKPOINT_CORRUPT: "DATA_LOSS",
    Reason.CONTENT_MISSING: "FAILED_PRECONDITION",
    Reason.TOO_LARGE: "INVALID_ARGUMENT",
    Reason.NO_LEADER: "UNAVAILABLE",
    Reason.NO_SUCCESSOR: "FAILED_PRECONDITION",
    Reason.DRAINING: "UNAVAILABLE",
    Reason.AUTHORITY_UNREACHABLE: "UNAVAILABLE",
    Reason.OVERLOADED: "UNAVAILABLE",
    Reason.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    Reason.INTERNAL: "INTERNAL",
}
"""The gRPC status name of each reason; one each."""


class Refusal(Exception):
    """A typed no. Carried in batches as a value, raised at the edges.

    `field` names what was wrong in the request, `remedy` what the caller can do, `retry_after_ms` is set where time cures
    it, `detail` holds facts for the caller's program (text to text, never a secret).
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str = "",
        remedy: str = "",
        retry_after_ms: int | None = None,
        detail: Mapping[str, str] | None = None,
        violations: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.field = field
        self.remedy = remedy
        self.retry_after_ms = retry_after_ms
        self.detail = dict(detail or {})
        self.violations = violations or (((field, message),) if field else ())

    @property
    def status(self) -> str:
        """Name of the gRPC status."""
        return STATUS[self.reason]


def invalid_field(field: str, problem: str, remedy: str) -> Refusal:
    """INVALID_FIELD for one field."""
    return Refusal(Reason.INVALID_FIELD, f"{field} {problem}", field=field, remedy=remedy)


def not_found(what: str, *, field: str = "", remedy: str = "") -> Refusal:
    """NOT_FOUND: also for another tenant's thing, so that ids cannot be probed."""
    remedy = remedy or f"check the id; a {what} of another tenant is not shown"
    return Refusal(Reason.NOT_FOUND, f"no such {what}", field=field, remedy=remedy)


def unreachable(what: str, retry_after_ms: int = 500) -> Refusal:
    """AUTHORITY_UNREACHABLE: nothing was decided; the same call may be repeated."""
    return Refusal(
        Reason.AUTHORITY_UNREACHABLE,
        f"{what} cannot be reached now",
        remedy="repeat the same call; nothing was decided",
        retry_after_ms=retry_after_ms,
    )
