"""Steps that wait for a provider's bucket, nearly empty, while those who lead shards and the gateway die: each step goes on
once, none is forgotten, and the provider is never called more often than the bucket gave.

Can go wrong: a bucket that bounds nothing. What the provider applied is held against what the bucket held and what flowed in,
between any two calls; and what waits is counted before the fault.
"""

import asyncio
import secrets

from runway.gateway.v1 import bucket_service_pb2 as pb
from runway.gateway.v1 import bucket_service_pb2_grpc

from libs.drills.faults.lives import answers, kill
from libs.drills.finals import SQL, ask
from libs.drills.history import Fact
from libs.drills.provider import SCARCE
from libs.drills.stage import LOOK_S, Drill, Stage
from libs.rpc.channels import open_channel

RUNS, CALLS = 14, 3
"""Each run waits for so many calls, then makes them."""
CAPACITY, PER_MINUTE = 4, 150
LAG_MS = 1_000
"""Between what a call took of its bucket and the provider's line about it, at most."""
CAPACITY_WAIT, DONE = 9, 2
SEEN_S = 2.0
"""By then every scheduler knows the bucket: each looks twice a second."""


async def _put(stage: Stage, capacity: int, per_minute: int) -> None:
    secret = (stage.installation.folder / "service-secret").read_text().strip()
    name = pb.BucketName(kind=pb.BUCKET_KIND_PROVIDER, name=SCARCE, unit=pb.BUCKET_UNIT_CALLS)
    async with open_channel(stage.installation.host("gateway").control, secret=secret) as channel:
        stub = bucket_service_pb2_grpc.BucketServiceStub(channel)
        request = pb.PutBucketRequest(name=name, capacity=capacity, per_minute=per_minute, actor="drill", reason="a drill")
        await stub.PutBucket(request, timeout=30)


async def _waits(stage: Stage, runs: set[str]) -> list[int]:
    """States of these runs' waits for capacity."""
    rows = await ask(stage.installation.urls["readiness"], SQL.waits)
    return [row["state"] for row in rows if row["kind"] == CAPACITY_WAIT and str(row["run_id"]) in runs]


async def capacity_raced(stage: Stage) -> None:
    """Both schedulers and the gateway are killed twice each while a bucket feeds one step after another."""
    await _put(stage, 1, 0)
    await _put(stage, CAPACITY, 0)  # of a new bucket's burst there is one call
    await stage.work_on(SEEN_S)
    runs = list(await asyncio.gather(*(stage.traffic.begin("drill-scarce", CALLS) for _ in range(RUNS))))
    names = {run.run_id for run in runs}
    for _ in range(round(30 / LOOK_S)):
        if len(await _waits(stage, names)) == RUNS:
            break
        await asyncio.sleep(LOOK_S)
    waiting = sum(state != DONE for state in await _waits(stage, names))
    stage.expect(waiting == RUNS, f"only {waiting} steps of {RUNS} wait for the provider")
    stage.expect(not any(stage.applied(name) for name in names), "a call beyond what was in the bucket")
    async with stage.fault("SIGKILL of both schedulers and the gateway, twice each, beside steps that wait for a provider"):
        await _put(stage, CAPACITY, PER_MINUTE)
        for service, replica in (("scheduler", 0), ("gateway", 0), ("scheduler", 1)) * 2:
            await asyncio.sleep(0.3 + secrets.randbelow(1_200) / 1000)  # the fault comes at a random moment
            await kill(stage, service, replica)
        await stage.until(lambda: all(run.outcome for run in runs), "runs that waited for the provider", 120)
    states = await _waits(stage, names)
    stage.expect(states == [DONE] * RUNS, f"waits for capacity that did not end as they should: {sorted(states)}")
    stage.report.facts |= {"waited": waiting, "waits": len(states)}
    answers(stage, runs, CALLS)

    def look(facts: list[Fact]) -> None:
        times = [f["t"] for f in facts if (f["who"], f["what"], f.get("place")) == ("provider", "applied", SCARCE)]
        stage.report.facts["calls of the provider"] = len(times)
        stage.expect(len(times) == RUNS * CALLS, f"{len(times)} calls of {RUNS * CALLS}")
        stage.expect(not (worst := beyond(times)), f"{worst:.1f} calls more than the bucket gave")

    stage.afterwards.append(look)


def beyond(times: list[float]) -> float:
    """By how many calls a span of them, at its worst, was more than the bucket held and what flowed in meanwhile; 0: never."""
    found = 0.0
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            flowed = PER_MINUTE * (times[last] - begin + LAG_MS) / 60_000
            found = max(found, last - first + 1 - CAPACITY - flowed)
    return found


DRILLS = [
    Drill(
        "capacity-raced",
        "SIGKILL of schedulers and the gateway beside steps that wait for a provider's bucket",
        capacity_raced,
        during={"launched": 5, "finished": RUNS},
    )
]
