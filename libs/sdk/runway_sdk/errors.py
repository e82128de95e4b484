"""What can go wrong, by type. Every refusal of Runway Control has a stable `reason`; the classes here are the ones that
programs branch on. Anything else is a `RunwayError` with its reason.

Can go wrong: branching on text. Text is for people; use the class or `reason`.
"""

from collections.abc import Mapping

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from runway.common.v1 import common_pb2


class RunwayError(Exception):
    """A typed refusal.

    `reason` is stable and upper-case, `field` names what was wrong in the request, `remedy` says what to do,
    `retry_after_ms` is set where time cures it, `detail` holds facts for programs.
    """

    reason = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        field: str = "",
        remedy: str = "",
        retry_after_ms: int = 0,
        detail: Mapping[str, str] | None = None,
        violations: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.reason = reason or type(self).reason
        self.message = message
        self.code = code
        self.field = field
        self.remedy = remedy
        self.retry_after_ms = retry_after_ms
        self.detail = dict(detail or {})
        self.violations = violations
        super().__init__(f"{self.reason}: {message}" + (f" ({remedy})" if remedy else ""))


class InvalidRequest(RunwayError):
    """A field of the request is wrong; `violations` lists every one."""

    reason = "INVALID_FIELD"


class NotFound(RunwayError):
    """No such thing, or another tenant's."""

    reason = "NOT_FOUND"


class RequestIdReused(RunwayError):
    """The request_id made a run from another request."""

    reason = "REQUEST_ID_REUSED"


class VersionConflict(RunwayError):
    """What the call was conditional on has moved."""

    reason = "VERSION_CONFLICT"


class Unauthenticated(RunwayError):
    """The API key is missing or unknown."""

    reason = "UNAUTHENTICATED"


class LeaseLost(RunwayError):
    """This attempt may not act any more: stop, and report nothing."""

    reason = "LEASE_FENCED"


class EpochStale(RunwayError):
    """The run's epoch moved while the lease stayed: renew the token once and repeat."""

    reason = "EPOCH_STALE"


class RunStopped(RunwayError):
    """The run is paused, cancelled or closed, or a scope of it is stopped."""

    reason = "RUN_CANCELLED"


class YieldRequested(RunwayError):
    """The attempt committed a checkpoint and was asked to yield: its lease goes back, the next one goes on from there."""

    reason = "YIELD_REQUESTED"


class CapabilityDenied(RunwayError):
    """The step's contract does not declare this."""

    reason = "CAPABILITY_DENIED"


class EffectUnknown(RunwayError):
    """The outcome of this effect is not known; it is being looked up."""

    reason = "EFFECT_UNKNOWN"


class EffectInFlight(RunwayError):
    """The effect is still under way; the same call joins it."""

    reason = "EFFECT_IN_FLIGHT"


class ApprovalRequired(RunwayError):
    """People must allow this call first; `detail` says exactly what."""

    reason = "APPROVAL_REQUIRED"


class BudgetExhausted(RunwayError):
    """The run's envelope, or a quota, does not allow it."""

    reason = "BUDGET_EXHAUSTED"


class Unavailable(RunwayError):
    """Nobody could decide now; the same call may be repeated."""

    reason = "AUTHORITY_UNREACHABLE"


class Overloaded(Unavailable):
    """The installation has more calls than it can serve: nothing was decided. Calls made through this SDK wait as told and are
    repeated by themselves while their time allows."""

    reason = "OVERLOADED"


class ToolFailed(RunwayError):
    """The tool answered that it did not do it. `failure_class` and `type` are the tool's."""

    reason = "EFFECT_FAILED"

    def __init__(self, message: str, failure_class: str, failure_type: str) -> None:
        super().__init__(message)
        self.failure_class = failure_class
        self.type = failure_type


class StepFailed(Exception):
    """Raised by a step's author to fail the attempt with a class that the retry policy knows.

    Classes: transient, validation, policy, budget, attempt, infrastructure, deadline. `policy` is never retried.
    """

    def __init__(self, message: str, failure_class: str = "attempt", type: str = "StepFailed") -> None:
        super().__init__(message)
        self.failure_class = failure_class
        self.type = type


class CapacityTimedOut(StepFailed):
    """Capacity that the step waited for did not come in time. Caught, the step goes on; else it fails as `deadline`."""

    def __init__(self, call: str, slot: str) -> None:
        super().__init__(f"no capacity for {call} came in time (wait {slot})", "deadline", "CAPACITY_TIMED_OUT")
        self.call = call


STOPPED_FOR_NOW = frozenset({"RUN_PAUSED", "SCOPE_STOPPED", "YIELD_REQUESTED"})
"""Reasons after which the attempt returns its lease: another goes on where it got to, once the run may."""

_BY_REASON: Mapping[str, type[RunwayError]] = {
    "INVALID_FIELD": InvalidRequest,
    "WORKFLOW_INVALID": InvalidRequest,
    "TOO_LARGE": InvalidRequest,
    "NOT_FOUND": NotFound,
    "REQUEST_ID_REUSED": RequestIdReused,
    "VERSION_CONFLICT": VersionConflict,
    "CHECKPOINT_CONFLICT": VersionConflict,
    "UNAUTHENTICATED": Unauthenticated,
    "LEASE_FENCED": LeaseLost,
    "LEASE_EXPIRED": Unavailable,  # nobody could be asked whether the lease lives: not the same as its end
    "LEASE_INVALID": LeaseLost,
    "EPOCH_STALE": EpochStale,
    "RUN_PAUSED": RunStopped,
    "RUN_CANCELLED": RunStopped,
    "RUN_CLOSED": RunStopped,
    "SCOPE_STOPPED": RunStopped,
    "CAPABILITY_DENIED": CapabilityDenied,
    "EFFECT_UNKNOWN": EffectUnknown,
    "APPROVAL_REQUIRED": ApprovalRequired,
    "EFFECT_IN_FLIGHT": EffectInFlight,
    "BUDGET_EXHAUSTED": BudgetExhausted,
    "QUOTA_EXCEEDED": BudgetExhausted,
    "OVERLOADED": Overloaded,
    "NO_LEADER": Unavailable,
    "DRAINING": Unavailable,
    "AUTHORITY_UNREACHABLE": Unavailable,
    "PROVIDER_SATURATED": Unavailable,  # nothing was decided: the same call, once its bucket has filled
}
_BY_CODE: Mapping[grpc.StatusCode, type[RunwayError]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,  # by the server as it ends; our own cancelling is no gRPC error
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def error_of(error: grpc.aio.AioRpcError) -> RunwayError:
    """The typed error of a failed call."""
    code = error.code()
    for key, raw in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            try:
                return _from_status(status_pb2.Status.FromString(raw), code)
            except (DecodeError, TypeError, ValueError):
                break  # a proxy's or a broken peer's: the code is all there is to judge by
    kind = _BY_CODE.get(code, RunwayError)
    remedy = "check that the installation runs and that this is its address" if code is grpc.StatusCode.UNAVAILABLE else ""
    reason = "" if kind is not RunwayError else code.name
    return kind(str(error.details() or code.name), code=code, reason=reason, remedy=remedy)


def _from_status(status: status_pb2.Status, code: grpc.StatusCode) -> RunwayError:
    reason, field, remedy, retry_ms = "", "", "", 0
    detail: dict[str, str] = {}
    violations: list[tuple[str, str]] = []
    for packed in status.details:
        if packed.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            packed.Unpack(info)
            reason, detail = info.reason, dict(info.metadata)
        elif packed.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            packed.Unpack(bad)
            violations += [(item.field, item.description) for item in bad.field_violations]
            field = field or (violations[0][0] if violations else "")
        elif packed.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            info_retry = error_details_pb2.RetryInfo()
            packed.Unpack(info_retry)
            retry_ms = info_retry.retry_delay.ToMilliseconds()
        elif packed.Is(error_details_pb2.Help.DESCRIPTOR):
            help_ = error_details_pb2.Help()
            packed.Unpack(help_)
            remedy = remedy or next((link.description for link in help_.links), "")
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, RunwayError)
    return kind(
        status.message,
        reason=reason,
        code=code,
        field=field,
        remedy=remedy,
        retry_after_ms=retry_ms,
        detail=detail,
        violations=tuple(violations),
    )


def item_error_of(error: common_pb2.ItemError) -> RunwayError:
    """The typed error of one item of a batch."""
    code = _CODES.get(error.code, grpc.StatusCode.UNKNOWN)
    kind = _BY_REASON.get(error.reason) or _BY_CODE.get(code, RunwayError)
    return kind(
        error.message,
        reason=error.reason,
        code=code,
        field=error.field,
        remedy=error.remedy,
        retry_after_ms=error.retry_after_ms,
        detail=dict(error.detail),
    )
