"""The relay on real PostgreSQL: at least once, whatever the receiver, the wire and the relay itself do."""

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.outbox import (
    OUTBOX_SQL,
    Outgoing,
    SendResult,
    Verdict,
    append,
    dead_letters,
    discard,
    requeue,
    undelivered,
)
from libs.pg import Database
from libs.testkit import wait_until
from libs.testkit.databases import prepare_all
from tests.store.outbox.stand import NOTE, NOTES, QUICK, Receiver, Stand


async def test_every_statement_fits_the_schema(url: str) -> None:
    await prepare_all(url, [OUTBOX_SQL])


async def test_offered_events_are_delivered_once_and_their_rows_go(stand: Stand) -> None:
    async with stand.relay() as relay:
        await relay.idle()
        events = [stand.event(str(n)) for n in range(20)]
        await stand.commit(*events)
        relay.offer(events)
        relay.offer(events)
        await relay.idle()
    assert sorted(stand.receiver.applied) == sorted(event.payload for event in events)
    assert await stand.rows() == set()


async def test_an_event_is_stored_with_its_fact_or_not_at_all(stand: Stand) -> None:
    with pytest.raises(LookupError):
        async with stand.db.tx() as tx:
            await append(tx, [stand.event("never")], 1)
            raise LookupError
    assert await stand.rows() == set()
    event = stand.event("once")
    await stand.commit(event)
    await stand.commit(event)
    await stand.commit()
    assert await stand.rows() == {event.event_id}


async def test_events_that_nobody_offered_are_found_at_the_start_and_later_by_the_sweep(stand: Stand) -> None:
    await stand.commit(stand.event("left behind"))
    async with stand.relay() as relay:
        await relay.idle()
        assert stand.receiver.applied == [b"left behind"]
        await stand.commit(stand.event("commit answer was lost"))
        stand.clock.advance(QUICK.hand_over_ms + 1)
        await wait_until(lambda: len(stand.receiver.applied) == 2)
        await relay.idle()
    assert await stand.rows() == set()


async def test_a_young_row_is_left_to_its_writer(stand: Stand) -> None:
    async with stand.relay() as relay:
        await relay.idle()
        await stand.commit(stand.event("young"))
        sweeps: list[int] = []
        swept = relay._sweep

        async def counted(*, everything: bool) -> int:
            sweeps.append(await swept(everything=everything))
            return sweeps[-1]

        relay._sweep = counted  # type: ignore[method-assign]
        await wait_until(lambda: len(sweeps) >= 3)
        assert sweeps == [0] * len(sweeps)
        assert stand.receiver.calls == []
        stand.clock.advance(QUICK.hand_over_ms + 1)
        await wait_until(lambda: stand.receiver.applied == [b"young"])


async def test_a_receiver_that_is_away_gets_everything_when_it_is_back(stand: Stand) -> None:
    stand.receiver.away = ConnectionError("away")
    events = [stand.event(str(n)) for n in range(5)]
    await stand.commit(*events)
    async with stand.relay() as relay:
        await wait_until(lambda: len(stand.receiver.calls) >= 4)
        assert await stand.rows() == {event.event_id for event in events}
        stand.receiver.away = None
        await relay.idle()
    assert sorted(stand.receiver.applied) == [b"0", b"1", b"2", b"3", b"4"]
    assert await stand.rows() == set()


async def test_a_receiver_that_is_silent_is_given_up_on_in_time(stand: Stand) -> None:
    stand.receiver.hold.clear()
    async with stand.relay(settings=dataclasses.replace(QUICK, send_timeout_ms=20)) as relay:
        event = stand.event("slow")
        await stand.commit(event)
        relay.offer([event])
        await wait_until(lambda: len(stand.receiver.calls) >= 2)
        stand.receiver.hold.set()
        await relay.idle()
    assert await stand.rows() == set()


async def test_each_event_goes_by_its_own_verdict(stand: Stand) -> None:
    tries: dict[bytes, int] = {}
    buried: list[tuple[Outgoing, str]] = []

    def judge(payload: bytes) -> tuple[Verdict, str, bytes]:
        tries[payload] = tries.get(payload, 0) + 1
        if payload == b"never":
            return Verdict.REFUSED, "no such run", b""
        if payload == b"later" and tries[payload] < 4:
            return (Verdict.RETRY if tries[payload] % 2 else Verdict.UNSPECIFIED), "not yet", b""
        return Verdict.APPLIED, "", b""

    stand.receiver.judge = judge
    good, later, never = stand.event("good"), stand.event("later"), stand.event("never")
    await stand.commit(good, later, never)
    async with stand.relay(on_dead_letter=lambda event, reason: buried.append((event, reason))) as relay:
        relay.offer([good, later, never])
        await relay.idle()
    assert tries == {b"good": 1, b"later": 4, b"never": 1}
    assert await stand.rows() == set()
    assert buried == [(never, "no such run")]
    (dead,) = await dead_letters(stand.db)
    assert (dead.event_id, dead.reason, dead.kind, dead.key) == (never.event_id, "no such run", "run_launched", never.key)


async def test_an_answer_that_is_too_short_means_send_again(stand: Stand) -> None:
    class Short(Receiver):
        async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
            whole = await super().send(receiver, lane, payloads)
            return SendResult(whole.incarnation, whole.verdicts[:1])

    stand.receiver = Short()
    await stand.commit(*(stand.event(str(n)) for n in range(3)))
    async with stand.relay() as relay:
        await relay.idle()
    assert set(stand.receiver.applied) == {b"0", b"1", b"2"}
    assert len(stand.receiver.calls) >= 3


async def test_one_unreadable_event_does_not_hold_up_its_batch(stand: Stand) -> None:
    class Strict(Receiver):
        async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
            if b"garbage" in payloads:
                self.calls.append((receiver, lane, list(payloads)))
                raise invalid_field("events", "cannot be read", "send events")
            return await super().send(receiver, lane, payloads)

    stand.receiver = Strict()
    await stand.commit(*(stand.event(text) for text in ("a", "b", "garbage", "c", "d")))
    async with stand.relay() as relay:
        await relay.idle()
    assert sorted(stand.receiver.applied) == [b"a", b"b", b"c", b"d"]
    assert [dead.reason for dead in await dead_letters(stand.db)] == ["INVALID_FIELD: events cannot be read"]


async def test_an_event_that_the_receiver_fails_over_waits_alone(stand: Stand) -> None:
    class Failing(Receiver):
        fails = True

        async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
            if self.fails and b"poison" in payloads:
                raise Refusal(Reason.INTERNAL, "an unexpected fault")
            return await super().send(receiver, lane, payloads)

    stand.receiver = receiver = Failing()
    await stand.commit(*(stand.event(text) for text in ("a", "b", "poison", "c", "d")))
    async with stand.relay() as relay:
        await wait_until(lambda: len(receiver.applied) == 4)
        later = stand.event("later")
        await stand.commit(later)
        relay.offer([later])
        await wait_until(lambda: b"later" in receiver.applied)
        assert not await dead_letters(stand.db)
        receiver.fails = False
        await relay.idle()
    assert sorted(receiver.applied) == [b"a", b"b", b"c", b"d", b"later", b"poison"]


async def test_dead_letters_are_requeued_or_discarded(stand: Stand) -> None:
    stand.receiver.judge = lambda payload: (Verdict.REFUSED, "broken", b"")
    first, second = stand.event("first"), stand.event("second")
    await stand.commit(first, second)
    async with stand.relay() as relay:
        await relay.idle()
        assert len(await dead_letters(stand.db)) == 2
        stand.receiver.judge = lambda payload: (Verdict.APPLIED, "", b"")
        assert await discard(stand.db, [second.event_id]) == [second.event_id]
        assert await requeue(stand.db, [first.event_id, second.event_id]) == [first.event_id]
        await relay.idle()
    assert stand.receiver.applied == [b"first"]
    assert await dead_letters(stand.db) == []


async def test_a_relay_killed_between_send_and_delete_sends_again(stand: Stand) -> None:
    event = stand.event("twice")
    await stand.commit(event)
    never = dataclasses.replace(QUICK, acknowledge_every_ms=60_000)
    async with stand.relay(settings=never):
        await wait_until(lambda: stand.receiver.applied == [b"twice"])
    assert await stand.rows() == {event.event_id}
    async with stand.relay() as relay:
        await relay.idle()
    assert stand.receiver.applied == [b"twice", b"twice"]
    assert await stand.rows() == set()


async def test_a_relay_killed_while_it_sends_sends_again(stand: Stand) -> None:
    await stand.commit(stand.event("again"))
    stand.receiver.hold.clear()
    async with stand.relay():
        await stand.receiver.arrived.wait()
    stand.receiver.hold.set()
    async with stand.relay() as relay:
        await relay.idle()
    assert stand.receiver.applied == [b"again"]


async def test_several_relays_share_the_table_without_losing_or_holding_up_each_other(stand: Stand, url: str) -> None:
    events = [stand.event(str(n)) for n in range(300)]
    await stand.commit(*events)
    stand.clock.advance(QUICK.hand_over_ms + 1)
    async with AsyncExitStack() as stack:
        relays = []
        for number in range(3):
            db = Database(url, name=f"relay-{number}", size=2)
            await db.open()
            stack.push_async_callback(db.close)
            relays.append(await stack.enter_async_context(stand.relay(db=db)))
        await asyncio.gather(*(relay.idle() for relay in relays))
    assert set(stand.receiver.applied) == {event.payload for event in events}
    assert await stand.rows() == set()


async def test_two_sweeps_at_once_take_different_rows(stand: Stand) -> None:
    await stand.commit(*(stand.event(str(n)) for n in range(10)))
    now = stand.clock.now_ms() + 10_000
    arguments, aside = (now, now, now + 30_000, now + 60_000), now + 360_000
    async with stand.db.tx() as one, stand.db.tx() as other:
        first = await one.fetch(OUTBOX_SQL.claim, *arguments, 6, [], [], False, aside)
        second = await other.fetch(OUTBOX_SQL.claim, *arguments, 100, [], [], False, aside)
    assert (len(first), len(second)) == (6, 4)
    assert {row["event_id"] for row in first}.isdisjoint(row["event_id"] for row in second)
    assert await stand.db.fetch(OUTBOX_SQL.claim, *arguments, 100, [], [], False, aside) == [], "they have them for a while"


async def test_a_claim_outlives_neither_its_time_nor_a_clock_that_was_set_back(stand: Stand) -> None:
    await stand.commit(stand.event("x"))

    async def claim(now: int) -> int:
        nobody: list[str] = []
        times = (now, now - 2_000, now + 30_000, now + 60_000)
        return len(await stand.db.fetch(OUTBOX_SQL.claim, *times, 100, nobody, nobody, False, now + 360_000))

    now = stand.clock.now_ms() + 10_000
    assert await claim(now) == 1
    assert await claim(now + 29_999) == 0
    assert await claim(now + 30_001) == 1
    assert await claim(now - 3_600_000) == 1


async def test_answers_are_committed_before_their_rows_go(stand: Stand) -> None:
    stand.receiver.judge = lambda payload: (Verdict.APPLIED, "", b"answer to " + payload)
    failures = 2
    rows_seen: list[set[UUID]] = []

    async def on_answers(answers: list[tuple[Outgoing, bytes]]) -> None:
        nonlocal failures
        rows_seen.append(await stand.rows())
        if failures:
            failures -= 1
            raise Refusal(Reason.AUTHORITY_UNREACHABLE, "the owner could not commit")
        await stand.db.fetch(NOTE, [event.event_id for event, _ in answers], [answer.decode() for _, answer in answers])

    event = stand.event("raise", receiver="gateway", kind="raise_fences")
    await stand.commit(event)
    async with stand.relay(on_answers=on_answers) as relay:
        await relay.idle()
    assert rows_seen == [{event.event_id}] * 3
    assert [row["note"] for row in await stand.db.fetch(NOTES)] == ["answer to raise"]
    assert await stand.rows() == set()
    assert stand.receiver.calls == [("gateway", "raise", [b"raise"])] * 3


async def test_events_without_an_answer_do_not_call_the_hook(stand: Stand) -> None:
    async def on_answers(answers: list[tuple[Outgoing, bytes]]) -> None:
        pytest.fail("there was no answer")

    await stand.commit(stand.event("plain"))
    async with stand.relay(on_answers=on_answers) as relay:
        await relay.idle()
    assert stand.receiver.applied == [b"plain"]


async def test_a_lane_that_hangs_holds_up_no_other(stand: Stand) -> None:
    stand.receiver.hold.clear()
    small = dataclasses.replace(QUICK, batch_events=1)
    stuck = [stand.event(str(n)) for n in range(6)]
    urgent = stand.event("urgent", kind="raise_fences")
    elsewhere = stand.event("elsewhere", receiver="scheduler")
    async with stand.relay(settings=small) as relay:
        for events in (stuck, [urgent], [elsewhere]):
            await stand.commit(*events)
            relay.offer(events)
        await wait_until(lambda: len(stand.receiver.calls) == 4)
        assert {(receiver, lane) for receiver, lane, _ in stand.receiver.calls} == {
            ("readiness", "event"), ("readiness", "raise"), ("scheduler", "event"),
        }  # fmt: skip
        stand.receiver.hold.set()
        await relay.idle()
    assert stand.receiver.most_in_flight[("readiness", "event")] == 2
    assert len(stand.receiver.applied) == 8


async def test_what_memory_has_no_room_for_is_delivered_from_the_table(stand: Stand) -> None:
    events = [stand.event(str(n)) for n in range(50)]
    tight = dataclasses.replace(QUICK, lane_events=7, batch_events=5, page_rows=4)
    await stand.commit(*events)
    async with stand.relay(settings=tight) as relay:
        relay.offer(events)
        assert relay.pending <= 7
        stand.clock.advance(QUICK.hand_over_ms + 1)
        await relay.idle()
    assert set(stand.receiver.applied) == {event.payload for event in events}
    assert await stand.rows() == set()


async def test_a_receiver_without_room_does_not_starve_the_others(stand: Stand) -> None:
    class HalfAway(Receiver):
        async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
            if receiver == "readiness":
                raise ConnectionError("away")
            return await super().send(receiver, lane, payloads)

    stand.receiver = HalfAway()
    await stand.commit(*(stand.event(str(n)) for n in range(40)))
    await stand.commit(stand.event("for the scheduler", receiver="scheduler"))
    tight = dataclasses.replace(QUICK, lane_events=3, page_rows=5)
    async with stand.relay(settings=tight):
        stand.clock.advance(QUICK.hand_over_ms + 1)
        await wait_until(lambda: stand.receiver.applied == [b"for the scheduler"])

        async def only_the_stuck_are_left() -> bool:
            return len(await stand.rows()) == 40

        await wait_until(only_the_stuck_are_left)
    stuck = await undelivered(stand.db, stand.clock.now_ms())
    assert len(stuck) == 40
    assert {row.receiver for row in stuck} == {"readiness"}
    assert await undelivered(stand.db, 0) == []
