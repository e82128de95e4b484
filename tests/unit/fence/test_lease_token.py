"""Lease tokens: what was signed verifies, anything else does not, and nothing prints them."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from runway.internal.fence.v1 import lease_pb2

from libs.fence.claims import MAX_TOKEN_BYTES, Claims
from libs.fence.token import Signer, Verifier, key_id_of
from libs.kernel.epochs import StepFence
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.testkit.clocks import ManualClock

RUN, ATTEMPT = UUID(int=7), UUID(int=9)


class Rows:
    """Public keys as the scheduler would hold them, counting who asks."""

    def __init__(self, *signers: Signer) -> None:
        self.rows = {s.public.key_id: s.public.public_bytes for s in signers}
        self.asked: list[bytes] = []
        self.away = False

    async def fetch(self, key_id: bytes) -> bytes | None:
        self.asked.append(key_id)
        await asyncio.sleep(0)
        if self.away:
            raise unreachable("the scheduler")
        return self.rows.get(key_id)


def claims(**changed: object) -> Claims:
    given = Claims(
        tenant="acme",
        project="web",
        run_id=RUN,
        step_key="review[3]",
        fence=StepFence(5, 1, ATTEMPT),
        epoch=77,
        points=("gateway", "checkpoint"),
        region="local",
        audience="here",
        issued_at_ms=1_000_000,
        expires_at_ms=1_009_000,
        handler="upkeep@1",
        tools=("git.push",),
        models=("m",),
    )
    return replace(given, **changed)  # type: ignore[arg-type]


async def refused(verifier: Verifier, token: bytes) -> Reason:
    with pytest.raises(Refusal) as no:
        await verifier.verify(token)
    return no.value.reason


async def test_what_was_signed_verifies_and_is_remembered() -> None:
    signer = Signer()
    rows, clock = Rows(signer), ManualClock(now_ms=1_000_000)
    verifier = Verifier(rows, clock, audience="here")
    token = signer.sign(claims())
    lease = await verifier.verify(token)
    assert (lease.run_id, lease.step_key, lease.fence, lease.epoch) == (RUN, "review[3]", StepFence(5, 1, ATTEMPT), 77)
    assert (lease.tenant, lease.project, lease.handler, lease.tools, lease.models) == (
        "acme",
        "web",
        "upkeep@1",
        ("git.push",),
        ("m",),
    )
    assert not lease.expired
    assert await verifier.verify(token) is lease
    assert len(rows.asked) == 1


@pytest.mark.parametrize("where", range(0, 330, 3))
async def test_any_flipped_byte_is_refused(where: int) -> None:
    signer = Signer()
    token = bytearray(signer.sign(claims()))
    token[where % len(token)] ^= 0x41
    assert (
        await refused(Verifier(Rows(signer), ManualClock(now_ms=1_000_000), audience="here"), bytes(token))
        is Reason.LEASE_INVALID
    )


async def test_a_forged_token_under_a_known_key_id_is_refused() -> None:
    honest, forger = Signer(), Signer()
    forged = lease_pb2.LeaseToken.FromString(forger.sign(claims(tenant="other")))
    forged.key_id = honest.public.key_id
    assert (
        await refused(Verifier(Rows(honest), ManualClock(now_ms=1_000_000), audience="here"), forged.SerializeToString())
        is Reason.LEASE_INVALID
    )


async def test_a_row_that_holds_another_key_does_not_pass() -> None:
    honest, forger = Signer(), Signer()
    rows = Rows(honest)
    rows.rows[honest.public.key_id] = forger.public.public_bytes
    forged = lease_pb2.LeaseToken.FromString(forger.sign(claims()))
    forged.key_id = honest.public.key_id
    assert key_id_of(forger.public.public_bytes) != honest.public.key_id
    assert (
        await refused(Verifier(rows, ManualClock(now_ms=1_000_000), audience="here"), forged.SerializeToString())
        is Reason.LEASE_INVALID
    )


async def test_a_token_of_another_installation_is_refused() -> None:
    signer = Signer()
    assert (
        await refused(Verifier(Rows(signer), ManualClock(now_ms=1_000_000), audience="there"), signer.sign(claims()))
        is Reason.LEASE_INVALID
    )


async def test_unknown_keys_are_asked_for_once_then_again_after_a_while() -> None:
    signer = Signer()
    rows, clock = Rows(), ManualClock(now_ms=1_000_000)
    verifier = Verifier(rows, clock, audience="here", unknown_key_ttl_ms=2_000)
    token = signer.sign(claims())
    outcomes = await asyncio.gather(*[refused(verifier, token) for _ in range(20)])
    assert set(outcomes) == {Reason.LEASE_INVALID}
    assert len(rows.asked) == 1
    rows.rows[signer.public.key_id] = signer.public.public_bytes
    assert await refused(verifier, token) is Reason.LEASE_INVALID
    clock.advance(2_000)
    assert (await verifier.verify(token)).tenant == "acme"


async def test_an_expired_token_verifies_and_says_so() -> None:
    signer, clock = Signer(), ManualClock(now_ms=1_000_000)
    verifier = Verifier(Rows(signer), clock, audience="here")
    token = signer.sign(claims())
    assert not (await verifier.verify(token)).expired
    clock.jump(9_000)
    assert (await verifier.verify(token)).expired
    clock.jump(-1)
    assert not (await verifier.verify(token)).expired


async def test_where_the_authority_is_away_nothing_is_decided_nor_remembered() -> None:
    signer = Signer()
    rows = Rows(signer)
    verifier = Verifier(rows, ManualClock(now_ms=1_000_000), audience="here")
    rows.away = True
    assert await refused(verifier, signer.sign(claims())) is Reason.AUTHORITY_UNREACHABLE
    rows.away = False
    assert (await verifier.verify(signer.sign(claims()))).tenant == "acme"


async def test_a_deleted_key_is_forgotten_with_the_tokens_it_signed() -> None:
    signer, clock = Signer(), ManualClock(now_ms=1_000_000)
    rows = Rows(signer)
    verifier = Verifier(rows, clock, audience="here", key_ttl_ms=60_000)
    token = signer.sign(claims())
    await verifier.verify(token)
    rows.rows.clear()
    clock.advance(60_000)
    assert await refused(verifier, token) is Reason.LEASE_INVALID


async def test_what_passed_is_bounded() -> None:
    signer = Signer()
    verifier = Verifier(Rows(signer), ManualClock(now_ms=1_000_000), audience="here", max_tokens=3)
    leases = [await verifier.verify(signer.sign(claims(step_key=f"s{n}"))) for n in range(5)]
    assert await verifier.verify(signer.sign(claims(step_key="s4"))) is leases[4]
    assert await verifier.verify(signer.sign(claims(step_key="s0"))) is not leases[0]


def test_a_token_that_could_not_travel_is_never_made() -> None:
    with pytest.raises(Refusal) as no:
        Signer().sign(claims(tools=tuple(f"tool-with-a-long-name-{n}" for n in range(60))))
    assert no.value.reason is Reason.TOO_LARGE
    assert len(Signer().sign(claims())) < MAX_TOKEN_BYTES


def test_nothing_prints_a_token_or_a_private_key() -> None:
    signer = Signer()
    token = signer.sign(claims())
    assert "acme" not in f"{token!r} {token} {[token]}"
    assert "Private" not in repr(signer)


async def test_a_service_outside_the_contract_is_refused() -> None:
    signer = Signer()
    lease = await Verifier(Rows(signer), ManualClock(now_ms=1_000_000), audience="here").verify(signer.sign(claims()))
    lease.require_point("gateway")
    with pytest.raises(Refusal) as no:
        lease.require_point("scheduler")
    assert no.value.reason is Reason.CAPABILITY_DENIED
