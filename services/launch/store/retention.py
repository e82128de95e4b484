"""What launch forgets: runs after their retention, receipts and keys that ended some time later. Method name = query name."""

from pathlib import Path
from uuid import UUID

from libs.kernel.clock import Clock
from libs.pg import Database, Queries

DAY_MS = 86_400_000
_Q = Queries.load(Path(__file__).parent / "sql" / "retention.sql")


class LaunchRetention:
    """Cold path: one statement each."""

    def __init__(self, db: Database, clock: Clock, retention_ms: int) -> None:
        self._db = db
        self._clock = clock
        self._after_end_ms = min(retention_ms, DAY_MS)

    async def forget_runs(self, before: UUID, limit: int) -> int:
        """Drops terminal runs that are older than this id, and terminal for a day (or the retention); how many."""
        ended_before = self._clock.now_ms() - self._after_end_ms
        return len(await self._db.fetch(_Q.forget_runs, before, limit, ended_before))

    async def forget_receipts(self, before_ms: int) -> None:
        """Drops receipts of runs that are gone."""
        await self._db.fetch(_Q.forget_receipts, before_ms)

    async def forget_keys(self, before_ms: int, limit: int) -> int:
        """Drops API keys, and approvers' keys, that ended before; how many."""
        found = await self._db.fetch(_Q.forget_keys, before_ms, limit)
        return int(found[0]["api_keys"]) + int(found[0]["approver_keys"])
