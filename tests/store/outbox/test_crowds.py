"""Crowds that a receiver does not want now: they keep nobody out, come back in pages, and none is lost; on real PostgreSQL."""

import asyncio
import dataclasses

import pytest

from libs.kernel.refusal import Reason, Refusal
from libs.outbox import Verdict
from libs.outbox import store as rows_of
from libs.testkit import wait_until
from tests.store.outbox.stand import QUICK, Stand

CROWDED = dataclasses.replace(QUICK, crowd_events=8, aside_page=4, aside_every_ms=30, lane_events=40, batch_events=20)
NOT_NOW = (Verdict.RETRY, "tenant a has as many as it may", b"")


class Door:
    """Takes events whose text begins with the name of a tenant that is let in; counts refusals."""

    def __init__(self, stand: Stand, *, closed: str) -> None:
        self.closed = set(closed)
        self.room = 0
        self.refused = 0
        stand.receiver.judge = self.judge

    def judge(self, payload: bytes) -> tuple[Verdict, str, bytes]:
        if chr(payload[0]) not in self.closed:
            return Verdict.APPLIED, "", b""
        if self.room:
            self.room -= 1
            return Verdict.APPLIED, "", b""
        self.refused += 1
        return NOT_NOW


@pytest.mark.requirement("sched.bulkheads")
async def test_anothers_events_pass_a_crowd_that_is_larger_than_the_lane(stand: Stand) -> None:
    door = Door(stand, closed="a")
    crowd = [stand.event(f"a{n}") for n in range(200)]
    await stand.commit(*crowd)
    stand.clock.advance(CROWDED.hand_over_ms + 1)
    async with stand.relay(settings=CROWDED) as relay:
        relay.offer(crowd)
        await wait_until(lambda: door.refused >= 200, what="the whole crowd refused once")
        for n in range(60):
            mine = stand.event(f"b{n}")
            await stand.commit(mine)
            relay.offer([mine])
            await wait_until(lambda m=mine: m.payload in stand.receiver.applied, 5.0, what="another tenant's event")
        assert relay.why(crowd[0].event_id) == NOT_NOW[1] or relay.why(crowd[199].event_id) == NOT_NOW[1]
        assert relay.pending <= CROWDED.lane_events
        assert len(await stand.rows()) >= 200, "what is not wanted waits in the table"
        door.closed.clear()
        await wait_until(lambda: len(set(stand.receiver.applied)) == 260, what="the crowd, once it is wanted")
        await relay.idle()
    assert await stand.rows() == set()


@pytest.mark.requirement("sched.bulkheads")
async def test_room_is_filled_page_after_page_and_a_crowd_that_is_not_wanted_costs_little(stand: Stand) -> None:
    door = Door(stand, closed="a")
    crowd = [stand.event(f"a{n}") for n in range(300)]
    await stand.commit(*crowd)
    async with stand.relay(settings=dataclasses.replace(CROWDED, lane_events=1_000, aside_every_ms=200)) as relay:
        relay.offer(crowd)
        await wait_until(lambda: len(relay._recall._aside) >= 280, what="the crowd put aside")
        before = len(stand.receiver.applied)
        door.room = 250
        await wait_until(lambda: len(stand.receiver.applied) - before == 250, 5.0, what="250 taken")
        assert door.room == 0
        relayed = stand.receiver.calls
        sent = sum(len(payloads) for _, _, payloads in relayed)
        assert sent < 300 + 250 + 8 * 400, "each page once, and a few by themselves"
        door.closed.clear()
        await wait_until(lambda: len(stand.receiver.applied) == 300)
        await relay.idle()
    assert len(set(stand.receiver.applied)) == 300


@pytest.mark.requirement("sched.bulkheads")
async def test_a_relay_that_dies_leaves_its_crowd_to_the_next(stand: Stand) -> None:
    door = Door(stand, closed="a")
    await stand.commit(*(stand.event(f"a{n}") for n in range(100)))
    stand.clock.advance(CROWDED.hand_over_ms + 1)
    async with stand.relay(settings=CROWDED) as relay:
        await wait_until(lambda: len(relay._recall._aside) >= 60)
    door.closed.clear()
    async with stand.relay(settings=CROWDED) as relay:
        await relay.idle()
    assert len(set(stand.receiver.applied)) == 100
    assert await stand.rows() == set()


async def test_another_relays_crowd_is_left_alone_until_its_time_has_passed(stand: Stand) -> None:
    event = stand.event("a")
    await stand.commit(event)
    now_ms = stand.clock.now_ms()
    await rows_of.put_aside(stand.db, [event], now_ms + CROWDED.aside_ms)

    async def swept(at_ms: int) -> int:
        return len(await rows_of.claim(stand.db, CROWDED, at_ms, at_ms + CROWDED.claim_ms, [], everything=False))

    assert await swept(now_ms + 5_000) == 0
    assert await swept(now_ms + CROWDED.aside_ms + 1) == 1


async def test_where_the_table_is_away_the_crowd_stays_in_memory(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(stand, closed="a")
    tried = asyncio.Event()

    async def away(*_: object) -> None:
        tried.set()
        raise Refusal(Reason.AUTHORITY_UNREACHABLE, "the database is away")

    monkeypatch.setattr("libs.outbox.recall.store.put_aside", away)
    await stand.commit(*(stand.event(f"a{n}") for n in range(30)))
    async with stand.relay(settings=CROWDED) as relay:
        await tried.wait()
        assert relay.pending == 30
        door.closed.clear()
        await relay.idle()
    assert len(set(stand.receiver.applied)) == 30
