"""Authoritative for how a refusal of one item of a batch is written into the batch's answer, and read back."""

from runway.common.v1 import common_pb2

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.status import code_of


def item_error(refusal: Refusal) -> common_pb2.ItemError:
    """The refusal as data: the same facts as a google.rpc.Status would carry."""
    return common_pb2.ItemError(
        code=code_of(refusal).value[0],
        reason=refusal.reason.value,
        message=refusal.message,
        field=refusal.field,
        remedy=refusal.remedy,
        retry_after_ms=refusal.retry_after_ms or 0,
        detail=refusal.detail,
    )


def refusal_of_item(error: common_pb2.ItemError) -> Refusal:
    """What `item_error` wrote; a reason that this side does not know is INTERNAL."""
    reason = Reason(error.reason) if error.reason in Reason.__members__ else Reason.INTERNAL
    return Refusal(
        reason,
        error.message,
        field=error.field,
        remedy=error.remedy,
        retry_after_ms=error.retry_after_ms or None,
        detail=dict(error.detail),
    )
