"""Directed days of people and holds: approvals used, taken back and decided beside other things, questions, steps that are held; see
`days.py`.

Can go wrong: as there, a day that does not happen.
"""

import asyncio
from typing import Any

from runway.launch.v1 import approval_service_pb2 as ap
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import ApproverKey
from runway_sdk.client import Client
from runway_sdk.errors import RunwayError

from tests.simulation.flows import Plan
from tests.simulation.hand import GATEWAYS, IN_TRANSACTION_S, SCHEDULERS, Hand
from tests.simulation.lives import ANSWER
from tests.simulation.network import Weather
from tests.simulation.provider import Fate
from tests.simulation.traps import LIMIT_S, DidNotHappen, Trap
from tests.simulation.workload import Launched
from tests.simulation.world import REVIEWERS


async def _approved(hand: Hand, run: Launched, slot: str = "") -> ap.Approval:
    """Something that a run asks is allowed by as many people as it needs; what was asked."""
    asked = await hand.asked(run, slot)

    def say(name: str) -> Any:
        async def work(client: Client, key: ApproverKey) -> None:
            await client.approvals.decide(asked, key, name, approve=True)

        return hand.person(name, work)

    for name in REVIEWERS[: asked.need]:
        await say(name)
    return asked


def _take_back(hand: Hand, approval_id: str) -> asyncio.Task[Any]:
    return hand.person(REVIEWERS[0], lambda client, _: hand.world.callers.people.take_back(client, approval_id))


async def _second_call(hand: Hand) -> Launched:
    """A run has asked for leave to make its second call; the gateway knows all that it needs once its next attempt asks for the first."""
    hand.world.network.avoided.add("gateway-1")
    run = hand.launch("petition", Plan(waits=["call", "call"], calls=["plain"]))
    await _approved(hand, run, "call-0")
    await hand.asked(run, "call-1")
    return run


def _allowed_call(hand: Hand) -> Trap[Any]:
    return hand.world.network.traps.set(
        "the call that was allowed", lambda one: one.method.endswith("/InvokeTool") and b"call-1" in one.raws[0]
    )


async def allowed_call_fails(hand: Hand) -> None:
    """A call that people allowed fails for sure, and is made again: they are asked again."""
    hand.world.provider.fates.append(Fate(refused=True))
    run = hand.launch("petition", Plan(waits=["call"], calls=["plain"]))
    for name in REVIEWERS:
        hand.approve(name, run)
    await hand.until("the end of the run", lambda: run.settled)


async def call_changes(hand: Hand) -> None:
    """The attempt that people allowed something makes another call: they are asked about that one."""
    run = hand.launch("petition", Plan(waits=["call"], calls=["plain"], changes=True))
    for name in REVIEWERS:
        hand.approve(name, run)
    await hand.until("the end of the run", lambda: run.settled)


async def approval_overtaken(hand: Hand) -> None:
    """What launch tells the gateway of an approval arrives once more after its withdrawal, and then the call that it had allowed; that the
    run ends is heard nowhere yet."""
    world = hand.world
    run = await _second_call(hand)
    call = _allowed_call(hand)
    late = world.network.traps.set(
        "an approval on its way",
        lambda one: one.source.name == "launch-0" and one.method.endswith("/RaiseFences") and b"call-1" in one.raws[0],
    )
    asked = await _approved(hand, run, "call-1")
    await call.caught()
    await late.caught()
    known = world.gate.traps.set("a withdrawal that the gateway has", lambda one: (one.before, one.name) == ("by_id", "save"))
    taking = _take_back(hand, asked.approval_id)
    await known.caught()
    late.release()
    await asyncio.sleep(0.1)
    hand.cut(("launch-0",), (*GATEWAYS, *SCHEDULERS))
    known.release()
    await taking
    call.release()
    await asyncio.sleep(2.0)


async def withdrawn_out_of_reach(hand: Hand) -> None:
    """An approval is asked back while launch cannot reach the gateways, and the call that it allows arrives there."""
    run = await _second_call(hand)
    call = _allowed_call(hand)
    asked = await _approved(hand, run, "call-1")
    await call.caught()
    hand.cut(("launch-0",), GATEWAYS)
    taking = _take_back(hand, asked.approval_id)
    await asyncio.sleep(2.5)
    call.release()
    await hand.until("the call", lambda: len(hand.world.provider.applied) == 2)
    hand.world.network.cut.clear()
    await taking


async def decided_beside_a_cancel(hand: Hand) -> None:
    """A run is cancelled while a decision has read its approval, and not stored what it decides."""
    run = hand.launch("petition", Plan(waits=["leave"], wait_s=30.0))
    asked = await hand.asked(run)
    trap = hand.world.gate.traps.set("a decision", lambda one: one.name == "add_decisions")

    async def decide(client: Client, key: ApproverKey) -> None:
        await client.approvals.decide(asked, key, REVIEWERS[0], approve=True)

    deciding = hand.person(REVIEWERS[0], decide)
    await trap.caught()
    await asyncio.wait([hand.cancel(run)], timeout=IN_TRANSACTION_S)
    trap.release()
    await asyncio.wait([deciding])
    await asyncio.sleep(2.0)


async def withdrawn_as_it_expires(hand: Hand) -> None:
    """An approval is withdrawn while its end has been seen, and not stored."""
    run = hand.launch("petition", Plan(waits=["leave"], wait_s=1.0))
    asked = await hand.asked(run)
    trap = hand.world.gate.traps.set("an approval that expires", lambda one: (one.before, one.name) == ("by_id", "save"))
    await trap.caught()
    await asyncio.wait([_take_back(hand, asked.approval_id)], timeout=IN_TRANSACTION_S)
    trap.release()
    await hand.until("the end of the run", lambda: run.settled)


async def _question(hand: Hand, run: Launched, slot: str = "input-0") -> rd.Input:
    """Waits for what a run, or one below it, asks."""

    async def work() -> rd.Input:
        async with Client(hand.world.callers.target) as client:
            end_s = hand.loop.time() + LIMIT_S
            while hand.loop.time() < end_s:
                found = await client.inputs(run.run_id) if run.run_id else []
                if asked := [one for one in found if one.slot == slot]:
                    return asked[0]
                await asyncio.sleep(0.05)
            raise DidNotHappen(f"{slot}: never")

    return await hand.loop.spawn(hand.world.outside, work())


def _answer(hand: Hand, asked: rd.Input, number: int) -> asyncio.Task[bool]:
    """Somebody answers; whether that was taken."""

    async def work() -> bool:
        async with Client(hand.world.callers.target) as client:
            try:
                await client.answer(asked.run_id, number, step_key=asked.step_key, slot=asked.slot)
            except RunwayError:
                return False
            return True

    return hand.loop.spawn(hand.world.outside, work())


async def answered_again(hand: Hand) -> None:
    """Somebody answers what was answered, otherwise, while another question of the step is open."""
    run = hand.launch("petition", Plan(waits=["input", "input"]))
    asked = await _question(hand, run)
    await _answer(hand, asked, ANSWER)
    other = await _question(hand, run, "input-1")
    await _answer(hand, asked, ANSWER + 1)
    await _answer(hand, other, ANSWER)
    await hand.until("the end of the run", lambda: run.settled)


async def asked_twice(hand: Hand) -> None:
    """A child asks, and every message arrives twice."""
    hand.world.network.weather = Weather(twice=1.0)
    run = hand.launch("assembly", Plan(children=1, waits=["input"]))
    asked = await _question(hand, run)
    await asyncio.sleep(2.0)
    await _answer(hand, asked, ANSWER)
    await hand.until("the end of the run", lambda: run.settled)


async def child_asks(hand: Hand) -> None:
    """A child asks for leave: who watches its root learns of it, and decides."""
    run = hand.launch("assembly", Plan(children=1, waits=["leave"], wait_s=30.0))
    await _approved(hand, run)
    await hand.until("the end of the run", lambda: run.settled)


async def hold_meets_grant(hand: Hand) -> None:
    """A step is held while a grant of it is on its way into the rows; the other process reads of the hold at once."""
    world = hand.world
    first = world.gate.traps.set("a first grant", lambda one: one.name == "put_leased")
    run = hand.launch("chain", Plan(naps_s=2.0))
    leader = hand.member((await first.caught()).owner)
    first.release()
    others = world.gate.traps.set(
        "what the other reads of holds", lambda one: one.name == "read_in_force" and one.owner is not leader.process
    )
    await others.caught()
    grant = world.gate.traps.set("a grant", lambda one: one.name == "put_leased")
    await grant.caught()
    world.network.avoided |= {*SCHEDULERS} - {leader.name}
    holding = hand.hold(run, "second", 3.0)
    await asyncio.sleep(0.2 * IN_TRANSACTION_S)
    others.release()
    await asyncio.sleep(0.6 * IN_TRANSACTION_S)
    grant.release()
    await holding
    await hand.until("the end of the run", lambda: run.settled)


async def hold_unheard(hand: Hand) -> None:
    """A step is held by one scheduler process while the one that leads it reads nothing of that."""
    world = hand.world
    run = hand.launch("chain", Plan(naps_s=3.0))
    trap = world.gate.traps.set(
        "a commit of the run's leader",
        lambda one: one.name == "take_locks" and run.run_id and run.run_id in map(str, one.args[3]),
    )
    leader = hand.member((await trap.caught()).owner)
    trap.release()
    deaf = world.gate.traps.set(
        "what the leader reads of holds", lambda one: one.name == "read_in_force" and one.owner is leader.process
    )
    await deaf.caught()
    world.network.avoided.add(leader.name)
    holding = hand.hold(run, "second", 4.0)
    await asyncio.sleep(8.0)
    deaf.release()
    await holding
    await hand.until("the end of the run", lambda: run.settled)


async def nobody_answers(hand: Hand) -> None:
    """A run asks for leave, and nobody answers for a while."""
    run = hand.launch("petition", Plan(waits=["leave"], wait_s=30.0))
    await hand.asked(run)
    await asyncio.sleep(6.0)
    await _approved(hand, run)
    await hand.until("the end of the run", lambda: run.settled)


DAYS = (
    allowed_call_fails,
    call_changes,
    approval_overtaken,
    withdrawn_out_of_reach,
    decided_beside_a_cancel,
    withdrawn_as_it_expires,
    answered_again,
    asked_twice,
    child_asks,
    hold_meets_grant,
    hold_unheard,
    nobody_answers,
)
