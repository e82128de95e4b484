"""Take capabilities from a run and from all below it that does not outlive it: every row and every raise in one commit, then
all points asked at once.

Locked whole, as for a cancel: a spawn meanwhile is either seen here, or finds its parent narrowed. Can go wrong: a
point that does not answer. It is raised by the outbox until it has, and until then the answer says ACCEPTED and not ENFORCED.
"""

import json
from collections.abc import Mapping, Sequence
from uuid import UUID

from libs.fence.grants import Revoked
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, not_found
from libs.kernel.values import value
from services.launch.app.cancel_runs import conflict
from services.launch.app.record_receipts import record_receipts
from services.launch.domain.children import below
from services.launch.domain.facts import FirstReceipt, InFlight
from services.launch.domain.pausing import Moved
from services.launch.domain.revoking import check_capability, decide_revocation, refuse_never_granted
from services.launch.domain.run import DECIDED, Run, RunEventFacts, RunHead
from services.launch.ports import Ports, Tx


@value(frozen=True, slots=True)
class Revoke:
    """What was asked. `project` empty: any of the tenant."""

    run_id: UUID
    tenant: str
    project: str
    actor: str
    capabilities: tuple[str, ...]
    reason: str
    request_id: str
    expected_version: int | None

    @property
    def names(self) -> list[str]:
        """What is taken, once each."""
        return sorted(set(self.capabilities))


@value(frozen=True, slots=True)
class RevokeAnswer:
    """The run after it, effects that may still be under way, and how far all below it has come."""

    run: Run
    in_flight: tuple[InFlight, ...]
    below: int
    below_enforced: int
    replayed: bool

    @property
    def enforced(self) -> bool:
        """Whether every point of every run has confirmed it."""
        return not self.run.head.revoking and self.below == self.below_enforced


async def revoke_capabilities(ports: Ports, ask: Revoke) -> RevokeAnswer:
    """What is durable, once the points were asked."""
    for capability in ask.names:
        check_capability(capability)
    key = digest(f"{ask.tenant}\0revoke\0{ask.request_id}".encode())
    said = digest("\0".join((str(ask.run_id), ask.reason, *ask.names)).encode())
    if await _repeats(ports, ask, key, said):
        return await _answer(ports, ask, (), replayed=True)
    moved = await _decide(ports, ask, FirstReceipt(key, said, ask.run_id))
    if moved is None:
        await _repeats(ports, ask, key, said)
        return await _answer(ports, ask, (), replayed=True)
    receipts, in_flight = await ports.points.raise_moved(moved, ports.limits.enforce_deadline_ms) if moved else ([], [])
    await record_receipts(ports, [receipt for receipt in receipts if receipt.epoch])
    return await _answer(ports, ask, tuple(effect for effect in in_flight if effect.run_id == ask.run_id), replayed=False)


async def _repeats(ports: Ports, ask: Revoke, key: bytes, said: bytes) -> bool:
    """Whether it was done before. Refuses where something else was."""
    standing = (await ports.reads.receipts([key])).get(key)
    if standing is not None and standing.request_digest != said:
        raise _reused(ask, standing)
    return standing is not None


async def _answer(ports: Ports, ask: Revoke, in_flight: tuple[InFlight, ...], *, replayed: bool) -> RevokeAnswer:
    run = (await ports.reads.runs([ask.run_id])).get(ask.run_id)
    if run is None or not _owns(ask, run.head):
        raise not_found("run")
    below, enforced = await ports.children.revoked_below(ask.run_id) if run.head.children else (0, 0)
    return RevokeAnswer(run, in_flight, below, enforced, replayed)


def _owns(ask: Revoke, head: RunHead) -> bool:
    return head.tenant == ask.tenant and ask.project in ("", head.project)


async def _decide(ports: Ports, ask: Revoke, receipt: FirstReceipt) -> list[Moved] | None:
    """Commits the smaller grants; the runs that had something to lose, the one that was asked about first. None: another call
    under this request_id was first."""
    now = ports.clock.now_ms()
    taken = [Revoked(capability, now, ask.actor) for capability in ask.names]

    async def work(tx: Tx) -> list[Moved] | None:
        if not await tx.take_receipts([receipt], now):  # before any lock: who waits for it here holds nothing
            return None
        heads = await tx.lock_trees([ask.run_id])
        head = heads.get(ask.run_id)
        if head is None or not _owns(ask, head):
            raise not_found("run")
        if ask.expected_version is not None and ask.expected_version != head.version:
            raise conflict(head.version, ask.expected_version)
        refuse_never_granted(head, taken)
        top = decide_revocation(head, taken, tx.incarnation)
        moved = [*([top] if top is not None else []), *_below(tx, head, heads, taken)]
        await tx.apply_revocations(moved, now)
        await tx.append_events([_entry(ask, item, now) for item in moved])
        await tx.send([notice for item in moved for notice in ports.notices.moved(item)], now)
        return moved

    moved = await ports.db.run(work)
    ports.hub.poke([item.head.run_id for item in moved or ()])
    return moved


def _below(tx: Tx, head: RunHead, heads: Mapping[UUID, RunHead], taken: Sequence[Revoked]) -> list[Moved]:
    """What came of the run, at any depth, loses it too; what is decided commits nothing new by it."""
    came = [run for run in below([head.run_id], heads).values() if run.state not in DECIDED]
    return [moved for run in came if (moved := decide_revocation(run, taken, tx.incarnation)) is not None]


def _entry(ask: Revoke, item: Moved, now: int) -> RunEventFacts:
    detail: dict[str, object] = {"capabilities": ask.names, "reason": ask.reason}
    if item.head.run_id != ask.run_id:
        detail["of"] = str(ask.run_id)
    return RunEventFacts(item.head.run_id, 0, now, "run.revoked", 0, "", ask.actor, json.dumps(detail, ensure_ascii=False))


def _reused(ask: Revoke, standing: FirstReceipt) -> Refusal:
    return Refusal(
        Reason.REQUEST_ID_REUSED,
        f"request_id {ask.request_id!r} took something from run {standing.run_id} by another request",
        field="request_id",
        remedy="repeat the first request unchanged, or use a new request_id",
        detail={"digest": standing.request_digest.hex(), "run_id": str(standing.run_id)},
    )
