"""Canaries: values that must never be seen in a log, a span or an error text, in any form."""

import base64
import io
import json
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.status import status_of
from libs.telemetry.logs import configure_logs, get_logger, log_context
from libs.telemetry.redaction import REDACTED, guard_call, redact, redact_value, register_secret
from libs.telemetry.traces import configure_traces, shutdown_traces, span

CANARY = "canary-5f0e9c-service-secret"
TOKEN = b"\x08\x96\x01lease-token-canary\xff\xfe\x00'\""
KEY = "rk_canary_0123456789abcdef"


def forms() -> list[str]:
    both: list[str] = [CANARY, KEY, CANARY.encode().hex(), base64.b64encode(CANARY.encode()).decode()]
    both += [TOKEN.hex(), repr(TOKEN), base64.b64encode(TOKEN).decode(), base64.urlsafe_b64encode(TOKEN).decode()]
    return both


def assert_clean(text: str) -> None:
    for form in (CANARY, KEY, CANARY.encode().hex(), TOKEN.hex(), "lease-token-canary", base64.b64encode(TOKEN).decode()):
        assert form not in text, form


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    register_secret(CANARY)
    guard_call(TOKEN)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure_logs(level="DEBUG", form="json", stream=stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    structlog.contextvars.clear_contextvars()


def test_every_printed_form_is_found(out: io.StringIO) -> None:
    for form in forms():
        assert_clean(redact(f"before {form} after"))
        assert REDACTED in redact(form)


def test_no_canary_reaches_a_log_line_by_any_way(out: io.StringIO) -> None:
    log = get_logger("canary")
    plain = logging.getLogger("some.library")
    for form in forms():
        log.info(f"text {form}")
        log.warning("named", api_key=form, authorization=f"Bearer {form}", note=form)
        log.info("deep", request={"headers": [("x", form)], "token": form}, items=[form, {form}])
        plain.warning("library says %s", form)
        try:
            raise ValueError(f"bad {form}")
        except ValueError:
            log.exception("failed")
            plain.exception("failed")
    log.info("bytes", lease=TOKEN, where="postgresql://runway:pw-canary-77@127.0.0.1/db")
    lines = out.getvalue().splitlines()
    assert len(lines) > 40
    for line in lines:
        assert_clean(line)
        assert "pw-canary-77" not in line
        assert json.loads(line)["level"]


def test_no_canary_reaches_a_span(out: io.StringIO) -> None:
    exporter = InMemorySpanExporter()
    configure_traces(endpoint=None, service="t", exporter=exporter)
    try:
        for form in forms():
            try:
                with span("work", note=form, token=form):
                    raise ValueError(form)
            except ValueError:
                pass
    finally:
        shutdown_traces()
    spans = exporter.get_finished_spans()
    assert len(spans) == len(forms())
    for made in spans:
        assert_clean(made.to_json())


def test_no_canary_reaches_an_error_text(out: io.StringIO) -> None:
    for form in forms():
        text = str(status_of(Refusal(Reason.INVALID_FIELD, form, field=form, remedy=form, detail={"a": form})))
        assert_clean(text)


def test_ids_stay_readable_and_other_bytes_become_a_length() -> None:
    run = UUID("0199aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee")
    assert redact_value(run.bytes) == str(run)
    assert redact_value(b"x" * 40) == "<40 bytes>"
    assert redact_value({"n": 1, "ok": True, "none": None}) == {"n": 1, "ok": True, "none": None}


def test_lines_wear_run_attempt_and_epochs(out: io.StringIO) -> None:
    run, attempt = UUID(int=5), UUID(int=6)
    with log_context(run=run, step="fetch", attempt=attempt, epoch=3, authority_epoch=2, lease_epoch=1):
        get_logger("t").info("within")
    get_logger("t").info("outside")
    within, outside = (json.loads(line) for line in out.getvalue().splitlines())
    assert (within["run"], within["attempt"], within["step"]) == (str(run), str(attempt), "fetch")
    assert (within["epoch"], within["authority_epoch"], within["lease_epoch"]) == (3, 2, 1)
    assert "run" not in outside


def test_a_short_value_is_not_searched_for() -> None:
    register_secret("abc")
    assert redact("abcdef") == "abcdef"
