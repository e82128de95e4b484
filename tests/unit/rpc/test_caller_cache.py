"""How long a resolved API key is believed."""

import asyncio
from dataclasses import replace

import pytest

from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.rpc.directory import CachedDirectory
from libs.rpc.identity import Caller

ANNA = Caller("acme", "web", "k1", frozenset({"worker"}), "anna")


class Hands:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Directory:
    """Knows one key; counts the questions; can be away, or slow."""

    def __init__(self) -> None:
        self.known = {b"anna": ANNA}
        self.asked = 0
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.late: asyncio.Event | None = None
        """What the answer waits for on its way back."""

    async def resolve(self, key_digest: bytes) -> Caller | None:
        self.asked += 1
        await self.gate.wait()
        if self.away:
            raise unreachable("launch")
        found = self.known.get(key_digest)
        if self.late is not None:
            await self.late.wait()
        return found


@pytest.mark.requirement("sec.tenant")
async def test_a_known_key_is_believed_for_a_second_and_asked_for_again_beside_the_calls() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock)
    assert await cache.resolve(b"anna") == ANNA
    clock.ms += 499
    assert await cache.resolve(b"anna") == ANNA
    assert directory.asked == 1
    directory.known.clear()
    clock.ms += 1
    assert await cache.resolve(b"anna") == ANNA, "asked for beside the call"
    await asyncio.sleep(0)
    assert await cache.resolve(b"anna") is None, "at once when the authority has said so"
    directory.known[b"anna"] = ANNA
    clock.ms += 500
    assert await cache.resolve(b"anna") == ANNA
    directory.known.clear()
    clock.ms += 1_000
    assert await cache.resolve(b"anna") is None, "never believed beyond a second where the authority answers"


@pytest.mark.requirement("sec.tenant")
async def test_an_answer_that_was_long_on_its_way_is_believed_from_when_it_was_asked_for() -> None:
    clock, directory = Hands(), Directory()
    directory.late = asyncio.Event()
    cache = CachedDirectory(directory, clock)
    asking = asyncio.create_task(cache.resolve(b"anna"))
    while not directory.asked:
        await asyncio.sleep(0)
    directory.known.clear()  # revoked: launch had read its row before
    clock.ms += 900
    directory.late.set()
    assert await asking == ANNA
    clock.ms += 100
    assert await cache.resolve(b"anna") is None, "a second after the question, not after its answer"


@pytest.mark.requirement("sec.tenant")
async def test_a_key_that_expires_is_refused_at_once() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock)
    directory.known[b"anna"] = replace(ANNA, expires_ms=clock.ms + 100)
    assert await cache.resolve(b"anna")
    clock.ms += 100
    assert await cache.resolve(b"anna") is None


async def test_an_unknown_key_is_believed_for_half_a_second() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock)
    assert await cache.resolve(b"ben") is None
    clock.ms += 499
    assert await cache.resolve(b"ben") is None
    assert directory.asked == 1
    directory.known[b"ben"] = ANNA
    clock.ms += 1
    assert await cache.resolve(b"ben") == ANNA


async def test_an_authority_that_is_slow_is_waited_for_once() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock, patience_ms=1)
    assert await cache.resolve(b"anna") == ANNA
    directory.gate.clear()
    clock.ms += 1_000
    assert await cache.resolve(b"anna") == ANNA
    directory.away = True
    directory.gate.set()
    await asyncio.sleep(0.01)
    directory.gate.clear()
    clock.ms += 1_000
    assert await asyncio.wait_for(cache.resolve(b"anna"), 0.001) == ANNA, "a moment ago it did not answer"


async def test_while_the_authority_is_away_a_known_key_works_for_ten_minutes_and_a_new_one_is_refused() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock)
    await cache.resolve(b"anna")
    directory.away = True
    clock.ms += 599_999
    assert await cache.resolve(b"anna") == ANNA
    with pytest.raises(Refusal) as stranger:
        await cache.resolve(b"ben")
    assert stranger.value.reason is Reason.AUTHORITY_UNREACHABLE
    assert stranger.value.retry_after_ms
    clock.ms += 1
    with pytest.raises(Refusal):
        await cache.resolve(b"anna")


async def test_an_outage_never_revives_a_key_known_to_be_unknown() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock)
    assert await cache.resolve(b"ben") is None
    directory.away = True
    clock.ms += 2_000
    with pytest.raises(Refusal):
        await cache.resolve(b"ben")


async def test_many_callers_with_one_key_ask_once_and_one_that_leaves_takes_no_answer_along() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock)
    directory.gate.clear()
    waiting = [asyncio.create_task(cache.resolve(b"anna")) for _ in range(10)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    directory.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [ANNA] * 9
    assert directory.asked == 1


async def test_the_memory_is_bounded() -> None:
    clock, directory = Hands(), Directory()
    cache = CachedDirectory(directory, clock, size=2)
    for key in (b"a", b"b", b"c", b"a"):
        await cache.resolve(key)
    assert directory.asked == 4
