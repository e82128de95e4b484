"""Meter events in rows: appended in a transaction, read by pages. Method name = query name."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from libs.pg import Database, Queries, Tx
from services.gateway.domain.effect import EffectName, Landed
from services.gateway.ports import Metered

METER = Queries.load(Path(__file__).parent / "sql" / "meter.sql")


async def append_meter(tx: Tx, landed: Sequence[Landed], now_ms: int) -> None:
    """What these receipts say was used: one event a try."""
    sums: dict[tuple[EffectName, int], list[int]] = {}
    effects = {}
    for item in landed:
        if item.used or item.tokens:
            key = (item.attempt.name, item.attempt.n)
            total = sums.setdefault(key, [0, 0])
            total[0] += item.used
            total[1] += item.tokens
            effects[key] = item.effect
    if not sums:
        return
    await tx.fetch(
        METER.append_meter,
        [effects[key].tenant for key in sums],
        [effects[key].project for key in sums],
        [name.run_id for name, _ in sums],
        [name.step_key for name, _ in sums],
        [name.slot for name, _ in sums],
        [n for _, n in sums],
        [effects[key].tool for key in sums],
        [micros for micros, _ in sums.values()],
        [tokens for _, tokens in sums.values()],
        now_ms,
    )


class MeterStore:
    """Implements `ports.Meter`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def page(self, tenant: str, project: str, run_id: UUID | None, after: int, limit: int) -> list[Metered]:
        """Events beyond an ordinal."""
        arguments = (tenant, project, after, limit)
        if run_id is None:
            found = await self._db.fetch(METER.meter_page, *arguments)
        else:
            found = await self._db.fetch(METER.meter_of_run, *arguments, run_id)
        return [
            Metered(
                row["ordinal"],
                EffectName(row["run_id"], row["step_key"], row["slot"]),
                row["n"],
                row["part"],
                row["tool"],
                row["project"],
                row["micros"],
                row["tokens"],
                row["at_ms"],
            )
            for row in found
        ]
