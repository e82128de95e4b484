"""Directed days of children, waits, graphs and pauses; see `days.py`.

Can go wrong: as there, a day that does not happen.
"""

import asyncio
from typing import Any

from tests.simulation.flows import Plan
from tests.simulation.hand import IN_TRANSACTION_S, Hand
from tests.simulation.loop import Process
from tests.simulation.network import Weather
from tests.simulation.provider import Fate


def delivery(hand: Hand, sender: str, receiver: str, word: bytes) -> Any:
    """Events of one service to another that hold this."""

    def fits(call: Any) -> bool:
        source: Process = call.source
        there = call.address == hand.world.address(receiver, "public")
        return (
            call.method.endswith("/Deliver")
            and source.name.startswith(sender)
            and there
            and any(word in raw for raw in call.raws)
        )

    return hand.world.network.traps.set(f"what {sender} tells {receiver} of {word.decode()}", fits)


async def spawn_after_cancel(hand: Hand) -> None:
    """A command to spawn arrives after the parent's cancel."""
    trap = delivery(hand, "scheduler", "launch", b"leaf")
    run = hand.launch("family", Plan(children=2))
    await trap.caught()
    await hand.until("the launch's answer", lambda: run.run_id)
    await hand.cancel(run)
    trap.release()
    await asyncio.sleep(2.0)


async def spawn_meets_cancel(hand: Hand) -> None:
    """A cancel while a spawn has read its parent, and not stored its children."""
    trap = hand.world.gate.traps.set(
        "a spawn that has read its parent",
        lambda asked: (asked.before, asked.name) == ("spawns_known", "lock_accounts"),
    )
    run = hand.launch("family", Plan(children=2))
    await trap.caught()
    await hand.until("the launch's answer", lambda: run.run_id)
    await asyncio.wait([hand.cancel(run)], timeout=IN_TRANSACTION_S)
    trap.release()
    await asyncio.sleep(2.0)


async def cancel_tree_under_way(hand: Hand) -> None:
    """A tree is cancelled while a leaf's effect is under way: its root is over when that is."""
    hand.world.provider.fates.append(Fate(arrives_s=3.0))
    run = hand.launch("family", Plan(children=2, calls=["known"]))
    await hand.until("a leaf's request", lambda: not hand.world.provider.fates)
    await hand.cancel(run)
    await asyncio.sleep(4.0)


async def slices_twice(hand: Hand) -> None:
    """Children with slices, and every message arrives twice."""
    hand.world.network.weather = Weather(twice=1.0)
    run = hand.launch("family", Plan(children=2, calls=["keyed"], slice_micros=20_000, hold_micros=500))
    await hand.until("the end of the run", lambda: run.settled)
    await asyncio.sleep(2.0)


async def pause_the_tree(hand: Hand) -> None:
    """A tree is paused while its leaves are at work."""
    run = hand.launch("family", Plan(children=2, calls=["plain"] * 6, naps_s=0.5))
    await hand.until("a leaf's effect", lambda: hand.world.provider.applied)
    await hand.pause(run, 6.0)
    await hand.until("the end of the run", lambda: run.settled)


async def signal_again(hand: Hand) -> None:
    """An event is told of three times while two waits would take it; then the other one."""
    run = hand.launch("waiter", Plan(waits=["event", "event"], topic="again"))
    await hand.until("the launch's answer", lambda: run.run_id)
    for _ in range(3):
        await hand.signal(run, 0, "first")
        await asyncio.sleep(1.0)
    await hand.signal(run, 1, "second")
    await hand.until("the end of the run", lambda: run.settled)


async def event_meets_wait(hand: Hand) -> None:
    """An event is told of while the wait for it begins: neither sees the other's commit."""
    begins = delivery(hand, "scheduler", "readiness", b"news")
    commits = hand.world.gate.traps.set(
        "the commit of an event", lambda asked: (asked.before, asked.name) == ("read_signals", "COMMIT")
    )
    run = hand.launch("waiter", Plan(waits=["event"], topic="meeting"))
    await begins.caught()
    telling = hand.signal(run, 0, "only")
    await commits.caught()
    begins.release()
    await asyncio.sleep(0.7 * IN_TRANSACTION_S)
    commits.release()
    await telling
    await asyncio.sleep(2.0)


async def timer_alone(hand: Hand) -> None:
    """A run that waits for a time."""
    run = hand.launch("waiter", Plan(waits=["timer", "timer"], wait_s=9.0))
    await hand.until("the end of the run", lambda: run.settled)


async def loser_under_way(hand: Hand) -> None:
    """A race is decided while a loser's request has not arrived."""
    hand.world.provider.fates.append(Fate(arrives_s=6.0))
    run = hand.launch("race", Plan(calls=["known"]))
    await hand.until("the end of the run", lambda: run.settled)


async def spread_late(hand: Hand) -> None:
    """Instances are asked for by an attempt that fails, and made long after those beside them have ended."""
    run = hand.launch("wide", Plan(items=3, fails=2, naps_s=0.5))
    await hand.until("the end of the run", lambda: run.settled)


DAYS = (
    spawn_after_cancel,
    spawn_meets_cancel,
    cancel_tree_under_way,
    slices_twice,
    pause_the_tree,
    signal_again,
    event_meets_wait,
    timer_alone,
    loser_under_way,
    spread_late,
)
