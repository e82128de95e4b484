"""Directed days of bounds: capacity, spawns that wait for money, raises, revocations; see `days.py`.

Can go wrong: as there, a day that does not happen.
"""

import asyncio
from typing import Any

from tests.simulation import bounds
from tests.simulation.flows import Plan
from tests.simulation.hand import GATEWAYS, IN_TRANSACTION_S, Hand
from tests.simulation.life_days import delivery
from tests.simulation.provider import Fate
from tests.simulation.workload import Launched

TOOL = "tool:http.request"


async def room_for_many(hand: Hand) -> None:
    """A bucket was emptied, and a run waits for as many calls as it holds."""
    world = hand.world
    await world.put_bucket(3, 60)
    hand.launch("thirsty", Plan(draws=[3]))
    await hand.until("an empty bucket", lambda: len(world.provider.answered) == 3)
    await asyncio.sleep(1.2)  # the scheduler has seen it, and a call's worth flowed in
    run = hand.launch("thirsty", Plan(draws=[3]))
    await hand.until("the end of the run", lambda: run.settled)


async def dies_with_its_room(hand: Hand) -> None:
    """A worker dies with the lease that its step's wait for capacity was for."""
    await hand.world.put_bucket(4, 240)
    run = hand.launch("thirsty", Plan(draws=[2], naps_s=1.0))
    await hand.until("the end of a wait", lambda: _told(run))
    hand.world.kill(await hand.granted(run, "drink", again=True))
    await hand.until("the end of the run", lambda: run.settled)


async def room_too_late(hand: Hand) -> None:
    """A bucket into which little flows is empty; a run waits for it as long as it said, and its worker dies once it goes on."""
    world = hand.world
    await world.put_bucket(2, 6)
    hand.launch("thirsty", Plan(draws=[2]))
    await hand.until("an empty bucket", lambda: len(world.provider.answered) == 2)
    run = hand.launch("thirsty", Plan(draws=[2], wait_s=4.0, naps_s=1.0))
    await hand.until("the end of a wait", lambda: _told(run))
    world.kill(await hand.granted(run, "drink", again=True))
    await hand.until("the end of the run", lambda: run.settled)


def _told(run: Launched) -> bool:
    """Whether the run's first wait for capacity is over."""
    return (run.run_id, "room-0") in bounds.told


async def two_gateways_draw(hand: Hand) -> None:
    """Two gateways draw from one bucket at once: one has read it and not saved it."""
    world = hand.world
    await world.put_bucket(4, 6)
    trap = world.gate.traps.set("a draw", lambda asked: asked.name == "save_levels")
    hand.launch("spender", Plan(spends=2))
    first = hand.member((await trap.caught()).owner)
    world.network.avoided.add(first.name)
    run = hand.launch("spender", Plan(spends=2))
    await asyncio.sleep(0.8 * IN_TRANSACTION_S)
    trap.release()
    await hand.until("the end of the run", lambda: run.settled)


async def spawns_in_order(hand: Hand) -> None:
    """Of two spawns that wait for money the later one needs less: it waits behind the first."""
    run = hand.launch("frugal", Plan(children=3, slice_micros=2_500, budget_micros=2_600))
    await hand.until("the launch's answer", lambda: run.run_id)
    await asyncio.sleep(8.0)  # the first child has given back what it did not use
    await hand.raise_budget(run, 6_000)
    await hand.until("the end of the run", lambda: run.settled)


async def spawn_beside_a_call(hand: Hand) -> None:
    """A spawn asks for money that a call of its parent holds while it is under way."""
    world = hand.world
    world.provider.fates.append(Fate(arrives_s=3.0))
    trap = delivery(hand, "scheduler", "launch", b"spender")
    run = hand.launch("frugal", Plan(children=1, items=1, spends=2, naps_s=4.0, slice_micros=2_500, budget_micros=2_600))
    await trap.caught()
    await hand.until("a call", lambda: not world.provider.fates)
    trap.release()
    await hand.until("the call's answer", lambda: world.provider.answered)
    await asyncio.sleep(5.0)
    await hand.raise_budget(run, 3_000)
    await hand.until("the end of the run", lambda: run.settled)


async def cancel_meets_held_spawn(hand: Hand) -> None:
    """A spawn that waited for money has taken its slice, and is not stored yet, while its parent is cancelled."""
    world = hand.world
    run = hand.launch("frugal", Plan(children=1, slice_micros=2_500, budget_micros=100))
    await hand.until("the launch's answer", lambda: run.run_id)
    await asyncio.sleep(3.0)
    taken = world.gate.traps.set("a slice", lambda asked: (asked.before, asked.name) == ("take_slices", "COMMIT"))
    raising = hand.raise_budget(run, 3_000)
    await taken.caught()
    stored = world.gate.traps.set("a spawn with its slice", lambda asked: asked.name == "lock_heads")
    taken.release()
    await stored.caught()
    await asyncio.wait([hand.cancel(run)], timeout=0.7 * IN_TRANSACTION_S)
    stored.release()
    await raising
    await asyncio.sleep(2.0)


async def raised_twice(hand: Hand) -> None:
    """A run waits for money, and one raise is told of three times."""
    run = hand.launch("spender", Plan(spends=2, budget_micros=500))
    await hand.until("the launch's answer", lambda: run.run_id)
    await asyncio.sleep(2.0)
    await hand.raise_budget(run, 5_000, times=3)
    await hand.until("the end of the run", lambda: run.settled)


async def raises_overtake(hand: Hand) -> None:
    """What the gateway is told of a raise arrives after what it is told of the next one."""
    world = hand.world
    run = hand.launch("spender", Plan(spends=4, naps_s=2.0, budget_micros=1_500))
    await hand.until("a call", lambda: world.provider.answered)
    fits: Any = lambda call: call.source.name == "launch-0" and call.method.endswith("/RaiseFences")  # noqa: E731
    trap = world.network.traps.set("the first raise", fits)
    first = hand.raise_budget(run, 200)
    await trap.caught()
    await first
    await hand.raise_budget(run, 5_000)
    await hand.until("a call that the second paid", lambda: len(world.provider.answered) > 2)
    trap.release()
    await hand.until("the end of the run", lambda: run.settled)


async def revoked_under_way(hand: Hand) -> None:
    """A run loses what it is using."""
    run = hand.launch("chain", Plan(calls=["plain"] * 8, naps_s=0.5))
    await hand.until("the first effect", lambda: hand.world.provider.applied)
    await hand.until("the launch's answer", lambda: run.run_id)
    await hand.revoke(run, TOOL)
    await hand.until("the end of the run", lambda: run.settled)


async def tree_revoked(hand: Hand) -> None:
    """A tree loses what its leaves are using."""
    run = hand.launch("family", Plan(children=2, calls=["plain"] * 6, naps_s=0.5))
    await hand.until("a leaf's effect", lambda: hand.world.provider.applied)
    await hand.revoke(run, TOOL)
    await hand.until("the end of the run", lambda: run.settled)


async def spawn_meets_revocation(hand: Hand) -> None:
    """A run loses something while a spawn has read it, and not stored its children."""
    trap = hand.world.gate.traps.set(
        "a spawn that has read its parent",
        lambda asked: (asked.before, asked.name) == ("spawns_known", "lock_accounts"),
    )
    run = hand.launch("family", Plan(children=2, calls=["plain"] * 4, naps_s=0.5))
    await trap.caught()
    await hand.until("the launch's answer", lambda: run.run_id)
    await asyncio.wait([hand.revoke(run, TOOL)], timeout=0.7 * IN_TRANSACTION_S)
    trap.release()
    await hand.until("the end of the run", lambda: run.settled)


async def revoked_out_of_reach(hand: Hand) -> None:
    """A run loses what it is using while launch reaches no point: that is accepted, and not enforced."""
    run = hand.launch("chain", Plan(calls=["plain"] * 8, naps_s=0.5))
    await hand.until("the first effect", lambda: hand.world.provider.applied)
    await hand.until("the launch's answer", lambda: run.run_id)
    hand.cut(("launch-0",), (*GATEWAYS, "scheduler-0", "scheduler-1", "checkpoint-0"))
    hand.revoke(run, TOOL)
    await asyncio.sleep(3.0)


async def revoked_beside_a_cancel(hand: Hand) -> None:
    """A child was cancelled, and no point knows it yet, when its tree loses what it is using."""
    world = hand.world
    run = hand.launch("family", Plan(children=1, calls=["plain"] * 8, naps_s=0.5))
    await hand.until("the child's effect", lambda: world.provider.applied)
    child = world.provider.applied[0].slot.partition("/")[0]
    about = bytes.fromhex(child.replace("-", ""))
    raises: Any = lambda call: call.source.name == "launch-0" and any(about in raw for raw in call.raws)  # noqa: E731
    traps = [world.network.traps.set(f"raise {number} of the child", raises) for number in range(12)]
    hand.cancel_below(run)
    await traps[0].caught()
    await asyncio.sleep(1.0)
    revoking = hand.revoke(run, TOOL)
    await asyncio.sleep(4.0)
    for trap in traps:
        trap.release()
    await revoking
    await hand.until("the end of the run", lambda: run.settled)


DAYS = (
    room_for_many,
    dies_with_its_room,
    room_too_late,
    two_gateways_draw,
    spawns_in_order,
    spawn_beside_a_call,
    cancel_meets_held_spawn,
    raised_twice,
    raises_overtake,
    revoked_under_way,
    tree_revoked,
    spawn_meets_revocation,
    revoked_out_of_reach,
    revoked_beside_a_cancel,
)
