"""Tenants of a measured installation: their keys, their clients, their queues, and what the scheduler's rows say of them.

Can go wrong: a queue that is measured while it fills. `fill` returns once every run is stored, `waiting` counts tickets.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Workflow
from runway_sdk.values import to_value

from tests.bench.bench_stack import Bench, say
from tests.bench.flooding import make_key

BATCH = 200
OPEN = "SELECT count(*) FROM scheduler.ticket WHERE open AND state = $1"
READY, LEASED = 1, 2
SPANS = """
SELECT t.tenant, t.run_class, t.step_key, t.state, t.enqueued_ms, a.leased_ms, a.ended_ms
  FROM scheduler.attempt AS a JOIN scheduler.ticket AS t USING (run_id, step_key) WHERE a.end_kind = 1
UNION ALL
SELECT t.tenant, t.run_class, t.step_key, t.state, t.enqueued_ms, t.leased_ms, NULL
  FROM scheduler.ticket AS t WHERE t.open AND t.state = 2
"""
"""Every lease that ended well, and every one that lives."""
BADLY = "SELECT count(*) FROM scheduler.attempt WHERE end_kind <> 1"


def secret_of(bench: Bench) -> str:
    """The installation's."""
    return (bench.profile.parent / "service-secret").read_text().strip()


async def fleet_key(bench: Bench) -> str:
    """A key whose workers serve every tenant."""
    return await make_key(bench.target, secret_of(bench), "platform", "fleet")


@asynccontextmanager
async def tenant(bench: Bench, name: str, *published: Workflow) -> AsyncIterator[Client]:
    """A caller of a tenant of its own, which has these workflows."""
    key = await make_key(bench.target, secret_of(bench), name)
    async with Client(replace(bench.target, api_key=key)) as client:
        for flow in published:
            await client.publish(flow)
        yield client


def handlers(*found: Workflow) -> set[str]:
    """What a worker of these workflows carries."""
    return {name for flow in found for name in flow.handlers}


async def fill(client: Client, flow: Workflow, count: int, run_class: int, callers: int = 4) -> float:
    """So many runs, stored; runs a second."""
    left = iter(range(0, count, BATCH))
    prefix = secrets.token_hex(6)

    async def caller() -> None:
        for at in left:
            requests = [
                pb.LaunchRunRequest(
                    request_id=f"{prefix}-{number}",
                    workflow=flow.name,
                    input=to_value(number),
                    run_class=pb.RunClass.ValueType(run_class),
                )
                for number in range(at, min(count, at + BATCH))
            ]
            refused = [result for result in await client.launch_many(requests) if not result.run.run_id]
            assert not refused, refused[0]

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return round(count / (time.perf_counter() - began), 1)


async def waiting(bench: Bench, state: int = READY) -> int:
    """Open tickets in a state."""
    return int(await bench.admin.fetchval(OPEN, state))


async def reaches(bench: Bench, count: int, state: int = READY, timeout_s: float = 240) -> None:
    """Waits until so many tickets are in a state."""
    end = time.perf_counter() + timeout_s
    while (found := await waiting(bench, state)) < count:
        if time.perf_counter() > end:
            raise TimeoutError(f"{found} of {count} tickets in state {state} after {timeout_s:.0f} s")
        await asyncio.sleep(0.5)  # between two looks at a table that the measured services fill
    say(f"{found} tickets in state {state}")


def most_at_once(spans: Iterable[tuple[int, int | None]]) -> int:
    """The most of these spans that ever overlapped; one that ends in the millisecond in which another begins made room for it."""
    edges = sorted(edge for began, ended in spans for edge in ((began, 1), (ended if ended is not None else 2**62, -1)))
    most = now = 0
    for _, by in edges:
        now += by
        most = max(most, now)
    return most
