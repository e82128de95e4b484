"""Borrowed slots through a real leader: asked back at a heartbeat, given to who waited, and the ask withdrawn with its need."""

from collections.abc import Sequence
from typing import Any

import pytest
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import beat, claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run

FLEET = "rk_fleet"
MIGRATION, AUTOMATION = 3, 2


async def asked(worker: Any, leases: Sequence[pb.Lease]) -> set[str]:
    """Runs whose attempts are asked to yield, as the next heartbeats say."""
    answers = {lease.run_id: await beat(worker, lease, key=FLEET) for lease in leases}
    assert all(answer.status == pb.LEASE_STATUS_LIVE for answer in answers.values()), "nobody is ended"
    return {run for run, answer in answers.items() if answer.please_yield}


@pytest.mark.requirement("sched.migration")
async def test_who_borrowed_last_is_asked_while_others_wait_and_what_it_gives_back_is_theirs(
    world: World, replica: Replica
) -> None:
    worker = replica.worker()
    for _ in range(10):
        await world.ready(replica, new_run(), run_class=MIGRATION)
    early = await claim(worker, key=FLEET, slots=10)
    assert len(early) == 9, "all that is idle but the reserve"
    assert await asked(worker, early) == set()
    for _ in range(2):
        await world.ready(replica, new_run(), tenant="b", run_class=AUTOMATION)

    async def some() -> bool:
        assert await claim(worker, key=FLEET, slots=1, wait_ms=0, worker="w1") == [], "one slot is free: the reserve's"
        return bool(await asked(worker, early))

    await wait_until(some, what="an ask")
    # Nobody offers the tenth slot any more: one of the nine is the reserve's, beside the two for those that wait.
    await wait_until(lambda: sum(lease.give_back for lease in replica.book.leases.values()) == 3, what="as many as it takes")
    marked = {str(lease.run_id) for lease in replica.book.leases.values() if lease.give_back}
    assert await asked(worker, early) == marked
    gives = next(lease for lease in early if lease.run_id in marked)
    assert (await complete(worker, gives.lease_token, key=FLEET, yielded=pb.Yield(reason="drain"))).recorded
    (got,) = await claim(worker, key=FLEET, slots=2)
    assert got.tenant == "b", "not the migration that waits as well"
    left = [lease for lease in early if lease is not gives]
    assert len(await claim(worker, key=FLEET, slots=9, worker="w2")) >= 1, "more workers came"

    async def nobody() -> bool:
        return not await asked(worker, left)

    await wait_until(nobody, what="the ask withdrawn")
    assert len(left) == 8, "and nobody was ended"
