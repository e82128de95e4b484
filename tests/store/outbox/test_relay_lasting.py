"""The relay over outages, incarnations and time."""

import asyncio
import dataclasses
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

import pytest

from libs.outbox import (
    OUTBOX_SQL,
    SendResult,
    Verdict,
)
from libs.pg import Database, Statement
from libs.rpc.identity import Call, enter_call, in_call
from libs.testkit import FaultProxy, wait_until
from tests.store.outbox.stand import KEPT, QUICK, ROWS, Receiver, Stand


async def test_acknowledgements_survive_an_outage_of_our_database(
    stand: Stand, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    parts = urlsplit(url)
    async with FaultProxy(parts.port or 0) as proxy:
        near = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"))
        db = Database(near, name="cut", size=2, acquire_timeout_ms=500)
        await db.open()
        async with stand.relay(db=db) as relay:
            await relay.idle()
            stand.receiver.hold.clear()
            event = stand.event("before")
            await stand.commit(event)
            relay.offer([event])
            await stand.receiver.arrived.wait()
            proxy.refuse()
            stand.receiver.hold.set()
            await wait_until(lambda: stand.receiver.applied == [b"before"])
            await wait_until(lambda: "the outbox cannot be read" in caplog.text)
            await stand.commit(stand.event("not offered: its commit's answer was lost"))
            assert len(await stand.rows()) == 2
            proxy.heal()
            await wait_until(lambda: len(stand.receiver.applied) == 2)
            await relay.idle()
        await db.close()
    assert await stand.rows() == set()


async def test_a_send_belongs_to_no_call_and_neither_do_its_retries(stand: Stand) -> None:
    """The call that offered the event has a deadline of its own; a retry that inherits it is over before it begins, for ever."""
    seen: list[object] = []

    def judge(payload: bytes) -> tuple[Verdict, str, bytes]:
        seen.append(in_call())
        return (Verdict.APPLIED if len(seen) > 3 else Verdict.RETRY), "", b""

    stand.receiver.judge = judge
    async with stand.relay() as relay:
        await relay.idle()
        event = stand.event("offered by a handler")
        await stand.commit(event)

        async def handler() -> None:
            enter_call(Call(None, None, b"", 1, "/of/some.handler", asyncio.get_running_loop().time()))
            relay.offer([event])

        await asyncio.create_task(handler())
        await relay.idle()
    assert seen == [None] * 4


async def test_an_incarnation_of_our_own_makes_memory_forget_what_the_table_lost(stand: Stand) -> None:
    stand.receiver.away = ConnectionError("away")
    lost, kept = stand.event("lost in the failover"), stand.event("kept")
    async with stand.relay() as relay:
        await relay.idle()
        await stand.commit(kept)
        relay.offer([lost, kept])
        await wait_until(lambda: len(stand.receiver.calls) >= 2)
        stand.db._announce()  # as a connection that meets a newer incarnation does
        stand.receiver.away = None
        await relay.idle()
    assert stand.receiver.applied == [b"kept"]


KEEPING = dataclasses.replace(QUICK, keep_ms=3_600_000)


async def test_kept_events_are_sent_again_when_the_receiver_changed_its_incarnation(stand: Stand) -> None:
    first, second = stand.event("first"), stand.event("second")
    async with stand.relay(settings=KEEPING) as relay:
        await stand.commit(first)
        relay.offer([first])
        await relay.idle()
        assert await stand.rows() == set()
        assert [tuple(row) for row in await stand.db.fetch(KEPT)] == [(first.event_id, 256)]
        assert stand.receiver.applied.count(b"first") >= 1
        stand.receiver.applied.clear()
        stand.receiver.incarnation = 512
        await stand.commit(second)
        relay.offer([second])
        await wait_until(lambda: {b"first", b"second"} <= set(stand.receiver.applied))
        await relay.idle()
    assert {(row["event_id"], row["incarnation"]) for row in await stand.db.fetch(KEPT)} == {
        (first.event_id, 512), (second.event_id, 512),
    }  # fmt: skip


async def test_a_new_incarnation_is_noticed_without_traffic_and_after_a_restart(stand: Stand) -> None:
    events = [stand.event(str(n)) for n in range(3)]
    await stand.commit(*events)
    async with stand.relay(settings=KEEPING) as relay:
        await relay.idle()
    assert len(await stand.db.fetch(KEPT)) == 3
    stand.receiver.applied.clear()
    stand.receiver.incarnation = 512
    async with stand.relay(settings=KEEPING) as relay:
        await wait_until(lambda: set(stand.receiver.applied) == {b"0", b"1", b"2"})
        await relay.idle()
        stand.receiver.applied.clear()
        stand.receiver.incarnation = 768
        await wait_until(lambda: set(stand.receiver.applied) == {b"0", b"1", b"2"})
        await relay.idle()


async def test_kept_events_are_dropped_by_age(stand: Stand) -> None:
    await stand.commit(stand.event("old"))
    async with stand.relay(settings=KEEPING) as relay:
        await relay.idle()
        assert len(await stand.db.fetch(KEPT)) == 1
        stand.clock.advance(KEEPING.keep_ms + 1)

        async def empty() -> bool:
            return not await stand.db.fetch(KEPT)

        await wait_until(empty)


async def test_deleting_does_not_wait_for_the_disk(stand: Stand) -> None:
    """The setting is the transaction's own: the session's is as it was."""
    show = Statement("show", "SELECT current_setting('synchronous_commit') AS value")
    event = stand.event("gone")
    await stand.commit(event)
    async with stand.db.tx() as tx:
        await tx.fetch(OUTBOX_SQL.forget, [event.event_id])
        assert (await tx.fetch(show))[0]["value"] == "off"
    assert (await stand.db.fetch(show))[0]["value"] == "on"
    assert await stand.rows() == set()


async def test_a_relay_runs_once_at_a_time(stand: Stand) -> None:
    async with stand.relay() as relay:
        await relay.idle()
        with pytest.raises(RuntimeError, match="runs already"):
            await relay.run()


async def test_time_that_passes_between_two_looks_at_the_clock_loses_no_event(stand: Stand) -> None:
    async with stand.relay(settings=dataclasses.replace(QUICK, spacing_ms=50)) as relay:
        loop, looks = asyncio.get_running_loop(), 0

        def jumping() -> float:  # every second look is late by the time that batches of a busy lane wait for company
            nonlocal looks
            looks += 1
            return loop.time() + looks % 2 * 0.050

        relay._now_s = jumping  # type: ignore[method-assign]
        for number in range(12):
            events = [stand.event(f"{number}-{each}") for each in range(1 + number % 3)]
            await stand.commit(*events)
            relay.offer(events)
            await wait_until(lambda: relay.pending == 0)
    assert len(stand.receiver.applied) == 24


async def test_the_timer_of_a_long_pause_does_not_stand_for_the_short_wait_after_it(stand: Stand) -> None:
    """One batch fails and the lane pauses long; the other is answered and ends the pause: what comes then goes soon."""
    settings = dataclasses.replace(QUICK, batch_events=2, spacing_ms=20, retry_first_ms=60_000, retry_longest_ms=60_000)
    failing, answered, late = (
        [stand.event(f"{name}{n}") for n in range(count)] for name, count in (("f", 2), ("a", 2), ("l", 1))
    )
    fails, answers = asyncio.Event(), asyncio.Event()
    calls = 0

    async def send(receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
        nonlocal calls
        calls += 1
        if calls == 1:
            await fails.wait()
            raise ConnectionError("away")
        if calls == 2:
            await answers.wait()
        return await Receiver.send(stand.receiver, receiver, lane, payloads)

    stand.receiver.send = send  # type: ignore[method-assign]
    async with stand.relay(settings=dataclasses.replace(settings, sweep_every_ms=60_000)) as relay:
        await relay.idle()
        now_s = 1_000.0
        relay._now_s = lambda: now_s  # type: ignore[method-assign]
        await stand.commit(*failing, *answered, *late)
        relay.offer([*failing, *answered])
        await wait_until(lambda: calls == 2)
        fails.set()
        lane = relay._lanes["readiness", "event"]
        await wait_until(lambda: lane.in_flight == 1)
        answers.set()
        await wait_until(lambda: len(stand.receiver.applied) == 4 and lane.in_flight == 0)
        relay.offer(late)
        await asyncio.wait_for(stand.db.fetch(ROWS), 5)
        now_s += 1
        await wait_until(lambda: b"l0" in stand.receiver.applied, timeout_s=5)
