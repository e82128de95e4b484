"""What a claim cycle costs: 1,000 free slots of a hundred shared workers over queues of 1,000 to 100,000 tickets of up to 1,000 tenants,
each with several handlers and classes. Processor milliseconds of one core, the least of several rounds: planning alone, without the commit.

Can go wrong: a queue so even that every shortcut fits it. Ranks, classes and what tenants used are random, from one seed.
"""

import random
import time
import uuid
from typing import cast

from services.scheduler.app.queue import Ready, ReadyIndex
from services.scheduler.domain.lines import Candidate
from services.scheduler.domain.planner import Standing, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.shares import Used
from services.scheduler.domain.ticket import TicketRow

SLOTS, WORKERS, TENANTS, ROUNDS = 1_000, 100, 1_000, 5
HANDLERS = [f"flow{number}.step@1" for number in range(7)]


def _queue(size: int, chance: random.Random) -> ReadyIndex:
    index = ReadyIndex()
    for number in range(size):
        candidate = Candidate(
            key=(uuid.UUID(int=chance.getrandbits(128)), "step"),
            tenant=f"tenant-{number % TENANTS}",
            project="default",
            run_class=chance.choice([1, 2, 2, 3]),
            handler=chance.choice(HANDLERS),
            requires=frozenset(),
            rank_ms=chance.randrange(10**7),
            size_bytes=2_000,
        )
        index.add(Ready(candidate, 0, 1, 0, cast(TicketRow, None), 0))
    return index


def planning() -> dict[str, object]:
    """By size of the queue: milliseconds of a cycle, microseconds to queue a ticket, and to take one out."""
    chance = random.Random(1)
    polls = [
        Poll(number, "", "", frozenset(HANDLERS), frozenset(), SLOTS // WORKERS, worker_id=f"w{number}")
        for number in range(WORKERS)
    ]
    used = {f"tenant-{number}": Used(chance.randrange(5), chance.random() * 5) for number in range(TENANTS)}
    standing = Standing(used=used)
    found: dict[str, object] = {}
    for size in (1_000, 10_000, 100_000):
        began = time.process_time()
        index = _queue(size, chance)
        queued = time.process_time() - began
        rounds = []
        for _ in range(ROUNDS):
            began = time.process_time()
            grants = plan(polls, index.for_polls(polls), standing)
            rounds.append(time.process_time() - began)
        began = time.process_time()
        for grant in grants:
            index.remove(grant.key)
        taken = time.process_time() - began
        found[str(size)] = {
            "grants": len(grants),
            "cycle_ms": round(min(rounds) * 1e3, 1),
            "queue_us": round(queued / size * 1e6, 1),
            "take_us": round(taken / len(grants) * 1e6, 1),
        }
    return found
