"""Directed days: each aims its faults at one guard, so that a simulation without that guard is noticed every time, not by luck.

The same world, code and checks as a seed's days; what is directed is the order: one statement, message or request is held (`traps.py`)
while another happens. The seed still decides ids, delays, and who gets what. Each mutant (`mutants.py`) names the day that finds it.

Can go wrong: a day that does not happen (its trap catches nothing). It says so, and that is no verdict.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from runway_sdk import Context, step, workflow
from runway_sdk.errors import EffectUnknown

from tests.simulation import bound_days, life_days, petition_days
from tests.simulation.flows import PATIENT, REPLAY, TTL, Plan
from tests.simulation.hand import GATEWAYS, IN_TRANSACTION_S, SCHEDULERS, Hand
from tests.simulation.loop import Process
from tests.simulation.petitions import WORKFLOWS
from tests.simulation.provider import Fate
from tests.simulation.workload import Launched


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def stubborn(ctx: Context, run: Plan) -> int:
    """Asks for a slot whose outcome is unknown again and again, instead of waiting."""
    slot = f"{run.calls[0]}-0"
    path = f"/{run.calls[0]}/{ctx.run_id}/{ctx.step_key}/{slot}"
    arguments = {"target": run.calls[0], "method": "POST", "path": path}
    for _ in range(5):
        try:
            await ctx.tool("http.request", arguments, slot=slot, replay=REPLAY[run.calls[0]], timeout_s=0)
        except EffectUnknown:
            await asyncio.sleep(0.05)
        else:
            return 1
    await ctx.tool("http.request", arguments, slot=slot, replay=REPLAY[run.calls[0]], timeout_s=60)
    return 1


alone = workflow("alone", steps=[stubborn], input=Plan)
DAY_WORKFLOWS = (*WORKFLOWS, alone)


async def _zombie(hand: Hand, method: str, run: Launched, step_key: str) -> Any:
    """A worker sends something under its first lease and is stopped; the message arrives when the day lets go of it."""

    def fits(call: Any) -> bool:
        holder = hand.holder(run, step_key)
        return call.method.endswith(f"/{method}") and holder is not None and call.source is holder.process

    trap = hand.world.network.traps.set(f"{method} of the first attempt", fits)
    call = await trap.caught()
    hand.world.pause(hand.member(call.source))
    return trap


async def cancel_before_the_commit(hand: Hand) -> None:
    """A cancel while an admission has judged and not committed: the raise waits for the gate's lock."""
    run = hand.launch("chain", Plan(calls=["plain", "plain"], naps_s=0.1))
    await hand.until("the first effect", lambda: hand.world.provider.applied)
    trap = hand.world.gate.traps.set(
        "the commit of an admission", lambda asked: (asked.before, asked.name) == ("admit", "COMMIT")
    )
    await trap.caught()
    await hand.until("the launch's answer", lambda: run.run_id)
    await asyncio.wait([hand.cancel(run)], timeout=IN_TRANSACTION_S)
    trap.release()


async def zombie_calls(hand: Hand) -> None:
    """A call of an attempt whose lease ended arrives while the next attempt has not called yet."""
    run = hand.launch("chain", Plan(calls=["plain"], naps_s=0.5))
    trap = await _zombie(hand, "InvokeTool", run, "second")
    await hand.granted(run, "second", again=True)
    trap.release()
    await asyncio.sleep(1.0)


async def zombie_completes(hand: Hand) -> None:
    """The success of an attempt whose lease ended arrives while the next attempt is at work."""
    run = hand.launch("chain", Plan(calls=["keyed"], naps_s=0.5))
    trap = await _zombie(hand, "CompleteAttempts", run, "second")
    await hand.granted(run, "second", again=True)
    trap.release()
    await asyncio.sleep(1.0)


async def zombie_checkpoints_early(hand: Hand) -> None:
    """The checkpoint of an attempt whose lease ended arrives before the next attempt has committed one."""
    run = hand.launch("chain", Plan(boundaries=2, naps_s=0.5))
    trap = await _zombie(hand, "CommitCheckpoint", run, "third")
    await hand.granted(run, "third", again=True)
    trap.release()
    await asyncio.sleep(1.0)


async def zombie_checkpoints_late(hand: Hand) -> None:
    """The same, when the next attempt has committed that boundary and is at a later one."""
    run = hand.launch("chain", Plan(boundaries=3, naps_s=0.5))
    trap = await _zombie(hand, "CommitCheckpoint", run, "third")
    await hand.until(
        "the second boundary's effect", lambda: any(one.slot.endswith("/b1") for one in hand.world.provider.applied)
    )
    trap.release()
    await asyncio.sleep(1.0)


async def deaf_gateways(hand: Hand) -> None:
    """A worker dies while the schedulers cannot reach the gateways: no grant until they can."""
    run = hand.launch("chain", Plan(calls=["keyed", "keyed"], naps_s=1.0))
    holder = await hand.granted(run, "second")
    await hand.until("the first effect", lambda: hand.world.provider.applied)
    hand.cut(SCHEDULERS, GATEWAYS)
    hand.world.kill(holder)
    await asyncio.sleep(12.0)


async def late_request(hand: Hand) -> None:
    """A request arrives seven seconds after its connection broke; the provider is asked meanwhile, and does not know it yet."""
    hand.world.provider.fates.append(Fate(arrives_s=7.0, answered=False))
    hand.launch("chain", Plan(calls=["known"]))
    await hand.until("the effect's request", lambda: not hand.world.provider.fates)
    await asyncio.sleep(8.0)


async def cancel_under_way(hand: Hand) -> None:
    """A cancel while an effect is under way: enforced at once, over only when the effect is."""
    hand.world.provider.fates.append(Fate(arrives_s=3.0))
    run = hand.launch("chain", Plan(calls=["known"]))
    await hand.until("the effect's request", lambda: not hand.world.provider.fates)
    await hand.until("the launch's answer", lambda: run.run_id)
    await hand.cancel(run)
    await asyncio.sleep(4.0)


async def points_out_of_reach(hand: Hand) -> None:
    """A cancel while launch reaches no point: it is accepted, and not enforced."""
    run = hand.launch("chain", Plan(calls=["plain"] * 8, naps_s=0.4))
    await hand.until("the first effect", lambda: hand.world.provider.applied)
    hand.cut(("launch-0",), (*GATEWAYS, *SCHEDULERS, "checkpoint-0"))
    await hand.cancel(run)
    await asyncio.sleep(2.0)


async def stubborn_attempt(hand: Hand) -> None:
    """The provider applied and did not answer; the attempt asks for the same slot again at once."""
    hand.world.provider.fates.append(Fate(answered=False))
    hand.cut(("reconciler-0",), GATEWAYS)
    run = hand.launch("alone", Plan(calls=["known"]))
    await hand.until("the effect", lambda: hand.world.provider.applied)
    await asyncio.sleep(1.0)
    hand.world.network.cut.clear()
    await hand.until("the end of the run", lambda: run.settled)


async def dies_after_its_effect(hand: Hand) -> None:
    """A worker dies between its effect and its report: the next attempt gets the first one's answer."""
    run = hand.launch("chain", Plan(calls=["plain"]))
    await hand.granted(run, "second")
    await _zombie(hand, "CompleteAttempts", run, "second")
    holder = await hand.granted(run, "second")
    hand.world.kill(holder)
    await hand.until("the end of the run", lambda: run.settled)


async def paused_gateway(hand: Hand) -> None:
    """A gateway is stopped between its intent and its request, the worker dies, and half a minute later the gateway goes on."""
    world = hand.world
    run = hand.launch("chain", Plan(calls=["known"]))
    trap = world.provider.traps.set("the request of a gateway", lambda sending: sending.method == "POST")
    gateway = hand.member((await trap.caught()).process)
    world.pause(gateway)
    trap.release()  # the next thing that it does, once it goes on
    world.network.avoided.add(gateway.name)
    world.kill(await hand.granted(run, "second"))
    end_s = hand.loop.time() + 30.0
    while hand.loop.time() < end_s and not world.provider.applied:  # by another gateway: only where stopped is taken for dead
        await asyncio.sleep(0.1)
    world.resume(gateway)
    await hand.until("the gateway's request", lambda: any(gateway.name in one.sender for one in world.provider.applied))


async def _depose(hand: Hand, scheduler: Process | None, shards: set[int]) -> None:
    """etcd forgets a scheduler, which hears nothing of it, and another is confirmed as leader of its shards."""
    world = hand.world
    member = hand.member(scheduler)
    fits = "another's confirmation"
    other = world.gate.traps.set(
        fits, lambda asked: asked.name == "confirm" and asked.owner is not scheduler and bool(shards & set(asked.args[0]))
    )
    world.etcd.cut.add(member.name)
    world.etcd.expire_of(member.name)
    successor = (await other.caught()).owner
    commit = world.gate.traps.set(
        fits, lambda asked: asked.owner is successor and (asked.before, asked.name) == ("confirm", "COMMIT")
    )
    other.release()
    await commit.caught()
    commit.release()
    await asyncio.sleep(0.05)


async def late_confirmation(hand: Hand) -> None:
    """A scheduler wins an election; while its confirmation travels, etcd forgets it, and another wins and is confirmed."""
    world = hand.world
    run = hand.launch("chain", Plan(naps_s=6.0))
    await hand.granted(run, "first")
    trap = world.gate.traps.set("the confirmation of a leader", lambda asked: asked.name == "confirm")
    world.etcd.expire_all()
    held = await trap.caught()
    await _depose(hand, held.owner, set(held.args[0]))
    trap.release()
    await asyncio.sleep(1.0)


async def deposed_leader_commits(hand: Hand) -> None:
    """A leader is deposed after it took up a report and before its commit has its locks."""
    run = hand.launch("chain", Plan(naps_s=1.0))
    await hand.granted(run, "first")
    trap = hand.world.gate.traps.set(
        "a commit of the run's leader", lambda asked: asked.name == "take_locks" and run.run_id in map(str, asked.args[3])
    )
    held = await trap.caught()
    await _depose(hand, held.owner, set(held.args[0]))
    trap.release()
    await asyncio.sleep(1.0)


Day = Callable[[Hand], Coroutine[Any, Any, None]]
DAYS: dict[str, Day] = {
    day.__name__: day
    for day in (
        cancel_before_the_commit,
        zombie_calls,
        zombie_completes,
        zombie_checkpoints_early,
        zombie_checkpoints_late,
        deaf_gateways,
        late_request,
        cancel_under_way,
        points_out_of_reach,
        stubborn_attempt,
        dies_after_its_effect,
        paused_gateway,
        late_confirmation,
        deposed_leader_commits,
        *life_days.DAYS,
        *bound_days.DAYS,
        *petition_days.DAYS,
    )
}
