"""The batcher: what gathers, what goes at once, and whom a fault reaches."""

import asyncio
from collections.abc import Sequence

import pytest

from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.rpc.batcher import Batcher
from libs.rpc.identity import Call, enter_call, in_call
from libs.testkit.waiting import wait_until

WAIT_S = 5


class Recorder:
    """A handler that records its batches and holds them until it is let go."""

    def __init__(self, *, held: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.changed = asyncio.Condition()
        self.go = asyncio.Semaphore(0 if held else 1_000_000)

    async def handle(self, items: list[int]) -> Sequence[int | Refusal]:
        async with self.changed:
            self.batches.append(items)
            self.changed.notify_all()
        await self.go.acquire()
        return [item * 10 for item in items]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: len(self.batches) >= count)


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_lonely_call_goes_at_once_also_right_after_another_one() -> None:
    recorder = Recorder(held=False)
    batcher = Batcher(recorder.handle, name="t", spacing_ms=60_000)
    async with asyncio.timeout(WAIT_S):
        assert [await batcher.submit(n) for n in range(5)] == [0, 10, 20, 30, 40]
    assert recorder.batches == [[0], [1], [2], [3], [4]]


async def test_calls_of_one_moment_share_a_batch_in_their_order() -> None:
    recorder = Recorder(held=False)
    batcher = Batcher(recorder.handle, name="t")
    assert await asyncio.gather(*(batcher.submit(n) for n in range(4))) == [0, 10, 20, 30]
    assert recorder.batches == [[0, 1, 2, 3]]


async def test_at_most_two_batches_are_in_flight_and_the_rest_gathers() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.handle, name="t", spacing_ms=0)
    calls = [asyncio.create_task(batcher.submit(1))]
    await recorder.until(1)
    calls.append(asyncio.create_task(batcher.submit(2)))
    await recorder.until(2)
    calls += [asyncio.create_task(batcher.submit(n)) for n in (3, 4, 5)]
    await ticks()
    assert recorder.batches == [[1], [2]]
    recorder.go.release()
    await recorder.until(3)
    assert recorder.batches[2] == [3, 4, 5]
    recorder.go.release()
    recorder.go.release()
    assert await asyncio.gather(*calls) == [10, 20, 30, 40, 50]


async def test_starts_are_spaced_while_a_batch_is_in_flight_and_a_full_batch_does_not_wait() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.handle, name="t", spacing_ms=60_000, max_batch=3)
    calls = [asyncio.create_task(batcher.submit(1))]
    await recorder.until(1)
    calls += [asyncio.create_task(batcher.submit(n)) for n in (2, 3)]
    await ticks()
    assert recorder.batches == [[1]], "two waiting calls are spaced behind the one in flight"
    calls.append(asyncio.create_task(batcher.submit(4)))
    await recorder.until(2)
    assert recorder.batches[1] == [2, 3, 4]
    recorder.go.release()
    recorder.go.release()
    assert await asyncio.gather(*calls) == [10, 20, 30, 40]


async def test_what_gathered_behind_a_lonely_call_goes_when_that_ends() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.handle, name="t", spacing_ms=60_000)
    calls = [asyncio.create_task(batcher.submit(1))]
    await recorder.until(1)
    calls += [asyncio.create_task(batcher.submit(n)) for n in (2, 3)]
    await ticks()
    recorder.go.release()
    await recorder.until(2)
    assert recorder.batches[1] == [2, 3]
    recorder.go.release()
    await asyncio.gather(*calls)


async def test_one_bad_item_never_fails_its_neighbours() -> None:
    async def handle(items: list[int]) -> Sequence[int | Refusal]:
        return [invalid_field("n", "is odd", "send an even one") if item % 2 else item for item in items]

    batcher = Batcher(handle, name="t")
    first, second, third = await asyncio.gather(*(batcher.submit(n) for n in (2, 3, 4)), return_exceptions=True)
    assert (first, third) == (2, 4)
    assert isinstance(second, Refusal)
    assert second.field == "n"


async def test_a_fault_fails_its_own_batch_with_a_trace_and_no_internals() -> None:
    seen: list[list[int]] = []

    async def handle(items: list[int]) -> Sequence[int | Refusal]:
        seen.append(items)
        if len(seen) == 1:
            raise RuntimeError("the password is hunter2")
        return items

    batcher = Batcher(handle, name="t")
    broken = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
    assert all(isinstance(error, Refusal) and error.reason is Reason.INTERNAL for error in broken)
    assert "hunter2" not in str(broken)
    assert broken[0] is not broken[1]
    assert await batcher.submit(3) == 3


async def test_too_few_outcomes_are_a_fault_not_a_mix_up() -> None:
    async def handle(items: list[int]) -> Sequence[int | Refusal]:
        return items[:-1]

    batcher = Batcher(handle, name="t")
    outcomes = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
    assert [getattr(outcome, "reason", None) for outcome in outcomes] == [Reason.INTERNAL, Reason.INTERNAL]


async def test_a_refused_batch_refuses_each_item_by_itself() -> None:
    async def handle(items: list[int]) -> Sequence[int | Refusal]:
        raise Refusal(Reason.AUTHORITY_UNREACHABLE, "away", retry_after_ms=7)

    batcher = Batcher(handle, name="t")
    first, second = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
    assert isinstance(first, Refusal)
    assert isinstance(second, Refusal)
    assert first is not second
    assert (second.reason, second.retry_after_ms) == (Reason.AUTHORITY_UNREACHABLE, 7)


async def test_a_submitter_that_goes_away_cancels_nothing() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.handle, name="t", spacing_ms=0)
    leaving, staying = (asyncio.create_task(batcher.submit(n)) for n in (1, 2))
    await recorder.until(1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    recorder.go.release()
    assert await staying == 20
    assert leaving.cancelled()


async def test_a_call_cancelled_while_it_waited_is_not_handled() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.handle, name="t", spacing_ms=60_000)
    first = asyncio.create_task(batcher.submit(1))
    await recorder.until(1)
    gone, kept = (asyncio.create_task(batcher.submit(n)) for n in (2, 3))
    await ticks()
    gone.cancel()
    recorder.go.release()
    await recorder.until(2)
    recorder.go.release()
    assert [*await asyncio.gather(first, kept)] == [10, 30]
    assert recorder.batches == [[1], [3]]


async def test_a_batch_belongs_to_nobodys_call() -> None:
    calls: list[Call | None] = []

    async def handle(items: list[int]) -> Sequence[int | Refusal]:
        calls.append(in_call())
        return items

    async def caller() -> None:
        enter_call(Call(None, None, b"", None, "/m"))
        await batcher.submit(1)

    batcher = Batcher(handle, name="t")
    await asyncio.create_task(caller())
    assert calls == [None]


async def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.handle, name="t", max_waiting=1, in_flight=1)
    first = asyncio.create_task(batcher.submit(1))
    await recorder.until(1)
    second = asyncio.create_task(batcher.submit(2))
    await ticks()
    with pytest.raises(Refusal) as refused:
        await batcher.submit(3)
    assert refused.value.reason is Reason.QUOTA_EXCEEDED
    assert refused.value.retry_after_ms
    recorder.go.release()
    recorder.go.release()
    assert [*await asyncio.gather(first, second)] == [10, 20]


async def test_close_waits_for_everything_submitted() -> None:
    recorder = Recorder(held=False)
    batcher = Batcher(recorder.handle, name="t")
    calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
    await ticks(1)
    await batcher.close()
    assert await asyncio.gather(*calls) == [0, 10, 20]
    assert recorder.batches == [[0, 1, 2]]


async def test_items_of_one_key_are_never_in_two_batches_at_once() -> None:
    gates: dict[str, asyncio.Event] = {"a": asyncio.Event(), "b": asyncio.Event()}
    batches: list[list[str]] = []

    async def handle(items: list[str]) -> list[str]:
        batches.append(list(items))
        await gates[items[0][0]].wait()
        return items

    batcher: Batcher[str, str] = Batcher(handle, name="keyed", spacing_ms=0, key=lambda item: item[0])
    first = asyncio.ensure_future(batcher.submit("a1"))
    await wait_until(lambda: batches == [["a1"]])
    later = [asyncio.ensure_future(batcher.submit(item)) for item in ("a2", "b1", "a3")]
    await wait_until(lambda: batches == [["a1"], ["b1"]])
    gates["a"].set()
    assert await first == "a1"
    await wait_until(lambda: batches == [["a1"], ["b1"], ["a2", "a3"]])
    gates["b"].set()
    assert await asyncio.gather(*later) == ["a2", "b1", "a3"]


async def test_the_items_of_one_call_are_judged_each_and_answered_in_their_order() -> None:
    async def handle(items: list[int]) -> Sequence[int | Refusal]:
        return [invalid_field("n", f"is {item}", "send even ones") if item % 2 else item * 10 for item in items]

    batcher = Batcher(handle, name="t", max_batch=3, spacing_ms=0)
    async with asyncio.timeout(WAIT_S):
        assert await batcher.submit_many([]) == []
        outcomes = await batcher.submit_many(list(range(8)))
    assert [outcome if isinstance(outcome, int) else outcome.message for outcome in outcomes] == [
        0, "n is 1", 20, "n is 3", 40, "n is 5", 60, "n is 7"
    ]  # fmt: skip


async def test_calls_of_many_and_of_one_share_batches() -> None:
    recorder = Recorder(held=False)
    batcher = Batcher(recorder.handle, name="t")
    async with asyncio.timeout(WAIT_S):
        many, one = await asyncio.gather(batcher.submit_many([1, 2]), batcher.submit(3))
    assert (many, one, recorder.batches) == ([10, 20], 30, [[1, 2, 3]])


async def test_a_call_of_many_that_went_away_is_not_handled() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.handle, name="t", in_flight=1)
    first = asyncio.create_task(batcher.submit(0))
    await recorder.until(1)
    many = asyncio.create_task(batcher.submit_many([1, 2]))
    await ticks()
    many.cancel()
    await ticks()
    recorder.go.release()
    recorder.go.release()
    async with asyncio.timeout(WAIT_S):
        assert await first == 0
        await batcher.close()
    assert recorder.batches == [[0]]


async def test_what_of_a_call_finds_no_room_is_refused_and_the_rest_is_not() -> None:
    recorder = Recorder(held=False)
    batcher = Batcher(recorder.handle, name="t", max_waiting=2)
    async with asyncio.timeout(WAIT_S):
        outcomes = await batcher.submit_many([1, 2, 3])
    assert outcomes[:2] == [10, 20]
    refused = outcomes[2]
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.QUOTA_EXCEEDED
