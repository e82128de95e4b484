"""Every decoder, fed bytes and values of any shape: it answers, or refuses in its own words, and never in any other way.

Can go wrong: only the shapes that we thought of. Hypothesis makes them; RUNWAY_TEST_GARBAGE_ROUNDS says how many.
"""

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, struct_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2, lease_pb2
from runway_sdk.connection import Target, read_profile
from runway_sdk.errors import RunwayError, error_of
from runway_sdk.values import from_value, to_value

from libs.blobs import codec
from libs.fence import wire
from libs.fence.claims import Claims
from libs.fence.token import Signer, Verifier
from libs.kernel.refusal import Reason, Refusal
from libs.rpc.status import refusal_of
from libs.rpc.values import check_value, plain_value
from libs.testkit.clocks import ManualClock
from services.checkpoint import translate as checkpoint
from services.gateway import translate as gateway
from services.gateway.domain.arguments import canonical, parse
from services.launch import consumers as launch_events
from services.launch import translate_versions as launch
from services.readiness import consumers as readiness_events
from services.reconciler import consumers as reconciler_events
from services.reconciler import translate as reconciler
from services.scheduler import translate as scheduler
from tests.rpc.garbage import Noise
from tests.rpc.plausible_internal import good_events

SEED = int(os.environ.get("RUNWAY_TEST_SEED", "20260111"))
ROUNDS = int(os.environ.get("RUNWAY_TEST_GARBAGE_ROUNDS", "14"))
_BOUND = settings(max_examples=ROUNDS * 10, deadline=None, database=None)
BIGGEST = 2**63 - 1
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
TOKENS = st.one_of(
    st.text(max_size=200),
    st.integers(0, 10**200).map(str),
    st.text("0123456789٠١²", max_size=200),
    st.builds(
        "{}:{}".format, st.integers(0, 10**60) | st.integers(2**63, 10**20), st.integers(0, 2**128 - 1).map("{:032x}".format)
    ),
    st.builds("{}@{}".format, st.text(max_size=20), st.integers(0, 10**20)),
)


def many(test: Any) -> Any:
    """Many examples, the same for the same seed."""
    return seed(SEED)(_BOUND(test))


class Failed(grpc.aio.AioRpcError):
    """A failed call with these details."""

    def __init__(self, code: grpc.StatusCode, details: bytes) -> None:
        metadata = grpc.aio.Metadata(("grpc-status-details-bin", details))
        super().__init__(code, grpc.aio.Metadata(), metadata, "why")


@many
@given(st.binary(max_size=300))
@pytest.mark.requirement("ops.drills")
def test_stored_chunks(stored: bytes) -> None:
    with suppress(codec.Unreadable):
        header = codec.header_of(stored)
        codec.decode(stored, b"base" if header.base is not None else None, 10_000)


@many
@given(st.binary(max_size=2_000), st.binary(max_size=2_000), st.integers(0, 15), st.data())
def test_chunks_that_were_changed(data: bytes, base: bytes, depth: int, more: st.DataObject) -> None:
    for stored, under in ((codec.encode(data), None), (codec.encode_delta(data, base, bytes(32), depth), base)):
        if stored is None:
            continue
        assert codec.decode(stored, under, len(data)) == data
        changed = bytearray(stored)
        changed[more.draw(st.integers(0, len(stored) - 1))] ^= 1 << more.draw(st.integers(0, 7))
        with suppress(codec.Unreadable):
            header = codec.header_of(bytes(changed))
            found = codec.decode(bytes(changed), under if header.base is not None else None, len(data))
            assert header.kind == codec.PLAIN or len(found) <= max(len(data), 1)


@many
@given(TOKENS)
@pytest.mark.parametrize(
    "decode",
    [checkpoint.place_of, gateway.after, reconciler.place_of, scheduler.parse_attempts_token, launch.parse_version_token],
)
def test_page_tokens(decode: Callable[[str], Any], token: str) -> None:
    try:
        found = decode(token)
    except Refusal:
        return
    numbers = [part for part in (found if isinstance(found, tuple) else (found,)) if isinstance(part, int)]
    assert all(0 <= number <= BIGGEST for number in numbers), f"{numbers}: no column holds it"


@many
@given(st.binary(max_size=300), st.data())
def test_events(raw: bytes, more: st.DataObject) -> None:
    event = more.draw(st.sampled_from(good_events(bytes(16), bytes(range(16)))))
    noise = Noise(more.draw(st.integers(0, 2**32)))
    spoilt = events_pb2.Event()
    spoilt.CopyFrom(event)
    noise.spoil_one(spoilt)
    for wire_bytes in (raw, noise.cut(event), spoilt.SerializeToString()):
        for batch in (launch_events.Batch(), readiness_events.Batch(), reconciler_events.Batch()):
            with suppress(Refusal):
                batch.take(wire_bytes)


@many
@given(st.integers(0, 2**32))
def test_fences_off_the_wire(number: int) -> None:
    noise = Noise(number)
    for message, decode in (
        (fence_pb2.RunGate(), wire.gate_from),
        (fence_pb2.StepFence(), wire.step_from),
        (fence_pb2.ScopeFence(), wire.scope_from),
    ):
        with suppress(Refusal):
            decode(noise.fill(message))
    with suppress(Refusal):
        Claims.from_bytes(noise.fill(lease_pb2.LeaseClaims()).SerializeToString())


class Keys:
    """One known key."""

    def __init__(self, signer: Signer) -> None:
        self.signer = signer

    async def fetch(self, key_id: bytes) -> bytes | None:
        return self.signer.public.public_bytes if key_id == self.signer.public.key_id else None


@many
@example(2**53)
@given(JSON)
def test_values(data: Any) -> None:
    try:
        value = to_value(data)
    except RunwayError:
        return
    with suppress(Refusal):  # an integer above 2^53 that came as a float
        check_value(value, "value")
        assert from_value(value) == data
        assert parse(canonical(plain_value(value))) == data


@many
@given(st.integers(0, 2**32))
def test_values_off_the_wire(number: int) -> None:
    value = struct_pb2.Value()
    Noise(number)._value(value, 0)
    try:
        check_value(value, "value")
    except Refusal:
        with suppress(ValueError, OverflowError):
            from_value(value)  # never asked of what was refused
        return
    from_value(value)


PACKED = st.sampled_from(
    [error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo, error_details_pb2.Help]
)


@many
@given(st.binary(max_size=200), st.sampled_from(list(grpc.StatusCode)), PACKED, st.binary(max_size=60))
def test_statuses(raw: bytes, code: grpc.StatusCode, kind: Any, inner: bytes) -> None:
    packed = any_pb2.Any(type_url=f"type.googleapis.com/{kind.DESCRIPTOR.full_name}", value=inner)
    whole = status_pb2.Status(code=3, message="no", details=[packed, packed]).SerializeToString()
    for details in (raw, whole, whole[:-1]):
        assert isinstance(error_of(Failed(code, details)), RunwayError)
        assert isinstance(refusal_of(Failed(code, details)), Refusal)


def test_profiles(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"

    def decode(text: bytes) -> Target | None:
        profile.write_bytes(text)
        with suppress(RunwayError):
            return read_profile(profile)
        return None

    @many
    @given(st.binary(max_size=60) | JSON.map(lambda data: json.dumps(data).encode()))
    def anything(text: bytes) -> None:
        decode(text)

    @many
    @given(st.fixed_dictionaries({"address": JSON, "api_key": JSON}, optional={"control_address": JSON, "services": JSON}))
    def nearly(data: dict[str, Any]) -> None:
        found = decode(json.dumps(data).encode())
        if found is not None:
            assert isinstance(found.address, str)
            assert all(isinstance(text, str) for text in found.services.values())

    anything()
    nearly()
    good = {"address": "127.0.0.1:1", "api_key": "rk_x", "services": {"launch": "127.0.0.1:2"}}
    found = decode(json.dumps(good).encode())
    assert found is not None
    assert (found.address, found.api_key, dict(found.services)) == ("127.0.0.1:1", "rk_x", good["services"])


def test_lease_tokens() -> None:
    signer = Signer()
    verifier = Verifier(Keys(signer), ManualClock(), audience="here")

    async def refused(token: bytes) -> None:
        with pytest.raises(Refusal) as caught:
            await verifier.verify(token)
        assert caught.value.reason in (Reason.LEASE_INVALID, Reason.INVALID_FIELD)

    @many
    @given(st.binary(max_size=1_100), st.binary(max_size=100), st.binary(max_size=64))
    def anything(raw: bytes, claims: bytes, signature: bytes) -> None:
        forged = lease_pb2.LeaseToken(claims=claims, signature=signature, key_id=signer.public.key_id)
        for token in (raw, forged.SerializeToString()):
            asyncio.run(refused(token))

    anything()
