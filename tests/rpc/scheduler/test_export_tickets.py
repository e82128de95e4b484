"""Tickets as they were, through the control port of a real scheduler: what is kept of them, in pages, and of whom."""

from typing import Any

import pytest
from runway.scheduler.v1 import control_service_pb2 as pb

from tests.rpc.scheduler.calls import claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run
from tests.rpc.scheduler.test_holds import control


async def exported(replica: Replica, **more: Any) -> list[pb.RecordedTicket]:
    found: list[pb.RecordedTicket] = []
    token = ""
    while True:
        page = await control(replica).ExportTickets(pb.ExportTicketsRequest(page_size=1, page_token=token, **more))
        found += page.tickets
        token = page.next_page_token
        if not token:
            return found


@pytest.mark.requirement("sched.simulate")
async def test_what_waited_ran_and_was_tried_again_is_exported_once_each(world: World) -> None:
    replica = await world.replica()
    done, again, live, waiting = (new_run() for _ in range(4))
    await world.ready(replica, done, requires=["gpu"], priority=7, run_class=1)
    (lease,) = await claim(replica.worker(), capabilities=["gpu"])
    assert (await complete(replica.worker(), lease.lease_token)).recorded
    await world.ready(replica, again)
    (lease,) = await claim(replica.worker(), key="rk_fleet", worker="f")
    failure = {"failure": {"failure_class": "transient", "message": "m", "type": "t"}}
    assert (await complete(replica.worker(), lease.lease_token, key="rk_fleet", **failure)).recorded
    await world.ready(replica, again, sequence=2)
    (lease,) = await claim(replica.worker(), key="rk_fleet", worker="f")
    assert (await complete(replica.worker(), lease.lease_token, key="rk_fleet")).recorded
    await world.ready(replica, live)
    await claim(replica.worker())
    await world.ready(replica, waiting, tenant="b", resources={"gpu": 2}, launched_by="ann")
    found = await exported(replica)
    assert [(t.run_id, t.attempt_number) for t in found] == [
        (str(done), 1),
        (str(again), 1),
        (str(again), 2),
        (str(live), 1),
        (str(waiting), 1),
    ]
    told, first, second, runs, waits = found
    assert (list(told.requires), told.priority, told.run_class, told.handler, told.worker_id, told.fleet) == (
        ["gpu"],
        7,
        1,
        "demo.work@1",
        "w1",
        "",
    )
    ready, leased, ended = (getattr(told, name).ToMilliseconds() for name in ("ready_at", "leased_at", "ended_at"))
    assert 0 < ready <= leased <= ended
    assert not first.HasField("ready_at"), "the ticket's row is the newest one's"
    assert (first.fleet, second.fleet) == ("", "platform")
    assert second.ready_at.ToMilliseconds() >= first.ended_at.ToMilliseconds() > 0
    assert (runs.HasField("leased_at"), runs.HasField("ended_at")) == (True, False)
    assert (waits.HasField("ready_at"), waits.HasField("leased_at"), waits.tenant) == (True, False, "b")
    assert (dict(waits.resources), waits.launched_by, dict(told.resources)) == ({"gpu": 2}, "ann", {})
    assert [t.tenant for t in await exported(replica, tenant="b")] == ["b"]
    late = pb.ExportTicketsRequest()
    getattr(late, "from").FromMilliseconds((waiting.int >> 80) + 1)
    assert not (await control(replica).ExportTickets(late)).tickets
    early = pb.ExportTicketsRequest()
    early.until.FromMilliseconds(done.int >> 80)
    assert not (await control(replica).ExportTickets(early)).tickets
