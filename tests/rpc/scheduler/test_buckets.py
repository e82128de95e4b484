"""Tickets wait for buckets outside, not leases: what the gateway says is in a bucket bounds what is granted."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from runway.internal.gateway.v1 import gateway_internal_pb2 as gw

from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import claim, complete
from tests.rpc.scheduler.harness import Replica, World
from tests.rpc.scheduler.test_explain_leaders import ask, codes
from tests.rpc.scheduler.test_shares import many


def view(level: float, *, per_minute: float = 0, capacity: float = 100, **more: Any) -> gw.BucketView:
    told: dict[str, Any] = {"name": "tool t (calls)", "calls": ["t"], "typical": 1.0, "floor": 50.0} | more
    return gw.BucketView(level=level, per_minute=per_minute, capacity=capacity, **told)


async def seen(world: World, replica: Replica, *views: gw.BucketView) -> None:
    """The scheduler knows these buckets."""
    world.buckets.views = list(views)
    gauges = replica.book.usage.gauges

    def known() -> bool:
        return [(v.name, v.level, v.per_minute) for v in gauges.views] == [(v.name, v.level, v.per_minute) for v in views]

    await wait_until(known, 5.0, what="the gateway's buckets")


@pytest.mark.requirement("sched.buckets")
async def test_a_ticket_whose_bucket_is_empty_waits_as_a_ticket_and_others_pass(world: World, replica: Replica) -> None:
    await seen(world, replica, view(2))
    bounded = await many(world, replica, 6, tools=["t", "u"])
    free = await many(world, replica, 3, tools=["u"], models=["m"])
    worker = replica.worker()
    leases = await claim(worker, slots=20)
    runs = Counter(lease.run_id in {str(run) for run in bounded} for lease in leases)
    assert runs == {True: 2, False: 3}
    assert {lease.run_id for lease in leases} >= {str(run) for run in free}
    assert await claim(worker, slots=20, wait_ms=700) == [], "what was granted is counted here, though nothing was called yet"
    await seen(world, replica, view(0.5))
    for lease in leases:
        await complete(worker, lease.lease_token)
    waiting = asyncio.create_task(claim(worker, slots=20, wait_ms=20_000))
    await asyncio.wait({waiting}, timeout=0.5)
    assert not waiting.done()
    await seen(world, replica)  # the bucket was taken away: who waits is given what waits, without coming again
    async with asyncio.timeout(5):
        assert len(await waiting) == 4


@pytest.mark.requirement("run.explain")
@pytest.mark.parametrize("per_minute", [0.5, 0.0])
async def test_an_estimate_is_never_before_its_bucket_has_enough(world: World, replica: Replica, per_minute: float) -> None:
    await seen(world, replica, view(3, per_minute=per_minute))
    runs = await many(world, replica, 4, tools=["t"])
    worker = replica.worker()
    granted = {lease.run_id for lease in await claim(worker, slots=3)}
    waiting = asyncio.create_task(claim(worker, slots=1, wait_ms=20_000))
    (left,) = [run for run in runs if str(run) not in granted]
    now_ms = replica.book.clock.now_ms()

    async def kept_back() -> bool:
        return codes((await ask(replica, left))[0]) == ["BUCKET_EMPTY"]

    await wait_until(kept_back, 20.0, what="a ticket that waits for its bucket alone")
    (told,) = await ask(replica, left)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    if per_minute:  # two minutes for one call, though three were granted in the last minute
        assert told.estimate.at.ToMilliseconds() >= now_ms + 110_000
        assert "tool t (calls) has enough in 1" in told.estimate.basis
    else:
        assert not told.HasField("estimate"), "it never has enough"


@pytest.mark.requirement("sched.buckets")
async def test_tickets_go_on_as_the_bucket_fills(world: World, replica: Replica) -> None:
    await seen(world, replica, view(0, per_minute=300, capacity=1))
    await many(world, replica, 4, tools=["t"])
    worker, clock = replica.worker(), replica.book.clock
    began_ms, got = clock.monotonic_ms(), 0
    while got < 4:
        leases = await claim(worker, slots=4, wait_ms=5_000)
        got += len(leases)
        passed_ms = clock.monotonic_ms() - began_ms
        assert got <= 1 + passed_ms * 300 / 60_000 + 1, "no faster than it fills"
    assert clock.monotonic_ms() - began_ms >= 400


@pytest.mark.requirement("sched.buckets")
async def test_a_tenant_over_its_part_waits_and_another_takes_what_it_left(world: World, replica: Replica) -> None:
    await seen(world, replica, view(10, floor=50, over=["a"]))
    await many(world, replica, 2, tools=["t"])
    others = await many(world, replica, 2, tools=["t"], tenant="b", project="p")
    worker = replica.worker()
    shared = await claim(worker, key="rk_b", slots=5)
    assert {lease.run_id for lease in shared} == {str(run) for run in others}
    assert await claim(worker, slots=5, wait_ms=300) == []
    await seen(world, replica, view(60, floor=50, over=["a"]))
    assert len(await claim(worker, slots=5)) == 2


async def test_models_have_names_of_their_own(world: World, replica: Replica) -> None:
    await seen(world, replica, view(0, name="model t (calls)", calls=["model:t"]))
    await many(world, replica, 1, models=["t"])
    runs = await many(world, replica, 1, tools=["t"])
    assert [lease.run_id for lease in await claim(replica.worker(), slots=5)] == [str(run) for run in runs]


async def test_a_gateway_that_is_silent_stops_nothing_for_ever(world: World, replica: Replica) -> None:
    """Its last view goes on filling."""
    await seen(world, replica, view(0, per_minute=120, capacity=5))
    await many(world, replica, 1, tools=["t"])
    world.buckets.away = True
    assert len(await claim(replica.worker(), slots=1, wait_ms=5_000)) == 1


@pytest.mark.requirement("sched.buckets")
async def test_who_waits_is_given_what_flowed_in_without_coming_again(
    world: World, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.scheduler.servicer.ROUND_MS", 60_000)
    await seen(world, replica, view(-1, per_minute=120, capacity=5))
    await many(world, replica, 1, tools=["t"])
    world.buckets.away = True
    async with asyncio.timeout(10):
        assert len(await claim(replica.worker(), slots=1, wait_ms=30_000)) == 1


@pytest.mark.requirement("sched.buckets")
async def test_calls_that_wait_at_the_gateway_have_what_flows_in_first(world: World, replica: Replica) -> None:
    world.buckets.views = [view(3, waiting=2)]
    await wait_until(lambda: [v.level for v in replica.book.usage.gauges.views] == [1.0], 5.0, what="the bucket")
    await many(world, replica, 3, tools=["t"])
    assert len(await claim(replica.worker(), slots=3)) == 1
