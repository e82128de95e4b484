"""Authoritative for the words in which services say why something does not run: every code, and what takes it away.

A blocker is no refusal: nothing was asked and denied, something waits. Can go wrong: a code that nobody can look up. Each has
a remedy here and its place in `deploy/handbook/explain.md`; a test asks for it.
"""

from collections.abc import Mapping
from enum import StrEnum

from libs.kernel.values import value


class Block(StrEnum):
    """What keeps a step from running. Stable: programs branch on it."""

    RUN_DENIED = "RUN_DENIED"
    RUN_ENDED = "RUN_ENDED"
    RUN_CANCELLING = "RUN_CANCELLING"
    RUN_PAUSED = "RUN_PAUSED"
    RUN_NOT_BEGUN = "RUN_NOT_BEGUN"
    SCOPE_STOPPED = "SCOPE_STOPPED"
    STEP_OVER = "STEP_OVER"
    NEEDS = "NEEDS"
    RETRY_BACKOFF = "RETRY_BACKOFF"
    RECONCILIATION = "RECONCILIATION"
    WAITS_FOR = "WAITS_FOR"
    APPROVAL = "APPROVAL"
    UNDER_WAY = "UNDER_WAY"
    NO_LEADER = "NO_LEADER"
    RAISE_PENDING = "RAISE_PENDING"
    GATE_UNREAD = "GATE_UNREAD"
    HOLD = "HOLD"
    NO_WORKER_CARRIES_BUILD = "NO_WORKER_CARRIES_BUILD"
    NO_WORKER_HAS_LABELS = "NO_WORKER_HAS_LABELS"
    NO_WORKER_HAS_RESOURCES = "NO_WORKER_HAS_RESOURCES"
    TENANT_QUOTA = "TENANT_QUOTA"
    PROJECT_QUOTA = "PROJECT_QUOTA"
    USER_QUOTA = "USER_QUOTA"
    NO_FREE_SLOT = "NO_FREE_SLOT"
    RESOURCES_IN_USE = "RESOURCES_IN_USE"
    RESERVE = "RESERVE"
    MIGRATION_CAP = "MIGRATION_CAP"
    ANSWER_FULL = "ANSWER_FULL"
    BUCKET_EMPTY = "BUCKET_EMPTY"
    SHARE = "SHARE"
    POSITION = "POSITION"
    BUDGET_USED = "BUDGET_USED"
    REVOKED = "REVOKED"


REMEDY: Mapping[Block, str] = {
    Block.RUN_DENIED: "cure what its failure names, then launch a new run",
    Block.RUN_ENDED: "none: the outcome stands; go on in a new run: `runway run retry RUN`, `runway run fork RUN --from STEP`",
    Block.RUN_CANCELLING: "none: a cancel cannot be taken back; once it has ended, `runway run retry RUN` goes on in a new run",
    Block.RUN_PAUSED: "resume it: `runway run resume RUN`",
    Block.RUN_NOT_BEGUN: "wait a moment; if it stays, look at `runway case stuck` for events that are not delivered",
    Block.SCOPE_STOPPED: "whoever stopped it opens it again: `runway scope list`, then `runway scope release KIND NAME "
    "--reason WHY`",
    Block.STEP_OVER: "none: it is over; once its run has ended, `runway run fork RUN --from STEP` runs it again in a new run",
    Block.NEEDS: "look at the steps it needs: `runway explain RUN STEP`",
    Block.RETRY_BACKOFF: "wait; to try again less often or sooner, change the step's retry policy in a new version",
    Block.RECONCILIATION: "look at `runway case list`, and decide the case where no look-up does",
    Block.WAITS_FOR: "bring what it waits for",
    Block.APPROVAL: "look at it and decide: `runway approval show ID`, then `runway approval approve ID` or "
    "`runway approval deny ID --reason WHY`",
    Block.UNDER_WAY: "wait a moment; if it stays, look at `runway case stuck` for events that are not delivered",
    Block.NO_LEADER: "wait some seconds; if it stays, look at `runway shard list` and whether etcd answers",
    Block.RAISE_PENDING: "wait a moment; if it stays, look whether the service named runs",
    Block.GATE_UNREAD: "wait a moment; if it stays, look whether launch answers",
    Block.HOLD: "release it: `runway hold list`, `runway queue release NAME --reason WHY`, of a step with `--step`",
    Block.NO_WORKER_CARRIES_BUILD: "start a worker with this very build of the workflow: `runway worker run MODULE:NAME`",
    Block.NO_WORKER_HAS_LABELS: "start a worker with these labels: `runway worker run MODULE:NAME --label NAME`, or take them "
    "out of the step in a new version",
    Block.NO_WORKER_HAS_RESOURCES: "start a larger worker: `runway worker run MODULE:NAME --resource NAME=AMOUNT`, or let the "
    "step take less in a new version",
    Block.TENANT_QUOTA: "wait for leases to end, or raise the bound: `runway share put TENANT --most-leases N --reason WHY`",
    Block.PROJECT_QUOTA: "wait for leases to end, or raise the bound: `runway share put TENANT/PROJECT --most-leases N "
    "--reason WHY`",
    Block.USER_QUOTA: "wait for leases to end, or raise the bound: `runway share put TENANT --user NAME --most-leases N "
    "--reason WHY`",
    Block.NO_FREE_SLOT: "wait for attempts to end, or start more workers",
    Block.RESOURCES_IN_USE: "wait for attempts to end, or start more workers that have it",
    Block.RESERVE: "wait, start more workers, or lower the reserve: `runway share policy --reserve N --reason WHY`",
    Block.MIGRATION_CAP: "wait for idle slots, or raise the cap: `runway share policy --migration N --reason WHY`",
    Block.ANSWER_FULL: "wait for the worker's next claim; hand large inputs on as artifacts",
    Block.BUCKET_EMPTY: "wait until it fills, or raise the limit: `runway bucket list`, "
    "`runway bucket put KIND NAME --per-minute N --reason WHY`",
    Block.SHARE: "wait, or give its tenant more weight: `runway share put TENANT --weight N --reason WHY`",
    Block.POSITION: "wait, or launch what is urgent with a higher priority",
    Block.BUDGET_USED: "raise it: `runway budget raise RUN MICROS`; calls that cost are refused until then",
    Block.REVOKED: "none for this run: what was taken does not come back; launch a new run where it should be done",
}
"""What takes each away, where nothing better is known."""


@value(frozen=True, slots=True)
class Blocker:
    """One thing that keeps a step from running; 0 for a time that is not known."""

    code: str
    """A `Block`, or that of a service which is newer than this one."""
    message: str
    remedy: str
    detail: Mapping[str, str]
    since_ms: int = 0
    until_ms: int = 0


def blocker(code: Block, message: str, *, remedy: str = "", since_ms: int = 0, until_ms: int = 0, **detail: object) -> Blocker:
    """A blocker with its remedy; facts for programs as text."""
    facts = {name: str(fact) for name, fact in detail.items()}
    return Blocker(code, message, remedy or REMEDY[code], facts, since_ms, until_ms)


@value(frozen=True, slots=True)
class Position:
    """Where a ticket stands, as its leader sees it; `runway.common.v1.QueuePosition` says what each is."""

    ahead_in_line: int
    line_length: int
    ahead_in_tenant: int
    tenant_waiting: int
    tenants_ahead: int
    tenants_waiting: int


@value(frozen=True, slots=True)
class Estimate:
    """When a step may start, and what that rests on."""

    at_ms: int
    basis: str
