"""Spawn child runs: judged whole behind the parent's lock, their money first taken from the parent's envelope at the gateway.

Once a command: what was judged is a row, and a repeat finds it. Can go wrong: a gateway that does not answer. Nothing is
decided then and the command is told again, where its slices are known by their names; the slices of a spawn that may not be
come back by the outbox, whichever process took them, or is about to. And a cancel of the parent meanwhile: it locks the same
row, so that either it finds the children or they find it.

A spawn that says so waits where only money is lacking, as a row behind the same lock, and is judged again in the order of
asking: when the budget was raised, when a slice came back, and now and then. It keeps what was taken for it; its parent's end
refuses it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from libs.kernel.epochs import make_epoch
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value
from services.launch.app.check_schemas import refuse_misfit
from services.launch.app.join_children import end_rest, judge_joins
from services.launch.domain.admission import Account
from services.launch.domain.children import SliceBack
from services.launch.domain.facts import Version
from services.launch.domain.run import DECIDED, FailureFacts, RunEventFacts, RunHead
from services.launch.domain.spawning import (
    NO_MONEY,
    Policy,
    SpawnAsk,
    Spawned,
    behind,
    child_of,
    counted,
    first_of_each,
    judge,
    may_wait,
    out_of_budget,
    policy_of,
)
from services.launch.ports import Ports, Tx

HELD_AT_ONCE = 100
MOST_AT_ONCE = 2_000
"""Children of one transaction: more would keep their parents locked for long."""
Key = tuple[UUID, str, str]


@value(frozen=True, slots=True)
class _Prepared:
    """A spawn with what it needs from outside its transaction."""

    ask: SpawnAsk
    policy: Policy
    versions: tuple[Version, ...] = ()
    refused: FailureFacts | None = None


async def judge_held(ports: Ports) -> int:
    """Spawns that wait for money and whose time has come, the first of each run, are judged as any other; how many wait no
    longer."""
    found = await ports.held.due(ports.clock.now_ms(), HELD_AT_ONCE)
    asks = [ports.notices.spawn_again(item) for item in found]
    if not asks:
        return 0
    again = await _judge(ports, asks, held=True)
    left = await ports.held.known([ask.key for ask in asks if ask.key not in again])
    return sum(ask.key not in left and ask.key not in again for ask in asks)


async def spawn_children(ports: Ports, asks: Sequence[SpawnAsk]) -> set[Key]:
    """Makes children, once a command; commands that could not be judged now and are to be told again."""
    asks = first_of_each(asks)
    keys = [ask.key for ask in asks]
    known = await ports.children.spawns_known(keys) | await ports.held.known(keys)
    now_asked: list[SpawnAsk] = []
    again: set[Key] = set()
    room = MOST_AT_ONCE
    for ask in (ask for ask in asks if ask.key not in known):
        room -= len(ask.children)
        if room < 0 and now_asked:
            again.add(ask.key)
        else:
            now_asked.append(ask)
    return again | await _judge(ports, now_asked, held=False) if now_asked else again


async def _judge(ports: Ports, now_asked: Sequence[SpawnAsk], *, held: bool) -> set[Key]:
    """Makes children of these, refuses them, or lets them wait; those that could not be judged now. `held`: they waited."""
    again: set[Key] = set()
    runs = await ports.reads.runs(sorted({ask.run_id for ask in now_asked}))
    heads = {run_id: run.head for run_id, run in runs.items()}
    prepared = [await _prepare(ports, heads[ask.run_id], ask) for ask in now_asked if ask.run_id in heads]
    if not held:
        prepared = await _queue(ports, prepared)
    try:
        prepared = await _take(ports, heads, prepared)
    except Refusal as away:
        if away.reason not in (Reason.AUTHORITY_UNREACHABLE, Reason.DEADLINE_EXCEEDED, Reason.DRAINING, Reason.OVERLOADED):
            raise
        again |= {item.ask.key for item in prepared if item.ask.micros and item.refused is None}
        prepared = [item for item in prepared if item.ask.key not in again]
    if prepared:
        await _store(ports, prepared, held=held)
    return again


async def _queue(ports: Ports, prepared: Sequence[_Prepared]) -> list[_Prepared]:
    """What may wait goes behind what waits already: who asked first is given first."""
    asking = {item.ask.run_id for item in prepared if item.ask.waits and item.ask.micros and item.refused is None}
    waiting = await ports.held.counts(sorted(asking)) if asking else {}
    return [
        replace(item, refused=behind(item.ask.micros))
        if item.ask.waits and item.ask.micros and item.refused is None and item.ask.run_id in waiting
        else item
        for item in prepared
    ]


async def _prepare(ports: Ports, parent: RunHead, ask: SpawnAsk) -> _Prepared:
    """Versions and whether the inputs fit them; what may certainly not be takes no slice."""
    limits = ports.limits
    if ask.problem:
        failure = FailureFacts("validation", ask.problem, "SPAWN_UNREADABLE")
        return _Prepared(ask, policy_of(parent, None, 0, 0), refused=failure)
    try:
        pin = await ports.catalogue.resolve(parent.tenant, parent.project, parent.digest.hex())
    except Refusal as unknown:
        if unknown.reason is not Reason.NOT_FOUND:
            raise
        return _Prepared(
            ask, policy_of(parent, None, 0, 0), refused=FailureFacts("policy", unknown.message, "WORKFLOW_UNKNOWN")
        )
    policy = policy_of(parent, pin, limits.max_children, limits.max_child_depth)
    versions: list[Version] = []
    try:
        names = dict.fromkeys(child.workflow for child in ask.children)
        # once a name: a version that is published meanwhile must not divide the children of one command
        named = {name: await ports.catalogue.resolve(parent.tenant, parent.project, name) for name in names}
        for place, child in enumerate(ask.children):
            version = named[child.workflow]
            if version.spec.input_schema:
                refuse_misfit(version.spec.input_schema, ports.notices.plain(child.input), f"children[{place}].input")
            versions.append(version)
    except Refusal as no:
        if no.reason not in (Reason.NOT_FOUND, Reason.INVALID_FIELD):
            raise
        found = no.reason is Reason.INVALID_FIELD
        failure = FailureFacts("validation" if found else "policy", no.message, "INPUT_MISFIT" if found else "WORKFLOW_UNKNOWN")
        return _Prepared(ask, policy, refused=failure)
    roomy = Account(parent.tenant, 0, 0, 0, 0, 0, 0, len(ask.children), 0)  # the tenant's own cap is judged behind its lock
    return _Prepared(ask, policy, tuple(versions), judge(parent, ask, policy, roomy))


def _slices(ask: SpawnAsk) -> list[tuple[bytes, int, int]]:
    return [
        (delegation_of(ask, place), child.budget_micros, 1) for place, child in enumerate(ask.children) if child.budget_micros
    ]


def delegation_of(ask: SpawnAsk, place: int) -> bytes:
    """Names a child's slice: by what the child is known by."""
    return digest(f"{ask.run_id}\0{ask.step_key}\0{ask.slot}\0{place}".encode())


async def _take(ports: Ports, heads: Mapping[UUID, RunHead], prepared: Sequence[_Prepared]) -> list[_Prepared]:
    """The slices, first: what an envelope does not have is refused."""
    wanting = [item for item in prepared if item.refused is None and item.ask.micros]
    if not wanting:
        return list(prepared)
    answers = await ports.envelopes.take([(heads[item.ask.run_id], _slices(item.ask)) for item in wanting])
    told = {item.ask.key: answer for item, answer in zip(wanting, answers, strict=True)}
    found = []
    for item in prepared:
        answer = told.get(item.ask.key)
        if answer is None or answer.taken:
            found.append(item)
        elif answer.reason == "budget":
            found.append(replace(item, refused=out_of_budget(item.ask.micros, answer.free)))
        else:
            text = f"the parent's envelope gives nothing more ({answer.reason})"
            found.append(replace(item, refused=FailureFacts("policy", text, "PARENT_CLOSED")))
    return found


async def _store(ports: Ports, prepared: Sequence[_Prepared], *, held: bool) -> None:
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> tuple[list[SpawnAsk], set[UUID]]:
        heads = await tx.lock_heads(sorted({item.ask.run_id for item in prepared}))
        keys = [item.ask.key for item in prepared]
        waiting = await tx.held_known(keys)
        counts = await tx.held_counts(sorted(heads)) if any(item.ask.waits for item in prepared) else {}
        known = await tx.spawns_known(keys)
        known |= set(keys) - waiting if held else waiting  # judged meanwhile by another process, or waiting already
        holding: list[tuple[SpawnAsk, str]] = []
        accounts = await tx.lock_accounts(sorted({head.tenant for head in heads.values()}))
        spawned: list[Spawned] = []
        back: list[SliceBack] = []
        parents = dict(heads)
        for item in (item for item in prepared if item.ask.key not in known and item.ask.run_id in heads):
            parent = parents[item.ask.run_id]
            refused = item.refused
            if refused is None or (refused.type == NO_MONEY and parent.state in DECIDED):  # that is why it waits no longer
                refused = judge(parent, item.ask, item.policy, accounts.get(parent.tenant))
            if refused is not None and may_wait(parent, item.ask, refused, 0 if held else counts.get(parent.run_id, 0)):
                holding.append((item.ask, refused.message))
                counts[parent.run_id] = counts.get(parent.run_id, 0) + 1
                continue
            if refused is not None:
                spawned.append(Spawned(item.ask, refused=refused))
                back += [SliceBack(parent.run_id, name, 0) for name, _, _ in _slices(item.ask)]
                continue
            spawned.append(_children(ports, parent, item, now))
            parents[parent.run_id] = replace(
                parent,
                children=parent.children + len(item.ask.children),
                delegated_micros=parent.delegated_micros + item.ask.micros,
            )
            accounts[parent.tenant] = counted(accounts[parent.tenant], len(item.ask.children))
        if held:
            await tx.put_off(holding, now)
            await tx.drop_held([item.ask.key for item in spawned], now)
        else:
            await tx.put_held(holding, now)
            await tx.append_events([_waits(ask, why, now) for ask, why in holding])
        ending = await _write(ports, tx, heads, spawned, back, now) if spawned else set()
        return [*(item.ask for item in spawned), *(ask for ask, _ in holding)], ending

    judged, ending = await ports.db.run(work)
    ports.hub.poke(sorted({ask.run_id for ask in judged}), state=False)
    await end_rest(ports, sorted(ending))


def _children(ports: Ports, parent: RunHead, item: _Prepared, now: int) -> Spawned:
    default_ms = ports.limits.default_deadline_ms
    return Spawned(
        item.ask,
        tuple(
            child_of(
                parent,
                item.ask,
                place,
                version,
                ports.ids.uuid7(),
                delegation_of(item.ask, place),
                item.policy.max_depth,
                now,
                default_ms,
            )
            for place, version in enumerate(item.versions)
        ),
    )


async def _write(
    ports: Ports, tx: Tx, heads: Mapping[UUID, RunHead], spawned: Sequence[Spawned], back: Sequence[SliceBack], now: int
) -> set[UUID]:
    """Stores it; runs with joins whose rest is to be ended."""
    children = [child for item in spawned for child in item.children]
    await tx.admit_children(children, now)
    await tx.put_spawns(spawned, now)
    epoch = make_epoch(tx.incarnation, 1)
    notices = [ports.notices.spawned(heads[child.ask.run_id], child, epoch, now) for child in children]
    await tx.send([*notices, *(ports.notices.slice_back(item, now) for item in back)], now)
    await tx.append_events([_entry(item, now) for item in spawned])
    waiting = sorted({item.ask.run_id for item in spawned if heads[item.ask.run_id].state not in DECIDED})
    return await judge_joins(ports, tx, waiting, now) if waiting else set()


def _waits(ask: SpawnAsk, why: str, now: int) -> RunEventFacts:
    detail = {"slot": ask.slot, "group": ask.group, "children": len(ask.children), "micros": ask.micros, "reason": why}
    detail_json = json.dumps(detail, ensure_ascii=False)
    return RunEventFacts(ask.run_id, 0, now, "run.spawn_held", 0, ask.step_key, "launch", detail_json)


def _entry(item: Spawned, now: int) -> RunEventFacts:
    detail: dict[str, object] = {"slot": item.ask.slot, "group": item.ask.group, "children": len(item.ask.children)}
    if item.refused is not None:
        detail |= {"type": item.refused.type, "reason": item.refused.message}
    kind = "run.spawned" if item.refused is None else "run.spawn_refused"
    return RunEventFacts(item.ask.run_id, 0, now, kind, 0, item.ask.step_key, "launch", json.dumps(detail, ensure_ascii=False))
