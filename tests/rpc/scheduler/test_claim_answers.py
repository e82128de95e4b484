"""What a claim is answered, at its limits: many bytes, nothing left of an old claim, a process that drains."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.testkit.waiting import wait_until
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.claims import ClaimAsk, GrantedLease
from tests.rpc.scheduler.calls import claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run, ready_event, value

DEFAULT_CLIENT_LIMIT = 4 * 1024 * 1024


@pytest.mark.requirement("sched.claim")
async def test_many_large_inputs_come_in_several_answers(world: World, replica: Replica) -> None:
    runs = [new_run() for _ in range(6)]
    for run_id in runs:
        world.launch.gate(run_id)
    large = "x" * 1_000_000
    assert {v.verdict for v in await world.deliver(replica, [ready_event(run_id, given=large) for run_id in runs])} == {1}
    worker = replica.worker()
    name = uuid4().bytes
    first = await claim(worker, claim_id=name, slots=6)
    assert len(first) == 3
    assert pb.ClaimAttemptsResponse(leases=first).ByteSize() < DEFAULT_CLIENT_LIMIT
    again = await claim(worker, claim_id=name, slots=6)
    assert {lease.attempt_id for lease in again} == {lease.attempt_id for lease in first}
    second = await claim(worker, slots=6, max_bytes=10)
    assert len(second) == 1  # a first one always, however large
    rest = await claim(worker, slots=6)
    assert {lease.run_id for lease in (*first, *second, *rest)} == {str(run_id) for run_id in runs}


async def test_a_repeat_of_a_claim_that_is_over_does_not_spin(
    world: World, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.ready(replica, new_run())
    worker, name = replica.worker(), uuid4().bytes
    (lease,) = await claim(worker, claim_id=name)
    assert (await complete(worker, lease.lease_token, output=value("x"))).recorded
    asked = 0
    real = ClaimDesk.claim

    async def counted(self: ClaimDesk, ask: ClaimAsk, wait_ms: int) -> list[GrantedLease]:
        nonlocal asked
        asked += 1
        return await real(self, ask, wait_ms)

    monkeypatch.setattr(ClaimDesk, "claim", counted)
    assert await claim(worker, claim_id=name, wait_ms=400) == []
    assert 1 <= asked <= 6


@pytest.mark.requirement("sched.claim")
async def test_a_draining_process_answers_what_waits_and_grants_nothing_more(world: World, replica: Replica) -> None:
    run_id = new_run()
    waiting: asyncio.Task[Any] = asyncio.create_task(claim(replica.worker(), wait_ms=20_000))
    await wait_until(lambda: replica.book.workers)
    replica.host.draining.set()
    verdict = await world.ready(replica, run_id)
    assert verdict.verdict == 1
    assert await asyncio.wait_for(waiting, 3) == []
    assert await claim(replica.worker(), wait_ms=20_000) == []
    row = await world.hand.fetchrow("SELECT state, lease_epoch FROM ticket WHERE run_id = $1", run_id)
    assert row is not None
    assert tuple(row) == (1, 0)
