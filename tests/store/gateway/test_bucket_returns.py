"""What a gateway took ahead of its calls goes back once, whatever becomes of the answer of the commit that takes it back."""

from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

import pytest

from libs.kernel.refusal import Reason, Refusal
from libs.testkit.clocks import ManualClock
from services.gateway.app.draw_buckets import IDLE_MS, Buckets, Decide
from services.gateway.domain.bucket_changes import BucketAsk, Change
from services.gateway.domain.buckets import CALLS, Kind, Name
from services.gateway.domain.effect import Outcome, State
from services.gateway.store.buckets import BucketStore
from tests.store.gateway.harness import Ledger

WHO = Change("ops@example.org", "the provider's limit")
TOKENS = Name(Kind.MODEL, "small", "tokens")
TOOL = Name(Kind.TOOL, "http.request", CALLS)


class Lossy(BucketStore):
    """Loses the answer of the next change: before it happens, or after."""

    lose = ""

    async def change(self, names: Sequence[Name], since_ms: int, decide: Decide) -> None:
        lose, self.lose = self.lose, ""
        if lose == "before":
            raise Refusal(Reason.AUTHORITY_UNREACHABLE, "the database is away")
        await super().change(names, since_ms, decide)
        if lose == "after":
            raise Refusal(Reason.AUTHORITY_UNREACHABLE, "lost", detail={"commit": "unknown"})


class Slow(Lossy):
    """Something comes between a draw and its answer."""

    between: Callable[[], Awaitable[None]] | None = None

    async def change(self, names: Sequence[Name], since_ms: int, decide: Decide) -> None:
        between, self.between = self.between, None
        await super().change(names, since_ms, decide)
        if between is not None:
            await between()


async def gateway(ledger: Ledger, name: Name, capacity: int, per_minute: int = 0) -> tuple[Buckets, Slow, ManualClock]:
    store, clock = Slow(ledger.db), ManualClock()
    await store.put_bucket(name, BucketAsk(capacity, per_minute), WHO, clock.now_ms(), clock.now_ms())
    buckets = Buckets(store, clock)
    await buckets.refresh()
    return buckets, store, clock


async def level(store: BucketStore) -> float:
    (bucket,) = await store.buckets()
    return bucket.level


@pytest.mark.requirement("gw.rate")
@pytest.mark.parametrize(("lose", "there"), [("", 10.0), ("before", 10.0), ("after", 10.0)])
async def test_what_was_taken_ahead_goes_back_once(ledger: Ledger, lose: str, there: float) -> None:
    buckets, store, clock = await gateway(ledger, TOOL, 10)
    nonce = uuid4()
    buckets.hold(nonce, await buckets.take("acme", "http.request", "api", 0))
    assert await level(store) == 9.0
    buckets.withdraw(nonce)
    for _ in range(3):
        clock.advance(IDLE_MS + 1)
        store.lose, lose = lose, ""
        await buckets.give_back()
    assert await level(store) == there


@pytest.mark.requirement("gw.rate")
async def test_a_return_that_nobody_knows_of_does_not_fill_a_bucket_twice(ledger: Ledger) -> None:
    buckets, store, clock = await gateway(ledger, TOOL, 10)
    calls = [uuid4() for _ in range(8)]
    for nonce in calls:
        buckets.hold(nonce, await buckets.take("acme", "http.request", "api", 0))
    for nonce in calls[:3]:
        buckets.withdraw(nonce)
    for _ in range(3):
        clock.advance(IDLE_MS + 1)
        store.lose = "after"
        await buckets.give_back()
    assert await level(store) == 5.0, "five calls are made, so five are left of ten"


@pytest.mark.requirement("gw.rate")
@pytest.mark.parametrize(("lose", "there"), [("", -20.0), ("before", -20.0), ("after", -40.0)])
async def test_what_is_owed_is_owed_until_it_is_known_to_be_paid(ledger: Ledger, lose: str, there: float) -> None:
    buckets, store, clock = await gateway(ledger, TOKENS, 50)
    nonce = uuid4()
    buckets.hold(nonce, await buckets.take("acme", "model:small", "api", 50))
    buckets.settle(nonce, Outcome(State.SUCCEEDED, tokens=70))
    for _ in range(3):
        clock.advance(IDLE_MS + 1)
        store.lose, lose = lose, ""
        await buckets.give_back()
    assert await level(store) == there


@pytest.mark.requirement("gw.rate")
async def test_a_draw_that_takes_its_time_finds_its_stock_given_up(ledger: Ledger) -> None:
    buckets, store, clock = await gateway(ledger, TOOL, 10)

    async def idle() -> None:
        clock.advance(IDLE_MS + 1)
        await buckets.give_back()

    store.between = idle
    nonce = uuid4()
    buckets.hold(nonce, await buckets.take("acme", "http.request", "api", 0))
    assert await level(store) == 9.0
    buckets.withdraw(nonce)
    await idle()
    assert await level(store) == 10.0, "a call that was not made went back"


@pytest.mark.requirement("gw.rate")
async def test_a_bucket_that_is_removed_while_a_call_draws_from_it_bounds_nothing(ledger: Ledger) -> None:
    buckets, store, clock = await gateway(ledger, TOOL, 10)

    async def removed() -> None:
        await store.remove_bucket(TOOL, None, WHO, clock.now_ms())
        await buckets.refresh()

    store.between = removed
    assert (await buckets.take("acme", "http.request", "api", 0)).units
    assert not (await buckets.take("acme", "http.request", "api", 0)).units
