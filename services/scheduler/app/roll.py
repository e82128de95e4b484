"""Worker processes heard of here, and those that said that they claim nothing more. Authoritative for nothing: people are told
of it, and it counts as capacity.

Two processes may have one name: a new one that began before the old one has ended. Where both say which they are, the leaving
of one says nothing of the other. Can go wrong: a process that does not say. What is said under its name counts for both then.
"""

from dataclasses import dataclass

from libs.kernel.values import value
from services.scheduler.domain.resources import Amounts

Name = tuple[str, str]
"""Tenant of the key, and worker_id."""


@dataclass(slots=True)
class Heard:
    """A worker process seen here. Handlers are known once it claimed here."""

    tenant: str
    project: str
    worker_id: str
    handlers: frozenset[str]
    capabilities: frozenset[str]
    seen_ms: int
    fleet: bool = False
    resources: Amounts = ()
    """What it has in all besides slots."""
    slots: int = 0
    process: bytes = b""
    """Which of that name; empty: it does not say."""


@value(frozen=True, slots=True)
class Left:
    """A worker process that claims nothing more."""

    at_ms: int
    process: bytes = b""


def _others(one: bytes, other: bytes) -> bool:
    """Whether these are two processes of one name."""
    return bool(one and other and one != other)


def see(workers: dict[Name, Heard], left: dict[Name, Left], heard: Heard) -> bool:
    """A worker process was heard of; whether it says of resources what was not known. One that signed off and claims again is
    new, unless it says that it is the same: that claim comes late."""
    name = (heard.tenant, heard.worker_id)
    said, known = left.get(name), workers.get(name)
    if said is not None and (not heard.handlers or (heard.process and heard.process == said.process)):
        return False
    left.pop(name, None)
    if known is not None and not heard.handlers:
        if not _others(known.process, heard.process):
            known.seen_ms = heard.seen_ms
        return False
    heard.fleet = heard.fleet or (known is not None and known.fleet)  # one name for both: shown to fewer people
    workers[name] = heard
    return bool(heard.resources) and heard.fleet and (known is None or known.resources != heard.resources)


def leave(workers: dict[Name, Heard], left: dict[Name, Left], name: Name, said: Left, *, last: bool) -> bool:
    """A worker process claims nothing more; `last`: it has nothing left that beats. Whether shared resources went with it."""
    known, before = workers.get(name), left.get(name)
    if known is not None and _others(known.process, said.process):
        return False
    gone = workers.pop(name, None)
    if last or before is None or _others(before.process, said.process):
        left[name] = said
    return gone is not None and bool(gone.resources) and gone.fleet


def has_left(left: dict[Name, Left], name: Name, process: bytes) -> bool:
    """Whether this process of a name claims nothing more."""
    said = left.get(name)
    return said is not None and not _others(said.process, process)
