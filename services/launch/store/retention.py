"""What launch forgets: runs after their retention, receipts some time later. Method name = query name."""

from pathlib import Path
from uuid import UUID

from libs.pg import Database, Queries

_Q = Queries.load(Path(__file__).parent / "sql" / "retention.sql")


class LaunchRetention:
    """Cold path: one statement each."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def forget_runs(self, before: UUID, limit: int) -> int:
        """Drops terminal runs that are older than this id; how many."""
        return len(await self._db.fetch(_Q.forget_runs, before, limit))

    async def forget_receipts(self, before_ms: int) -> None:
        """Drops receipts of runs that are gone."""
        await self._db.fetch(_Q.forget_receipts, before_ms)
