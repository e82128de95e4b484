"""Five tenants that always want more, weights 1:1:2:4:8, over all shards and two scheduler processes: who gets how much.

A tenant's part is its slot-seconds within the measured span, from the rows of its leases. Measured twice, the second time with
the queues filled in the opposite order: who came first must not matter. Can go wrong: a queue that runs dry, after which others rightly have
more. That is measured, and missed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from services.scheduler.domain.shares import jain, share_error
from tests.bench import flows
from tests.bench.bench_stack import Bench, say, started_with_schedulers
from tests.bench.flood import NOW
from tests.bench.raw_fleet import raw_fleet
from tests.bench.tenants import BADLY, SPANS, fill, fleet_key, handlers, reaches, secret_of, tenant, waiting

WEIGHTS = {"ash": 1, "birch": 1, "cedar": 2, "elm": 4, "oak": 8}
AUTOMATION = 2
SETTLE_S = 5.0
LED = "SELECT holder, count(*) FROM scheduler.shard WHERE holder <> '' GROUP BY holder ORDER BY holder"


async def shares(seconds: float = 60.0, slots: int = 180, step_s: float = 1.0, schedulers: int = 2) -> dict[str, Any]:
    """The figures of both orders; what is judged is the worse of the two."""
    found = {}
    for name, order in (("as they are", list(WEIGHTS)), ("permuted", list(reversed(WEIGHTS)))):
        say(f"arrivals {name}")
        found[name] = await _once(order, seconds, slots, step_s, schedulers)
    rounds = list(found.values())
    first, second = (round_["parts"] for round_ in rounds)
    return {
        "judged": {
            "share_error_percent": max(round_["share_error_percent"] for round_ in rounds),
            "jain_index": min(round_["jain_index"] for round_ in rounds),
            "longest_without_a_grant_ms": max(round_["longest_without_a_grant_ms"] for round_ in rounds),
            "least_left_waiting": min(round_["least_left_waiting"] for round_ in rounds),
            "order_moves_a_part_by_percent": round(max(abs(first[t] - second[t]) / first[t] for t in WEIGHTS) * 100, 2),
            "leases_ended_badly": sum(round_["leases_ended_badly"] for round_ in rounds),
        },
        "rounds": found,
    }


async def _once(order: Sequence[str], seconds: float, slots: int, step_s: float, schedulers: int) -> dict[str, Any]:
    async with started_with_schedulers("shares", schedulers) as bench, AsyncExitStack() as stack:
        key = await fleet_key(bench)
        clients = {name: await stack.enter_async_context(tenant(bench, name, flows.one)) for name in order}
        await _put_weights(bench)
        wanted = {name: round(WEIGHTS[name] / 16 * slots * (seconds + 2 * SETTLE_S) / step_s * 1.5) + 100 for name in order}
        for name in order:
            await fill(clients[name], flows.one, wanted[name], AUTOMATION)
        await reaches(bench, sum(wanted.values()))
        async with raw_fleet(bench.target, key, handlers(flows.one), workers=4, slots=slots, step_s=step_s) as fleet:
            await asyncio.sleep(SETTLE_S)  # every slot is taken, and the first wave is over
            began_ms = await bench.admin.fetchval(NOW)
            await asyncio.sleep(seconds)  # the measured span
            ended_ms = await bench.admin.fetchval(NOW)
            left = await _left(bench)
            spans = await bench.admin.fetch(SPANS)
            claims = sum(worker.claims for worker in fleet)
        return {**_parts(spans, began_ms, ended_ms), **left, "claims": claims, "order": list(order)}


async def _put_weights(bench: Bench) -> None:
    from runway.scheduler.v1 import share_service_pb2 as pb
    from runway.scheduler.v1 import share_service_pb2_grpc

    from libs.rpc.channels import open_channel

    address = bench.target.control_services.get("scheduler", "") or bench.target.control_address
    async with open_channel(address, secret=secret_of(bench)) as channel:
        stub = share_service_pb2_grpc.ShareServiceStub(channel)
        for name, weight in WEIGHTS.items():
            request = pb.PutShareRequest(tenant=name, weight=weight, actor="bench", reason="measured")
            await stub.PutShare(request)


async def _left(bench: Bench) -> dict[str, Any]:
    rows = await bench.admin.fetch(
        "SELECT tenant, count(*) AS left FROM scheduler.ticket WHERE open AND state = 1 GROUP BY tenant"
    )
    by_tenant = {row["tenant"]: row["left"] for row in rows}
    return {
        "least_left_waiting": min(by_tenant.get(name, 0) for name in WEIGHTS),
        "leases_ended_badly": await bench.admin.fetchval(BADLY),
        "shards_led": [row["count"] for row in await bench.admin.fetch(LED)],
        "queue": await waiting(bench),
    }


def _parts(spans: Sequence[Mapping[str, Any]], began_ms: int, ended_ms: int) -> dict[str, Any]:
    """Slot-seconds of each tenant within the span, and how even they are."""
    got = dict.fromkeys(WEIGHTS, 0.0)
    grants: dict[str, list[int]] = {name: [began_ms, ended_ms] for name in WEIGHTS}
    for row in spans:
        until = row["ended_ms"] if row["ended_ms"] is not None else ended_ms
        got[row["tenant"]] += max(0, min(until, ended_ms) - max(row["leased_ms"], began_ms)) / 1000
        if began_ms <= row["leased_ms"] <= ended_ms:
            grants[row["tenant"]].append(row["leased_ms"])
    whole = sum(got.values())
    gaps = {name: max(b - a for a, b in pairwise(times)) for name, t in grants.items() if (times := sorted(t))}
    return {
        "share_error_percent": round(share_error(got, WEIGHTS) * 100, 2),
        "jain_index": round(jain(got, WEIGHTS), 5),
        "longest_without_a_grant_ms": max(gaps.values()),
        "parts": {name: round(value / whole, 5) for name, value in got.items()},
        "slot_seconds": {name: round(value, 1) for name, value in got.items()},
        "slots_used": round(whole / (ended_ms - began_ms) * 1000, 1),
        "gaps_ms": gaps,
    }
