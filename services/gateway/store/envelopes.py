"""Envelopes and slices inside a transaction of the gateway: rows ↔ domain. Authoritative for nothing but the spelling."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from libs.kernel.epochs import Mode
from libs.pg import Queries, Tx
from services.gateway.domain.envelopes import Delegated, Envelope, Returned, Slice

ENVELOPES = Queries.load(Path(__file__).parent / "sql" / "envelopes.sql")


class EnvelopeStore:
    """Inside one transaction, behind the gates' locks."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def envelopes(self, run_ids: Sequence[UUID]) -> dict[UUID, Envelope]:
        """Gates that exist."""
        found = await self._tx.fetch(ENVELOPES.read_envelopes, sorted(set(run_ids)))
        return {
            row["run_id"]: Envelope(
                row["run_id"],
                Mode(row["mode"]),
                row["granted"],
                row["held"],
                row["used"],
                row["delegated"],
                row["envelope_sequence"],
            )
            for row in found
        }

    async def delegations(self, names: Sequence[tuple[UUID, bytes]]) -> dict[tuple[UUID, bytes], Delegated]:
        """Slices that exist."""
        found = await self._tx.fetch(
            ENVELOPES.read_delegations, [run_id for run_id, _ in names], [delegation for _, delegation in names]
        )
        return {
            (row["run_id"], row["delegation"]): Delegated(row["micros"], row["sequence"], row["returned_ms"] > 0)
            for row in found
        }

    async def take(self, new: Sequence[tuple[UUID, Slice]], now_ms: int) -> None:
        """Stores and counts; the last of each delegation."""
        last = {(run_id, one.delegation): one for run_id, one in new}
        if last:
            await self._tx.fetch(
                ENVELOPES.take_slices,
                [run_id for run_id, _ in last],
                [delegation for _, delegation in last],
                [one.sequence for one in last.values()],
                [one.micros for one in last.values()],
                now_ms,
            )

    async def name(self, returned: Sequence[Returned], now_ms: int) -> None:
        """Those that are not known yet, and whose taking may be under way."""
        names = [item.run_id for item in returned], [item.delegation for item in returned]
        await self._tx.fetch(ENVELOPES.name_slices, *names, now_ms)

    async def give_back(self, returned: Sequence[Returned], now_ms: int) -> None:
        """Once each."""
        await self._tx.fetch(
            ENVELOPES.return_slices,
            [item.run_id for item in returned],
            [item.delegation for item in returned],
            [item.spent for item in returned],
            now_ms,
        )
