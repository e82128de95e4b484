"""Authoritative for what launch keeps and tells beside runs: versions, keys, receipts, gates, scopes, usage, events.
Pure values.

Can go wrong: a key's text in one of them. There is only its digest.
"""

from uuid import UUID

from libs.kernel.epochs import Mode
from libs.kernel.values import value
from services.launch.domain.workflow import WorkflowSpec


@value(frozen=True, slots=True)
class Version:
    """A published workflow version; `raw` is the canonical spec as it is stored and handed on."""

    tenant: str
    project: str
    name: str
    number: int
    digest: bytes
    raw: bytes
    published_ms: int
    spec: WorkflowSpec
    publisher: str = ""


@value(frozen=True, slots=True)
class RunFilter:
    """Which runs of a tenant are wanted: all that is named must hold, what is empty lets everything pass. `labels`: JSON.
    Times are milliseconds since the Unix epoch, from (inclusive) and before; 0: no bound."""

    tenant: str
    project: str = ""
    states: tuple[int, ...] = ()
    classes: tuple[int, ...] = ()
    workflow: str = ""
    labels: str = ""
    from_ms: int = 0
    before_ms: int = 0
    fork_of: UUID | None = None


@value(frozen=True, slots=True)
class Usage:
    """What a run has used so far, by the gateway's account."""

    run_id: UUID
    sequence: int
    micros: int
    tokens: int


@value(frozen=True, slots=True)
class KeyRecord:
    """An API key as it is stored: a digest, never its text."""

    key_digest: bytes
    key_id: UUID
    tenant: str
    project: str
    scopes: tuple[str, ...]
    name: str
    created_ms: int = 0
    created_by: str = ""
    expires_ms: int = 0
    revoked_ms: int = 0
    revoked_by: str = ""
    request_key: bytes = b""
    """Names the request that made it; empty: it named none."""
    request_digest: bytes = b""
    """Of what that request asked."""


@value(frozen=True, slots=True)
class Project:
    """A project; `state` 1 active, 2 suspended. `version` 0: it has no row, and is active."""

    tenant: str
    project: str
    state: int = 1
    reason: str = ""
    version: int = 0
    changed_ms: int = 0
    changed_by: str = ""


@value(frozen=True, slots=True)
class FirstReceipt:
    """What stands under a request_id: the run, and the digest of the request that made it."""

    key_digest: bytes
    request_digest: bytes
    run_id: UUID


@value(frozen=True, slots=True)
class Notice:
    """An event to send beside a commit: receiver, the oneof's name, the run, the serialized payload."""

    receiver: str
    kind: str
    run_id: UUID
    payload: bytes


@value(frozen=True, slots=True)
class InFlight:
    """An effect that was not resolved when its run was closed."""

    run_id: UUID
    step_key: str
    slot: str
    state: str
    tool: str


@value(frozen=True, slots=True)
class GateFacts:
    """A run's gate as launch, its authority, has it."""

    run_id: UUID
    epoch: int
    mode: Mode
    outcome: str
    capabilities: tuple[str, ...]
    granted_micros: int
    tenant: str
    project: str
    budget_sequence: int = 0


@value(frozen=True, slots=True)
class ScopeFacts:
    """A scope that is not open."""

    kind: str
    scope_id: str
    epoch: int
    mode: int


@value(frozen=True, slots=True)
class Waiting:
    """What a run waits for; `all_wait` where nothing of it can move."""

    all_wait: bool
    reasons: tuple[str, ...]
