"""Authoritative for what a launch costs its tenant and whether it is admitted. Pure: first come, first served in a batch.

Can go wrong: two launches spending the same money. The tenant's row is locked while this decides, and the decision is
committed with it.
"""

from collections.abc import Sequence
from uuid import UUID

from libs.kernel.values import value
from services.launch.domain.run import FailureFacts


@value(frozen=True, slots=True)
class Account:
    """A tenant's limits and what they already carry. Money in micros."""

    tenant: str
    limit_micros: int
    reserved_micros: int
    spent_micros: int
    max_active_runs: int
    active_runs: int
    version: int
    max_active_descendants: int = 0
    active_descendants: int = 0
    suspended: frozenset[str] = frozenset()
    """Projects that launch nothing."""


@value(frozen=True, slots=True)
class Fork:
    """Where a run goes on that has ended: `from_steps` and what follows them run again; empty: what did not succeed."""

    of: UUID
    from_steps: tuple[str, ...]
    reason: str


@value(frozen=True, slots=True)
class Launch:
    """One launch that won its request_id, validated and pinned."""

    run_id: UUID
    tenant: str
    project: str
    digest: bytes
    workflow_name: str
    workflow_number: int
    build: str
    points: int
    capabilities: tuple[str, ...]
    run_class: int
    priority: int
    deadline_ms: int
    budget_micros: int
    budget_tokens: int
    input: bytes
    labels: str
    actor: str
    traceparent: str = ""
    fork: Fork | None = None
    start_by_ms: int = 0
    """When it expires if nothing of it has begun; 0: then nothing does."""


@value(frozen=True, slots=True)
class Admitted:
    """A launch and its verdict: `denied` says why nothing of it will ever run."""

    launch: Launch
    denied: FailureFacts | None


def decide(accounts: dict[str, Account], launches: Sequence[Launch]) -> list[Admitted]:
    """Admits launches in order, each against what those before it left; a denied one takes nothing."""
    reserved = {name: account.reserved_micros for name, account in accounts.items()}
    active = {name: account.active_runs for name, account in accounts.items()}
    decided: list[Admitted] = []
    for launch in launches:
        account = accounts.get(launch.tenant)
        denied = _denial(account, launch, reserved, active)
        if denied is None:
            reserved[launch.tenant] += launch.budget_micros
            active[launch.tenant] += 1
        decided.append(Admitted(launch, denied))
    return decided


def _denial(account: Account | None, launch: Launch, reserved: dict[str, int], active: dict[str, int]) -> FailureFacts | None:
    if account is None:
        return FailureFacts("policy", f"tenant {launch.tenant!r} is not set up here", "TENANT_UNKNOWN")
    if launch.project in account.suspended:
        text = f"project {launch.project!r} is suspended; launch again under a new request_id when it has been resumed"
        return FailureFacts("policy", text, "PROJECT_SUSPENDED")
    free = account.limit_micros - account.spent_micros - reserved[launch.tenant]
    if launch.budget_micros > free:
        text = (
            f"budget of {launch.budget_micros} micros does not fit: {max(free, 0)} of {account.limit_micros} are free; "
            "launch again under a new request_id with a smaller budget, or raise the tenant's limit"
        )
        return FailureFacts("budget", text, "BUDGET_EXHAUSTED")
    if active[launch.tenant] >= account.max_active_runs:
        text = (
            f"{active[launch.tenant]} runs of the tenant are active and {account.max_active_runs} may be; "
            "launch again under a new request_id when some have ended"
        )
        return FailureFacts("policy", text, "QUOTA_EXCEEDED")
    return None
