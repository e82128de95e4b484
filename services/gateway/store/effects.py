"""The gateway's database: where transactions begin, and reads that need none."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from libs.kernel.ids import IdSource
from libs.outbox import Relay
from libs.pg import Database, Tx
from services.gateway.domain.effect import Effect, EffectName, Try
from services.gateway.ports import Stuck, Transaction
from services.gateway.store import rows
from services.gateway.store.processes import PROCESSES
from services.gateway.store.transaction import EFFECTS, GatewayTx, columns

T = TypeVar("T")


class EffectStore:
    """Implements `ports.Store`."""

    def __init__(self, db: Database, relay: Relay, ids: IdSource) -> None:
        self._db = db
        self._relay = relay
        self._ids = ids

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        return self._db.incarnation

    async def forget_runs(self, before: UUID, limit: int) -> int:
        """Drops runs that are over and older than this id; how many."""
        return len(await self._db.fetch(EFFECTS.forget_runs, before, limit))

    async def closed_runs(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Those whose gate is closed."""
        return [row["run_id"] for row in await self._db.fetch(EFFECTS.closed_runs, list(run_ids))]

    async def run(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """A transaction whose events leave after its commit."""
        mine: list[GatewayTx] = []

        async def within(tx: Tx) -> T:
            mine.append(GatewayTx(tx, self._ids))
            return await work(mine[-1])

        answer = await self._db.run(within)
        if mine[-1].sent:
            self._relay.offer(mine[-1].sent)
        return answer

    async def effect(self, name: EffectName) -> Effect | None:
        """One slot."""
        found = await self._db.fetch(EFFECTS.read_effects, *columns([name]))
        return rows.effect(found[0]) if found else None

    async def inspected(self, names: Sequence[EffectName]) -> dict[EffectName, tuple[Effect, Try]]:
        """Slots with their newest tries, of one moment each."""
        async with self._db.tx() as tx:
            mine = GatewayTx(tx, self._ids)
            effects = await mine.effects(names)
            tries = await mine.tries([(name, effect.dispatches) for name, effect in effects.items()])
        return {
            name: (effect, tries[(name, effect.dispatches)].attempt)
            for name, effect in effects.items()
            if (name, effect.dispatches) in tries
        }

    async def page(self, run_id: UUID, after: int, limit: int) -> list[tuple[Effect, list[Try]]]:
        """A run's ledger beyond an ordinal."""
        effects = [rows.effect(row) for row in await self._db.fetch(EFFECTS.list_effects, run_id, after, limit)]
        tries: dict[EffectName, list[Try]] = {effect.name: [] for effect in effects}
        for row in await self._db.fetch(EFFECTS.list_tries, *columns(list(tries))):
            tries[rows.name(row)].append(rows.attempt(row))
        return [(effect, tries[effect.name]) for effect in effects]

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Whose the run's effects are."""
        found = await self._db.fetch(EFFECTS.owner, run_id)
        return (found[0]["tenant"], found[0]["project"]) if found else None

    async def stuck(self, before_ms: int, limit: int) -> list[Stuck]:
        """What waits since before: for a look-up, a person, or its own call."""
        found = await self._db.fetch(EFFECTS.doubtful, before_ms, limit)
        found += await self._db.fetch(PROCESSES.under_way_since_before, before_ms, limit)
        return [Stuck(rows.name(row), row["tool"], row["state"], row["dispatches"], row["changed_ms"]) for row in found]
