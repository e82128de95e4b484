"""How an attempt's end reaches the control plane, and what an exception is called there.

Can go wrong: a report whose answer is lost (it is sent again: the same report twice is one), or one that cannot be stored (it
is replaced by a failure that says why). A report is given up only when the lease is lost or nobody could decide for a minute.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from pydantic import ValidationError
from runway.common.v1 import common_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from runway_sdk.context import LeaseHolder
from runway_sdk.errors import (
    STOPPED_FOR_NOW,
    BudgetExhausted,
    CapabilityDenied,
    EffectUnknown,
    EpochStale,
    InvalidRequest,
    LeaseLost,
    RunStopped,
    RunwayError,
    StepFailed,
    ToolFailed,
    Unavailable,
    YieldRequested,
    item_error_of,
)
from runway_sdk.gather import Gather

log = logging.getLogger("runway.worker")
REPORT_FOR_S = 60.0
BATCH = 500
Complete = Callable[[pb.CompleteAttemptsRequest], Awaitable[pb.CompleteAttemptsResponse]]


class Reporter:
    """Reports of one worker process, many in a call."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete
        self._gather: Gather[pb.Completion, pb.CompletionResult] = Gather(self._send, most=BATCH)

    async def _send(self, completions: Sequence[pb.Completion]) -> Sequence[pb.CompletionResult]:
        return list((await self._complete(pb.CompleteAttemptsRequest(completions=completions))).results)

    async def _refusal(self, completion: pb.Completion) -> RunwayError | None:
        """Why it was not recorded; None when it was."""
        try:
            result = await self._gather.submit(completion)
        except RunwayError as error:
            return error
        return None if result.recorded else item_error_of(result.error)

    async def report(self, holder: LeaseHolder, completion: pb.Completion) -> None:
        """Reports an end until it is recorded or refused; renews once after EPOCH_STALE."""
        loop = asyncio.get_running_loop()
        end = loop.time() + REPORT_FOR_S
        pause_s, renewed = 0.05, False
        while not holder.lost.is_set():
            completion.lease_token = holder.token
            error = await self._refusal(completion)
            if error is None:
                return
            if isinstance(error, EpochStale) and not renewed:
                try:
                    await holder.renew(int(error.detail.get("current_epoch", "0")))
                    renewed = True
                    continue
                except RunwayError as refused:
                    error = refused
            if isinstance(error, InvalidRequest) and completion.WhichOneof("result") in ("output", "yielded"):
                completion.failure.CopyFrom(failure("validation", error.message, error.reason))
            elif error.reason in STOPPED_FOR_NOW and completion.yielded.commands:
                completion.yielded.CopyFrom(pb.Yield(reason="drain"))  # what it asks for is asked again once the run may go on
            elif _curable(error) and loop.time() < end:
                await asyncio.sleep(max(pause_s, error.retry_after_ms / 1000))
                pause_s = min(pause_s * 2, 1.0)
            else:
                holder.lose(error.reason)
                log.warning("an end was not recorded: %s", error)


def _curable(error: RunwayError) -> bool:
    """Whether the same report may be recorded later: a decision about the lease or the report is final."""
    told = isinstance(error, Unavailable) or error.retry_after_ms > 0
    return told or error.reason in ("INTERNAL", "UNKNOWN", "RESOURCE_EXHAUSTED")


def failure(failure_class: str, message: str, kind: str) -> common_pb2.Failure:
    """A failure as it is reported; text that could not be stored is replaced."""
    said, named = (text.replace("\0", "\N{REPLACEMENT CHARACTER}") for text in (message, kind))
    said, named = (text.encode(errors="replace").decode() for text in (said, named))
    return common_pb2.Failure(failure_class=failure_class, message=said[:2000], type=named[:200])


def failure_of(error: BaseException) -> common_pb2.Failure:
    """How an exception is reported: its class decides whether the attempt is followed by another."""
    if isinstance(error, StepFailed):
        return failure(error.failure_class, str(error), error.type)
    if isinstance(error, ToolFailed):
        return failure(error.failure_class or "attempt", error.message, error.type or "ToolFailed")
    if isinstance(error, ValidationError):
        text = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False)[:5])
        return failure("validation", text, "ValidationError")
    if isinstance(error, InvalidRequest):
        return failure("validation", str(error), error.reason)
    if isinstance(error, CapabilityDenied):
        return failure("policy", str(error), error.reason)
    if isinstance(error, BudgetExhausted):
        return failure("budget", str(error), error.reason)
    if isinstance(error, EffectUnknown | Unavailable):
        return failure("infrastructure", str(error), error.reason)
    if isinstance(error, RunwayError):
        return failure("attempt", str(error), error.reason)
    return failure("attempt", f"{type(error).__name__}: {error}", type(error).__name__)


def unsaid(work: "asyncio.Task[None]") -> common_pb2.Failure:
    """What to report of a step that ended without a result: it cancelled itself, or could not even be called."""
    error = None if work.cancelled() else work.exception()
    return failure_of(error) if error else failure("attempt", "the step was cancelled from inside", "CancelledError")


ENDED = (LeaseLost, RunStopped, YieldRequested)
"""Errors that say that an attempt is over: nothing is to be reported, or its lease goes back."""
