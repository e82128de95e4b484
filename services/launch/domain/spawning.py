"""Authoritative for what a child run may be: inside its parent's capabilities, class, priority, deadline and money, and the
caps.

Pure. Can go wrong: a child that has more than its parent, or children beyond a cap. A spawn is judged whole, behind the
parent's lock, before any of it is stored; what is refused is refused with its reason, and its parent is told.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from libs.fence.grants import narrowed, revoked_of
from libs.fence.rules import inherited
from libs.kernel.values import value
from services.launch.domain.admission import Account
from services.launch.domain.facts import Version
from services.launch.domain.run import DECIDED, FailureFacts, RunHead

MOST_CHILDREN = 1_000
"""Of one command."""
MOST_HELD = 100
"""Spawns of one run that wait for money; more are refused."""
NO_MONEY = "BUDGET_EXHAUSTED"
SpawnKey = tuple[UUID, str, str]
"""Run, step and slot."""


@value(frozen=True, slots=True)
class ChildAsk:
    """One child, as it was asked for; -1 or None where nothing is said."""

    name: str
    workflow: str
    input: bytes
    budget_micros: int = 0
    budget_tokens: int = 0
    capabilities: tuple[str, ...] | None = None
    priority: int | None = None
    deadline_in_ms: int = 0


@value(frozen=True, slots=True)
class SpawnAsk:
    """What one command says. `problem`: why it could not be read."""

    run_id: UUID
    step_key: str
    slot: str
    group: str
    independent: bool
    children: tuple[ChildAsk, ...]
    problem: str = ""
    waits: bool = False
    """Whether it waits where the parent's envelope has too little."""
    payload: bytes = b""
    """As it came."""

    @property
    def key(self) -> SpawnKey:
        """By which it is known."""
        return (self.run_id, self.step_key, self.slot)

    @property
    def micros(self) -> int:
        """What all its children take of their parent's envelope."""
        return sum(child.budget_micros for child in self.children)


@value(frozen=True, slots=True)
class Policy:
    """What the parent's workflow version and the installation let it do."""

    independent: bool
    max_children: int
    max_depth: int


@value(frozen=True, slots=True)
class Child:
    """A child that will be."""

    run_id: UUID
    ask: SpawnAsk
    place: int
    name: str
    version: Version
    capabilities: tuple[str, ...]
    priority: int
    deadline_ms: int
    delegation: bytes
    deepest: int

    @property
    def asked(self) -> ChildAsk:
        """As it was asked for."""
        return self.ask.children[self.place]


@value(frozen=True, slots=True)
class Spawned:
    """A spawn and what becomes of it: children, or why there are none."""

    ask: SpawnAsk
    children: tuple[Child, ...] = ()
    refused: FailureFacts | None = None


@value(frozen=True, slots=True)
class HeldSpawn:
    """A spawn that waits for money. `why`: as it was said last; `payload`: the command's."""

    key: SpawnKey
    children: int
    micros: int
    why: str
    payload: bytes
    held_ms: int


def may_wait(parent: RunHead, ask: SpawnAsk, refused: FailureFacts | None, held: int) -> bool:
    """Whether a spawn that is refused waits instead: for money only, where it said so, under a parent that goes on, and where
    not too many (`held`) wait already."""
    return ask.waits and refused is not None and refused.type == NO_MONEY and parent.state not in DECIDED and held < MOST_HELD


def policy_of(parent: RunHead, version: Version | None, max_children: int, max_depth: int) -> Policy:
    """The narrowest of what the installation, the parent's version and those above it let; `max_depth` below the root."""
    if version is None:
        return Policy(False, 0, 0)
    spec = version.spec
    own = parent.depth + (spec.max_child_depth or max_depth)
    return Policy(
        spec.allow_independent_children,
        min(spec.max_children or max_children, max_children),
        min(own, max_depth, parent.deepest or max_depth),
    )


def judge(parent: RunHead, ask: SpawnAsk, policy: Policy, account: Account | None) -> FailureFacts | None:
    """Why a spawn may not be, by what stands behind the parent's lock; None where it may."""
    count = len(ask.children)
    if parent.state in DECIDED:
        return FailureFacts("policy", "the parent's outcome was decided first", "PARENT_CLOSED")
    if ask.problem:
        return FailureFacts("validation", ask.problem, "SPAWN_UNREADABLE")
    if ask.independent and not policy.independent:
        text = "the parent's workflow version allows no children that outlive it (allow_independent_children)"
        return FailureFacts("policy", text, "INDEPENDENT_DENIED")
    if parent.depth + 1 > policy.max_depth:
        text = f"children of this run would be {parent.depth + 1} levels below their root, and {policy.max_depth} are the most"
        return FailureFacts("policy", text, "DEPTH_EXCEEDED")
    if parent.children + count > policy.max_children:
        text = f"the run has spawned {parent.children} children, {count} are asked for, and {policy.max_children} are the most"
        return FailureFacts("policy", text, "FANOUT_EXCEEDED")
    if account is None or account.active_descendants + count > account.max_active_descendants:
        active, most = (account.active_descendants, account.max_active_descendants) if account else (0, 0)
        text = f"{active} child runs of the tenant are active, {count} are asked for, and {most} may be"
        return FailureFacts("policy", text, "QUOTA_EXCEEDED")
    free = parent.budget_micros - parent.delegated_micros - parent.used_micros
    if ask.micros > free:
        return out_of_budget(ask.micros, free)
    return None


def out_of_budget(asked: int, free: int) -> FailureFacts:
    """The parent's envelope has not so much."""
    text = (
        f"the children would take {asked} micros of their parent's budget, of which {max(0, free)} are free; "
        "raise it (`runway budget raise`), or spawn with wait_for_budget"
    )
    return FailureFacts("budget", text, NO_MONEY)


def behind(asked: int) -> FailureFacts:
    """Others of the same run asked first."""
    return FailureFacts(
        "budget", f"the children would take {asked} micros, and spawns that asked before wait for theirs", NO_MONEY
    )


def intersect(allowed: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """What is in both; `tool:*` stands for every tool."""
    allowed, wanted = set(allowed), set(wanted)
    found = {one for one in wanted if one in allowed or _every(one) in allowed}
    found |= {one for one in allowed if _every(one) in wanted}
    return tuple(sorted(found))


def _every(capability: str) -> str:
    return capability.partition(":")[0] + ":*"


def child_of(
    parent: RunHead,
    ask: SpawnAsk,
    place: int,
    version: Version,
    run_id: UUID,
    delegation: bytes,
    deepest: int,
    now_ms: int,
    default_ms: int,
) -> Child:
    """The child inside its parent's limits."""
    asked = ask.children[place]
    granted = intersect(parent.capabilities, version.spec.capabilities)
    if asked.capabilities is not None:
        granted = intersect(granted, asked.capabilities)
    rules = {*version.spec.rules(version.digest.hex()), *inherited(parent.capabilities, ask.step_key)}
    granted = (*granted, *sorted(rules))  # rules of approval take away: nobody leaves them out
    granted = narrowed(granted, revoked_of(parent.capabilities))  # so does what was taken from the parent
    priority = parent.priority if asked.priority is None else min(parent.priority, asked.priority)
    deadline_in = asked.deadline_in_ms or version.spec.default_deadline_ms or default_ms
    deadline_ms = min(parent.deadline_ms, now_ms + deadline_in)
    name = asked.name or str(place)
    return Child(run_id, ask, place, name, version, granted, priority, deadline_ms, delegation, deepest)


def first_of_each(asks: Sequence[SpawnAsk]) -> list[SpawnAsk]:
    """Of equal slots the first."""
    first: dict[tuple[UUID, str, str], SpawnAsk] = {}
    for ask in asks:
        first.setdefault(ask.key, ask)
    return list(first.values())


def counted(account: Account, children: int) -> Account:
    """The tenant after so many more children, for the next spawn of the same batch."""
    return Account(
        account.tenant,
        account.limit_micros,
        account.reserved_micros,
        account.spent_micros,
        account.max_active_runs,
        account.active_runs,
        account.version,
        account.max_active_descendants,
        account.active_descendants + children,
    )
