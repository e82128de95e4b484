"""Refusals as google.rpc.Status, and back."""

import grpc
import pytest
from google.rpc import error_details_pb2

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.status import DETAILS_KEY, refusal_of, status_of
from libs.telemetry.redaction import REDACTED


def error_with(refusal: Refusal) -> grpc.aio.AioRpcError:
    status = status_of(refusal)
    trailing = grpc.aio.Metadata((DETAILS_KEY, status.SerializeToString()))
    return grpc.aio.AioRpcError(getattr(grpc.StatusCode, refusal.status), grpc.aio.Metadata(), trailing, status.message)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_crosses_the_wire_whole(reason: Reason) -> None:
    sent = Refusal(reason, "no", field="steps[0].key", remedy="do better", retry_after_ms=1_250, detail={"epoch": "7"})
    got = refusal_of(error_with(sent))
    assert (got.reason, got.message, got.field, got.remedy) == (reason, "no", "steps[0].key", "do better")
    assert (got.retry_after_ms, got.detail, got.violations) == (1_250, {"epoch": "7"}, (("steps[0].key", "no"),))


def kinds(refusal: Refusal) -> set[str]:
    return {detail.TypeName().rpartition(".")[2] for detail in status_of(refusal).details}


def test_details_are_those_that_help() -> None:
    assert kinds(Refusal(Reason.NOT_FOUND, "no such run")) == {"ErrorInfo"}
    assert kinds(Refusal(Reason.LEASE_FENCED, "newer")) == {"ErrorInfo", "PreconditionFailure"}
    assert kinds(Refusal(Reason.BUDGET_EXHAUSTED, "spent", retry_after_ms=1)) == {"ErrorInfo", "QuotaFailure", "RetryInfo"}
    assert kinds(Refusal(Reason.INVALID_FIELD, "bad", field="x", remedy="y")) == {"ErrorInfo", "BadRequest", "Help"}


def test_a_thousand_violations_stay_below_what_clients_take_and_are_counted() -> None:
    violations = tuple((f"steps[{n}].key", "must match the pattern of a step key") for n in range(1_000))
    status = status_of(Refusal(Reason.WORKFLOW_INVALID, "many", violations=violations))
    assert status.ByteSize() < 5_000
    bad = error_details_pb2.BadRequest()
    assert next(detail for detail in status.details if detail.Is(bad.DESCRIPTOR)).Unpack(bad)
    shown = len(bad.field_violations) - 1
    assert shown > 20
    assert bad.field_violations[-1].description == f"and {1_000 - shown} more"


def test_secrets_do_not_leave_in_any_part() -> None:
    key = "rk_live_abcdefgh12345678"
    sent = Refusal(
        Reason.INVALID_FIELD, f"no {key}", field="f", remedy=key, detail={"k": key}, violations=(("f", f"bad {key}"),)
    )
    raw = status_of(sent).SerializeToString()
    assert key.encode() not in raw
    assert REDACTED.encode() in raw


def test_a_reason_of_a_newer_server_falls_back_to_its_code() -> None:
    status = status_of(Refusal(Reason.NOT_FOUND, "gone"))
    info = error_details_pb2.ErrorInfo(reason="ARCHIVED", domain="runway.dev")
    status.details[0].Pack(info)
    trailing = grpc.aio.Metadata((DETAILS_KEY, status.SerializeToString()))
    got = refusal_of(grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailing, "gone"))
    assert got.reason is Reason.NOT_FOUND


@pytest.mark.parametrize("trailing", [grpc.aio.Metadata(), grpc.aio.Metadata((DETAILS_KEY, b"\xff\xff"))])
def test_a_lost_connection_says_that_the_outcome_is_unknown(trailing: grpc.aio.Metadata) -> None:
    got = refusal_of(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing, "reset"))
    assert got.reason is Reason.AUTHORITY_UNREACHABLE
    assert got.detail == {"commit": "unknown"}
    assert got.retry_after_ms
