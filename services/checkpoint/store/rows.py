"""Row ↔ domain."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from services.checkpoint.domain.values import Artifact, Checkpoint, Head

_CHECKPOINT = tuple(Checkpoint.__dataclass_fields__)
_ARTIFACT = tuple(Artifact.__dataclass_fields__)


def head_of(row: asyncpg.Record) -> Head:
    """A step's head."""
    return Head(row["digest"], row["sequence"], row["resume"], row["resume_sequence"])


def checkpoint_of(row: asyncpg.Record) -> Checkpoint:
    """A manifest."""
    return Checkpoint(**{name: row[name] for name in _CHECKPOINT})


def artifact_of(row: asyncpg.Record) -> Artifact:
    """An artifact."""
    values = {name: row[name] for name in _ARTIFACT}
    return Artifact(**{**values, "chunks": tuple(row["chunks"])})


def columns(names: Sequence[tuple[UUID, str]]) -> tuple[list[UUID], list[str]]:
    """Steps as two arrays."""
    return [run_id for run_id, _ in names], [step_key for _, step_key in names]
