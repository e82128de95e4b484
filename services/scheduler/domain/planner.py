"""Authoritative for who gets what: one claim cycle, from waiting polls and ready tickets to a plan. Pure; commits nothing.

Order of tickets: class, priority, deadline, tenants in turn, then as they came. A worker gets only tickets of its own
tenant (and of its key's project, where the key is bound to one), or, in a fleet, of every tenant; with its handlers,
whose labels it has. Of the polls that fit, the one with the most free slots takes a ticket, so that work spreads.

An answer is bounded in bytes as well: a poll takes no ticket beyond what is left of its room, but always a first one.

Can go wrong: tickets that nobody fits. They stay; `unserved` names their handlers.
"""

from collections.abc import Iterable, Sequence

from libs.kernel.values import value
from services.scheduler.domain.ticket import Key

CLASS_ORDER = {1: 0, 4: 1, 0: 2, 2: 2, 3: 3}
"""runway.launch.v1.RunClass → rank: interactive, approval_resume, automation, migration."""

NO_DEADLINE = 2**62


@value(frozen=True, slots=True)
class Poll:
    """A worker process that waits, with free slots."""

    number: int
    tenant: str
    """Whose tickets it takes; empty: every tenant's."""
    project: str
    handlers: frozenset[str]
    labels: frozenset[str]
    slots: int
    room_bytes: int = 2**62
    """What its leases may weigh together; a first one may weigh more."""


@value(frozen=True, slots=True)
class Candidate:
    """A ready ticket."""

    key: Key
    tenant: str
    project: str
    run_class: int
    priority: int
    deadline_ms: int
    handler: str
    requires: frozenset[str]
    order: int
    size_bytes: int = 0
    """What its lease weighs in an answer."""


@value(frozen=True, slots=True)
class Grant:
    """A ticket for a poll."""

    poll: int
    key: Key


def urgency(ticket: Candidate) -> tuple[int, int, int]:
    """What is compared before tenants take turns; less goes first."""
    return (CLASS_ORDER.get(ticket.run_class, 2), -ticket.priority, ticket.deadline_ms or NO_DEADLINE)


def in_turn(tickets: Iterable[Candidate]) -> list[Candidate]:
    """Tickets in the order in which they are served."""
    ordered = sorted(tickets, key=lambda ticket: (*urgency(ticket), ticket.order))
    turns: dict[tuple[tuple[int, int, int], str], int] = {}
    ranked: list[tuple[tuple[int, int, int], int, int, Candidate]] = []
    for ticket in ordered:
        group = (urgency(ticket), ticket.tenant)
        turn = turns.get(group, 0)
        turns[group] = turn + 1
        ranked.append((group[0], turn, ticket.order, ticket))
    ranked.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in ranked]


def fits(poll: Poll, ticket: Candidate) -> bool:
    """Whether this worker may run this ticket."""
    return (
        poll.tenant in ("", ticket.tenant)
        and (not poll.project or poll.project == ticket.project)
        and ticket.handler in poll.handlers
        and ticket.requires <= poll.labels
    )


def plan(polls: Sequence[Poll], tickets: Iterable[Candidate]) -> list[Grant]:
    """Who gets what. No ticket twice, no poll more than its slots, nothing that does not fit."""
    free = {poll.number: poll.slots for poll in polls}
    room = {poll.number: poll.room_bytes for poll in polls}
    by_handler: dict[tuple[str, str], list[Poll]] = {}
    for poll in polls:
        for handler in poll.handlers:
            by_handler.setdefault((poll.tenant, handler), []).append(poll)
    grants: list[Grant] = []
    left = sum(free.values())
    for ticket in in_turn(tickets):
        if left == 0:
            break
        able = [
            poll
            for tenant in (ticket.tenant, "")
            for poll in by_handler.get((tenant, ticket.handler), ())
            if free[poll.number]
            and fits(poll, ticket)
            and (ticket.size_bytes <= room[poll.number] or free[poll.number] == poll.slots)
        ]
        if not able:
            continue
        chosen = max(able, key=lambda poll: (free[poll.number], -poll.number))
        free[chosen.number] -= 1
        room[chosen.number] -= ticket.size_bytes
        left -= 1
        grants.append(Grant(chosen.number, ticket.key))
    return grants
