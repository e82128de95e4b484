"""Projects in rows; implements `ports.Projects`.

Can go wrong: a launch under way while its project is suspended. What is suspended is told in the tenant's row too, which every
launch locks, so one sees the other.
"""

from pathlib import Path

from asyncpg import Record

from libs.pg import Database, Queries
from services.launch.domain.facts import Project

_Q = Queries.load(Path(__file__).parent / "sql" / "projects.sql")


def project_of(row: Record) -> Project:
    """A row."""
    return Project(
        row["tenant"],
        row["project"],
        row["state"],
        row["reason"],
        row["version"],
        row["changed_ms"],
        row["changed_by"],
    )


class ProjectStore:
    """Cold path."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def add_project(self, tenant: str, project: str, now_ms: int, by: str) -> bool:
        """Whether it was not there; False also where the tenant does not exist."""
        return bool(await self._db.fetch(_Q.add_project, tenant, project, now_ms, by))

    async def settle_project(self, tenant: str, project: str, now_ms: int, by: str) -> None:
        """Something is published in it: it is one that is listed."""
        await self._db.fetch(_Q.settle_project, tenant, project, now_ms, by)

    async def project(self, tenant: str, project: str) -> Project | None:
        """One that has a row."""
        found = await self._db.fetch(_Q.project, tenant, project)
        return project_of(found[0]) if found else None

    async def projects(self, tenant: str, after: str, limit: int, only: str) -> list[Project]:
        """By name."""
        return [project_of(row) for row in await self._db.fetch(_Q.projects, tenant, after, limit, only)]

    async def turn_project(
        self, tenant: str, project: str, state: int, reason: str, now_ms: int, by: str, expected: int | None
    ) -> Project | None:
        """The project after the change; None where nothing was to change, or `expected` lost."""
        found = await self._db.fetch(_Q.turn_project, tenant, project, state, reason, now_ms, by, expected)
        return project_of(found[0]) if found else None
