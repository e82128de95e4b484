"""What of an answer is kept: JSON that a Value can carry, without secrets."""

import json

import pytest

from services.gateway.clients.http import parse_json, scrub


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"9007199254740992", 2**53),
        (b"9007199254740993", "9007199254740993"),
        (b"-9007199254740993", "-9007199254740993"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"1.5", 1.5),
    ],
)
def test_integers_that_a_double_cannot_hold_become_text(raw: bytes, want: object) -> None:
    assert parse_json(raw) == want


@pytest.mark.parametrize("raw", [b"", b"<html>", b"NaN", b'{"a": Infinity}', b"[" * 30 + b"]" * 30, b"[" * 100_000, b"\xff"])
def test_what_is_no_json_or_too_deep_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(raw)


def test_secrets_are_taken_out_of_keys_and_values_at_any_depth() -> None:
    data = {"a": ["x s3cret y", {"s3cret": "s3cret", "n": 5}], "t": "longs3cret"}
    clean = scrub(data, ["longs3cret", "s3cret"])
    assert "s3cret" not in json.dumps(clean)
    assert clean["a"][1]["n"] == 5
    assert clean["t"] == "[redacted]"
