"""A leader of a hundred thousand queued tickets and ten thousand leases is killed: until when has another rebuilt its memory, and grants?

Two schedulers; the first is given every shard, and none is started again in its place. kill -9; then two parts: until etcd ends its session
(its keys go), which is the session's TTL, and from there until the other has rebuilt all 64 shards and grants again. Counts of its
memory are compared with the rows once nothing moves. All shards together hold what is asked, because a run's shard is chance: the other rebuilds
them in one transaction, as it would one shard that held as much. Can go wrong: a lease that expires meanwhile; each beats under the
default TTL of 9 s, and there must be none. Holders have a quarter more slots than they fill: a part is the reserve.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from runway.internal.etcd.v1 import etcd_pb2
from runway.scheduler.v1 import control_service_pb2 as ctl
from runway.scheduler.v1 import control_service_pb2_grpc
from runway_sdk import Client

from libs.authority.client import EtcdClient, prefix_end
from libs.drills.installation import Installation
from libs.rpc.channels import open_channel
from libs.runtime.clock import SystemClock
from tests.bench import flows
from tests.bench.bench_stack import Bench, say, started_with_schedulers
from tests.bench.raw_fleet import RawWorker, raw_fleet
from tests.bench.tenants import BADLY, LEASED, READY, fill, fleet_key, handlers, reaches, secret_of, tenant, waiting

PREFIX = b"/runway/scheduler/shards/"
SHARDS, AUTOMATION = 64, 2
NOW = "SELECT extract(epoch FROM clock_timestamp()) * 1000"
PATIENCE_S = 60.0
PROBES, PROBED = 2, 20
CLAIMS_OVER_S = 2.0
WATCHED_S = 12.0
"""Longer than a lease's TTL."""
FIRST_GRANT = "SELECT min(leased_ms) FROM scheduler.attempt WHERE leased_ms > $1 AND authority_epoch > $2"
HELD_BADLY = """
SELECT count(*) FROM scheduler.attempt AS a JOIN scheduler.ticket AS t USING (run_id, step_key)
 WHERE a.end_kind <> 1 AND t.handler LIKE 'bench-held.%'
"""
"""Of leases that were held all the while. A grant whose answer died with the leader is another thing: nobody ever had it."""
TWICE = """
SELECT count(*) FROM scheduler.attempt AS a JOIN scheduler.attempt AS b USING (run_id, step_key)
 WHERE a.lease_epoch < b.lease_epoch AND b.leased_ms < a.ended_ms
"""


@dataclass(slots=True)
class _Seen:
    """When etcd said that the first key of the killed leader went, by the wall clock; 0: not yet."""

    ended_ms: float = 0.0


async def takeover(tickets: int = 100_000, leases: int = 10_000) -> dict[str, Any]:
    """The figures."""
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(started_with_schedulers("takeover", 2))
        installation = bench.installation
        assert installation is not None
        key = await fleet_key(bench)
        owner = await stack.enter_async_context(tenant(bench, "owner", flows.one, flows.held))
        await _lead_everything(bench, installation)
        say(f"{leases} leases")
        await fill(owner, flows.held, leases, AUTOMATION)
        holders = await stack.enter_async_context(
            raw_fleet(bench.target, key, handlers(flows.held), workers=4, slots=leases * 5 // 4, step_s=None, name="holder")
        )
        await reaches(bench, leases, LEASED)
        say(f"{tickets} tickets")
        await fill(owner, flows.one, tickets, AUTOMATION)
        await reaches(bench, tickets)
        probes = await stack.enter_async_context(
            raw_fleet(bench.target, key, handlers(flows.one), workers=PROBES, slots=PROBES, step_s=0.0, name="probe")
        )
        seen = _Seen()
        watching = asyncio.create_task(_watch(installation.etcd.endpoints, seen))
        other = replace(bench.target, services={**bench.target.services, "scheduler": installation.host("scheduler", 1).public})
        try:
            while sum(probe.reported for probe in probes) < PROBED:
                await asyncio.sleep(0.05)  # what asks for grants is under way
            async with Client(other) as at_other:
                found = await _killed(bench, installation, at_other, seen)
                await asyncio.sleep(WATCHED_S)  # a lease that nobody keeps alive would have expired by now
                found["exact"] = await _counted(bench, at_other, probes)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        exact = found["exact"]
        return {
            "judged": {
                "session_end_to_grant_ms": found["session_end_to_grant_ms"],
                "session_end_to_all_rebuilt_ms": found["session_end_to_all_rebuilt_ms"],
                "kill_to_grant_ms": found["kill_to_grant_ms"],
                "counts_off": abs(exact["ready"] - exact["ready_rows"]) + abs(exact["live"] - exact["live_rows"]),
                "leases_gone": leases - exact["live_rows"] if leases > exact["live_rows"] else 0,
                "leases_ended_badly": await bench.admin.fetchval(HELD_BADLY),
                "overlapping_leases": await bench.admin.fetchval(TWICE),
                "told_fenced": sum(worker.fenced for worker in holders),
            },
            **found,
            "grants_lost_with_the_leader": await bench.admin.fetchval(BADLY) - await bench.admin.fetchval(HELD_BADLY),
        }


async def _lead_everything(bench: Bench, installation: Installation) -> None:
    """The first scheduler gets every shard."""
    first, second = (host.control for host in installation.hosts_of("scheduler"))
    async with open_channel(second, secret=secret_of(bench)) as channel:
        stub = control_service_pb2_grpc.ControlServiceStub(channel)
        request = ctl.DrainShardsRequest(member=second, to=first, reason="measured", actor="bench")
        answer = await stub.DrainShards(request)
        assert all(move.done for move in answer.moves), answer
    assert await bench.admin.fetchval("SELECT count(DISTINCT holder) FROM scheduler.shard") == 1


async def _watch(endpoints: list[str], seen: _Seen) -> None:
    client = EtcdClient(endpoints, SystemClock())
    try:
        now = await client.range(PREFIX, prefix_end(PREFIX))
        async for events in client.watch(PREFIX, prefix_end(PREFIX), now.header.revision + 1):
            if not seen.ended_ms and any(event.type == etcd_pb2.Event.EVENT_TYPE_DELETE for event in events):
                seen.ended_ms = time.time() * 1000
    finally:
        await client.close()


async def _killed(bench: Bench, installation: Installation, other: Client, seen: _Seen) -> dict[str, Any]:
    """The times, milliseconds."""
    former = await bench.admin.fetchval("SELECT max(authority_epoch) FROM scheduler.shard")
    host = installation.host("scheduler", 0)
    assert host.process is not None
    assert host.watch is not None
    host.watch.cancel()  # nobody starts it again: all of it is the other's
    say("kill -9")
    killed_ms = time.time() * 1000
    os.kill(host.process.pid, signal.SIGKILL)
    grant_ms = rebuilt_ms = None
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and (grant_ms is None or rebuilt_ms is None):
        if grant_ms is None:
            grant_ms = await bench.admin.fetchval(FIRST_GRANT, int(killed_ms), former)
        if grant_ms is not None and await _is_whole(bench, other):
            rebuilt_ms = time.time() * 1000
        await asyncio.sleep(0.05 if grant_ms is None else 0.5)  # a look counts every ticket at both: it slows what it measures
    confirmed = await bench.admin.fetchrow("SELECT min(confirmed_ms) AS first, max(confirmed_ms) AS last FROM scheduler.shard")
    say(f"granting again after {0 if grant_ms is None else grant_ms - killed_ms:.0f} ms")

    def since(moment: float | None, origin: float) -> float | None:
        return None if moment is None or not origin else round(moment - origin, 1)

    return {
        "kill_to_session_end_ms": since(seen.ended_ms or None, killed_ms),
        "session_end_to_first_confirmed_ms": since(confirmed["first"], seen.ended_ms),
        "session_end_to_last_confirmed_ms": since(confirmed["last"], seen.ended_ms),
        "session_end_to_grant_ms": since(grant_ms, seen.ended_ms),
        "session_end_to_all_rebuilt_ms": since(rebuilt_ms, seen.ended_ms),
        "kill_to_grant_ms": since(grant_ms, killed_ms),
    }


async def _is_whole(bench: Bench, other: Client) -> bool:
    """Whether the new leader has every ticket in memory, but for those that are being granted at this moment."""
    shards = await other.shards()
    rows = await waiting(bench, READY)
    return sum(s.led_here for s in shards) == SHARDS and sum(s.ready_tickets for s in shards) >= rows - PROBES


async def _counted(bench: Bench, other: Client, probes: Sequence[RawWorker]) -> dict[str, int]:
    """The new leader's memory and the rows, once nothing moves."""
    for probe in probes:
        probe.slots = 0
    former = -1
    while (rows := await waiting(bench, READY)) != former:
        former = rows
        await asyncio.sleep(CLAIMS_OVER_S)  # a claim that waits may still get something
    shards = await other.shards()
    return {
        "ready": sum(shard.ready_tickets for shard in shards),
        "ready_rows": await waiting(bench, READY),
        "live": sum(shard.live_leases for shard in shards),
        "live_rows": await waiting(bench, LEASED),
        "probed": sum(probe.reported for probe in probes),
    }
