"""Authoritative for who is calling: what the interceptors found out about a call before its handler runs.

Can go wrong: taking the tenant from a request. It comes from the key (`current_call().caller`) or from the signed lease
(`current_call().lease`), never from the message. Outside a call (loops, events) there is no identity: `current_call` says so
by raising.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from libs.kernel.refusal import Reason, Refusal

SCOPE_WORKER = "worker"
SCOPE_OPERATOR = "operator"
SCOPE_FLEET = "fleet"
SCOPE_BULK = "bulk"
SCOPE_REVIEWER = "reviewer"
SCOPE_CALLER = "caller"
ROLES = frozenset({"admin", "automation", "reviewer", "operator", "auditor", "worker"})
"""What a key may do; which of them may call a method is that method's option."""
_MEANT: Mapping[str, tuple[str, ...]] = {SCOPE_CALLER: ("automation", "reviewer"), SCOPE_FLEET: (SCOPE_WORKER,)}
"""Scopes that mean roles: those of keys that were made before there were roles, and of fleets."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom an API key belongs to. Its scopes are roles, and `fleet`; `caller`, of older keys, means automation and reviewer.
    `bulk` grants nothing: it says that calls with the key are shed before others'. `expires_ms` 0: never.

    A fleet is worker processes that serve every tenant. Its key belongs to a tenant and has no rights beyond it, except under
    a lease: `acting_for`.
    """

    tenant: str
    project: str
    key_id: str
    scopes: frozenset[str]
    name: str
    expires_ms: int = 0

    @property
    def roles(self) -> frozenset[str]:
        """What it may do."""
        meant = {role for scope in self.scopes for role in _MEANT.get(scope, ())}
        return (self.scopes & ROLES) | meant

    @property
    def fleet(self) -> bool:
        """Whether its workers serve every tenant."""
        return SCOPE_FLEET in self.scopes

    def has(self, scope: str) -> bool:
        """Whether the key was granted a scope; whoever may serve every tenant may serve one."""
        return scope in self.scopes or (scope == SCOPE_WORKER and self.fleet)

    def acting_for(self, lease: "VerifiedLease") -> "Caller":
        """Who calls under a lease: a fleet acts as the run's tenant and project, for this one call; others as themselves."""
        return replace(self, tenant=lease.tenant, project=lease.project) if self.fleet else self


class VerifiedLease(Protocol):
    """What a signature-checked lease token says. It tells who asks; the fences in the commit decide."""

    @property
    def tenant(self) -> str:
        """Owner of the run."""
        ...

    @property
    def project(self) -> str:
        """Project of the run."""
        ...

    @property
    def run_id(self) -> UUID:
        """The run."""
        ...

    @property
    def step_key(self) -> str:
        """The step."""
        ...

    @property
    def authority_epoch(self) -> int:
        """Epoch of the shard leader that granted it."""
        ...

    @property
    def lease_epoch(self) -> int:
        """Counts the step's grants and ends."""
        ...

    @property
    def attempt_id(self) -> UUID:
        """The attempt."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the run's gate that the scheduler knew when it signed."""
        ...

    @property
    def run_class(self) -> int:
        """Class of the run, as its ticket says; 0 in tokens of older schedulers."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was admitted. `deadline_ms` is wall time; the token never leaves the process but to the shard's leader."""

    caller: Caller | None
    lease: VerifiedLease | None
    lease_token: bytes
    deadline_ms: int | None
    method: str
    ends_at_s: float | None = None
    """The deadline on the event loop's clock, for what is asked on the way."""

    def require_caller(self) -> Caller:
        """The caller, where the method's policy guarantees one."""
        if self.caller is None:
            raise Refusal(
                Reason.UNAUTHENTICATED,
                "this call carries no API key",
                remedy="send it in the metadata `authorization`: `Bearer`, a blank and the key",
            )
        return self.caller

    def require_lease(self) -> VerifiedLease:
        """The lease, where the method's policy guarantees one."""
        if self.lease is None:
            raise Refusal(Reason.LEASE_INVALID, "this call carries no lease", remedy="send the token in `runway-lease-bin`")
        return self.lease


class CallerDirectory(Protocol):
    """Who knows API keys, by the SHA-256 of the key. None: no such key. Refuses UNAVAILABLE when it cannot ask."""

    async def resolve(self, key_digest: bytes) -> Caller | None:
        """The caller behind a key."""
        ...


class LeaseVerifier(Protocol):
    """Who checks a lease token's signature, audience and life. Refuses LEASE_INVALID or LEASE_EXPIRED."""

    async def verify(self, token: bytes) -> VerifiedLease:
        """What the token says, once it is known to be genuine."""
        ...


_CALL: ContextVar[Call | None] = ContextVar("runway_call", default=None)


def current_call() -> Call:
    """The call being handled. Raises LookupError outside of one: a loop or an event has no caller."""
    call = _CALL.get()
    if call is None:
        raise LookupError("no call is being handled here")
    return call


def in_call() -> Call | None:
    """The call being handled, or None outside of one."""
    return _CALL.get()


def enter_call(call: Call) -> None:
    """Makes a call current for the task that handles it. gRPC gives each call its own task, so nothing needs resetting."""
    _CALL.set(call)
