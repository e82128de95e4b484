"""Authoritative for what a driver error means to a caller: nothing was decided, or nobody knows whether it was.

Can go wrong: calling a write "not done" when only its answer was lost. So a lost connection or a client-side timeout around a
commit is *unknown*; an error that the server reported means that it rolled back.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from libs.kernel.refusal import Refusal, invalid_field, unreachable

RETRYABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The server undid the transaction because of its neighbours: the same may succeed at once."""

_AWAY = (
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.DatabaseDroppedError,
    asyncpg.InsufficientResourcesError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.ObjectNotInPrerequisiteStateError,
)
"""Said by the server, before it committed: shutting down, out of room, out of time, or a standby."""

_LOST = (
    OSError,
    TimeoutError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""Noticed by us: the connection broke or stayed silent."""

_CUT = (asyncpg.AdminShutdownError, asyncpg.CrashShutdownError, asyncpg.CannotConnectNowError)
"""Said by the server while it cuts the session; during a commit that may come after the commit."""


_UNKNOWN = {"commit": "unknown"}


def away(name: str) -> Refusal:
    """The database cannot be reached; nothing was decided."""
    return unreachable(f"the {name} database")


def unknown(name: str) -> Refusal:
    """A commit was asked for and its answer was lost."""
    refusal = unreachable(f"the {name} database")
    return Refusal(
        refusal.reason,
        f"the {name} database did not confirm a commit: it may have happened",
        remedy="repeat the same call: it is idempotent, or the answer says what is stored",
        retry_after_ms=refusal.retry_after_ms,
        detail=dict(_UNKNOWN),
    )


def is_unknown(refusal: Refusal) -> bool:
    """Whether it is `unknown`."""
    return refusal.detail == _UNKNOWN


def translation(name: str, problem: BaseException, *, committing: bool) -> Refusal | None:
    """The refusal that an error of the driver is; None where it stays what it is. `committing`: what ran may have committed."""
    match problem:
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError():
            return None
        case asyncpg.CharacterNotInRepertoireError() | asyncpg.UntranslatableCharacterError():
            return invalid_field("text", "holds a character that cannot be stored (NUL)", "leave it out")
        case asyncpg.StatementCompletionUnknownError():
            return unknown(name)
    if isinstance(problem, _CUT):
        return unknown(name) if committing else away(name)
    if isinstance(problem, _AWAY):
        return away(name)
    if isinstance(problem, _LOST):
        if isinstance(problem, asyncpg.InterfaceError) and not _broken(problem):
            return None  # a mistake of ours: wrong arguments, a connection used twice
        return unknown(name) if committing else away(name)
    return None


def cut(problem: BaseException) -> bool:
    """Whether the session ended with it."""
    return isinstance(problem, (*_CUT, OSError, asyncpg.PostgresConnectionError))


@contextmanager
def translated(name: str, *, committing: bool) -> Iterator[None]:
    """Turns errors of the driver into refusals."""
    try:
        yield
    except Exception as problem:
        refusal = translation(name, problem, committing=committing)
        if refusal is None:
            raise
        raise refusal from problem


def _broken(problem: asyncpg.InterfaceError) -> bool:
    said = str(problem)
    return "closed" in said or "closing" in said or "released" in said or "terminated" in said
