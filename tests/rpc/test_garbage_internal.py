"""Every internal RPC and every kind of event, with the installation's secret and fed nonsense; and nothing grows by it.

Can go wrong: what one service believes of another. A peer that is broken, older or newer may send anything: each event is
judged by itself, and a bad one never holds up its neighbours nor ends in an unforeseen error.
"""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psutil
from google.protobuf import descriptor_pool
from runway.events.v1 import events_pb2 as ev
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2 as cp
from runway.internal.fence.v1 import fence_pb2 as fe
from runway.internal.gateway.v1 import gateway_internal_pb2 as gw
from runway.internal.inbox.v1 import inbox_pb2 as ib
from runway.internal.launch.v1 import launch_internal_pb2 as la
from runway.internal.readiness.v1 import readiness_internal_pb2 as rd
from runway.internal.scheduler.v1 import scheduler_internal_pb2 as sc

from libs.kernel.refusal import Refusal
from libs.runtime.service import SERVICES
from libs.testkit.waiting import wait_until
from tests.rpc.garbage import Noise
from tests.rpc.plausible import good_requests
from tests.rpc.plausible_internal import good_events, good_internal
from tests.rpc.test_garbage import (
    ROUNDS,
    SEED,
    Target6,
    all_serving,
    judge,
    methods,
    payloads,
    send,
    six,
    work_goes_on,
)

__all__ = ["six"]
INTERNAL = (cp, fe, gw, ib, la, rd, sc)
PASSES = 3
MOST_GROWTH_BYTES = 24 << 20


def internal_methods() -> Iterator[tuple[str, Any]]:
    """Every RPC that services call of each other."""
    pool = descriptor_pool.Default()
    for file in INTERNAL:
        for service in pool.FindFileByName(file.DESCRIPTOR.name).services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method


def noise_of(target: Target6) -> Noise:
    """Nonsense that knows a real run, but neither a tenant nor a tool that the work needs: those might be stopped in earnest."""
    run = UUID(target.lease.run_id).bytes
    return Noise(SEED, ("act", "work", *SERVICES), (run, target.lease.attempt_id, target.lease.lease_token, uuid4().bytes))


def wrong_of(method: Any, path: str, code: str, answer: Any) -> str:
    """What is wrong with an answer; that this process leads no such shard is none."""
    if method.name in ("Forward", "Deliver") and isinstance(answer, Refusal) and answer.reason.value == "NO_LEADER":
        return ""
    return judge(path, method, code, answer)


async def test_nonsense_between_services_is_refused_with_a_reason(six: Target6) -> None:
    noise = noise_of(six)
    run, attempt = UUID(six.other_run).bytes, six.lease.attempt_id
    good = good_internal(run, attempt, six.lease.lease_token)
    assert {method.name for _, method in internal_methods()} == set(good), "each internal RPC has a request to spoil"
    wrong: list[str] = []
    for path, method in internal_methods():
        for what, wire in payloads(noise, method, good[method.name]):
            code, answer = await send(six, path, method, wire, six.headers())
            if problem := wrong_of(method, path, code, answer):
                wrong.append(f"{what}: {problem} for {wire[:200].hex()}")
        code, answer = await send(six, path, method, good[method.name][0].SerializeToString(), six.headers()[:1])
        if code not in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            wrong.append(f"without the secret: {path}: {code} {answer}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
    await all_serving(six)
    await asyncio.wait_for(work_goes_on(six), 30)


async def test_nonsense_in_events_is_judged_each_by_itself(six: Target6) -> None:
    noise = noise_of(six)
    run, attempt = UUID(six.other_run).bytes, six.lease.attempt_id
    kinds = {field.name for field in ev.Event.DESCRIPTOR.oneofs_by_name["fact"].fields}
    good = good_events(run, attempt)
    assert {event.WhichOneof("fact") for event in good} == kinds, "each event has an example to spoil"
    path, deliver = next((path, method) for path, method in internal_methods() if method.name == "Deliver")
    wrong: list[str] = []
    for service in SERVICES:
        for event in good:
            raws = [event.SerializeToString(), noise.raw(), noise.cut(event)]
            for _ in range(ROUNDS // 2):
                spoilt = ev.Event()
                spoilt.CopyFrom(event)
                noise.spoil_one(spoilt)
                raws.append(spoilt.SerializeToString())
            raws.append(noise.fill(ev.Event()).SerializeToString())
            raws += [wire for _, wire in noise.strange_texts(event)]
            request = ib.DeliverRequest(service=service, events=raws)
            code, answer = await send(six, path, deliver, request.SerializeToString(), six.headers())
            if problem := wrong_of(deliver, path, code, answer):
                wrong.append(f"{service} {event.WhichOneof('fact')}: {problem}")
            elif code == "OK" and any(verdict.verdict == ib.VERDICT_UNSPECIFIED for verdict in answer.verdicts):
                wrong.append(f"{service} {event.WhichOneof('fact')}: an event without a verdict")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
    await all_serving(six)
    await asyncio.wait_for(work_goes_on(six), 30)


async def corpus(target: Target6) -> list[tuple[str, Any, bytes]]:
    """Calls that are refused: a fixed noise, less what was accepted."""
    noise = noise_of(target)
    run, attempt = UUID(target.other_run).bytes, target.lease.attempt_id
    good = good_requests(target.lease, target.other_run) | good_internal(run, attempt, target.lease.lease_token)
    refused = []
    for path, method in (*methods(), *internal_methods()):
        for _, wire in list(payloads(noise, method, good[method.name][:1]))[:12]:
            code, _ = await send(target, path, method, wire, target.headers())
            if code not in ("OK", "DEADLINE_EXCEEDED"):
                refused.append((path, method, wire))
    return refused


async def end_the_attempt(target: Target6) -> None:
    """Nobody beats for its lease: it would end by itself while tables are compared."""
    path, method = next((path, method) for path, method in methods() if method.name == "CompleteAttempts")
    request = good_requests(target.lease, target.other_run)[method.name][0]

    async def ended() -> bool:
        await send(target, path, method, request.SerializeToString(), target.headers())
        counts = await target.stored()
        return counts["scheduler.attempt"] == 1

    await wait_until(ended, timeout_s=30, what="an attempt that has ended")


def held(process: psutil.Process) -> dict[str, int]:
    """What a process holds that could grow."""
    gc.collect()
    return {"tasks": len(asyncio.all_tasks()), "files": process.num_fds(), "threads": process.num_threads()}


async def test_refused_nonsense_leaves_nothing_behind(six: Target6) -> None:
    process = psutil.Process()
    await end_the_attempt(six)
    calls = await corpus(six)
    assert len(calls) > 200
    # a launch that was spoilt and still taken may have a deadline of seconds
    await six.stores["launch"].execute("UPDATE run SET deadline_ms = deadline_ms + 86400000 WHERE state < 9")
    stored, before, size = await six.stored(), {}, 0
    for turn in range(PASSES):
        for path, method, wire in calls:
            await send(six, path, method, wire, six.headers())
        if turn == 0:  # pools and caches are warm now
            before, size = held(process), process.memory_info().rss

    async def settled() -> bool:
        return all(now <= before[what] + 4 for what, now in held(process).items())

    await wait_until(settled, timeout_s=20, what=f"as little held as after the first pass, {before}")
    grown = process.memory_info().rss - size
    assert grown < MOST_GROWTH_BYTES, f"{grown >> 20} MiB more after {(PASSES - 1) * len(calls)} refused calls"
    assert await six.stored() == stored
    await all_serving(six)
