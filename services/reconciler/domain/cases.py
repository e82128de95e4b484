"""Authoritative for what a case is and what a look-up does to it. Pure: values in, values out.

Can go wrong: calling something absent because nothing was found. Only the gateway says ABSENT, and only when it is proved; here
"not yet" and "could not ask" are waited for, and in the end a person is asked, never a repeat.
"""

from enum import IntEnum
from uuid import UUID

from libs.kernel.values import value


class CaseState(IntEnum):
    """Numbers as in the contract."""

    OPEN = 1
    NEEDS_RECONCILIATION = 2
    OBSERVED = 3
    ABSENT = 4
    SELF_RESOLVED = 5


UNDECIDED = (CaseState.OPEN, CaseState.NEEDS_RECONCILIATION)
BY_LOOKUP = "lookup"
BY_GATEWAY = "gateway"
"""Who decided, where only the gateway's event has said so; the decision itself may still put its name there."""

WORDS = {
    CaseState.OBSERVED: "observed",
    CaseState.ABSENT: "absent",
    CaseState.NEEDS_RECONCILIATION: "needs_reconciliation",
}
"""How the gateway calls them."""


@value(frozen=True, slots=True)
class Name:
    """A logical slot."""

    run_id: UUID
    step_key: str
    slot: str


@value(frozen=True, slots=True)
class Opening:
    """An effect whose outcome became unknown. `dispatch` 0: not told, the newest."""

    name: Name
    dispatch: int
    tenant: str
    project: str
    tool: str
    replay_class: str
    cause: str
    since_ms: int


@value(frozen=True, slots=True)
class Resolved:
    """The gateway's event: a slot's outcome is known, or a person owns it."""

    name: Name
    dispatch: int
    state: str
    version: int


@value(frozen=True, slots=True)
class Case:
    """One unknown try of an effect."""

    case_id: UUID
    run_id: UUID
    step_key: str
    slot: str
    dispatch: int
    tenant: str
    project: str
    tool: str
    state: CaseState
    lookups: int
    failures: int
    evidence: str
    opened_ms: int
    decided_ms: int
    decided_by: str
    reason: str
    next_ms: int
    effect_version: int
    version: int

    @property
    def name(self) -> Name:
        """Its slot."""
        return Name(self.run_id, self.step_key, self.slot)


class Finding(IntEnum):
    """What a look-up says; numbers as in the contract."""

    UNSPECIFIED = 0
    OBSERVED = 1
    ABSENT = 2
    NOT_YET = 3
    UNDECIDABLE = 4
    UNREACHABLE = 5
    RESOLVED = 6


@value(frozen=True, slots=True)
class Inspection:
    """One look-up's answer. `settle_ms`: on NOT_YET; `version`: of the effect, when it was inspected."""

    finding: Finding
    result: bytes
    evidence: str
    settle_ms: int
    version: int
    state: str


@value(frozen=True, slots=True)
class Policy:
    """From the settings."""

    first_backoff_ms: int
    longest_backoff_ms: int
    max_unreachable: int
    give_up_ms: int


@value(frozen=True, slots=True)
class Resolve:
    """Record this at the gateway, by compare-and-set on the version inspected; then the case follows."""

    state: CaseState
    result: bytes
    evidence: str
    expected_version: int


@value(frozen=True, slots=True)
class Change:
    """What becomes of a case."""

    state: CaseState
    next_ms: int
    failures: int
    evidence: str
    effect_version: int


def backoff(policy: Policy, failures: int) -> int:
    """Pause after so many failures in a row."""
    return int(min(policy.first_backoff_ms * 2 ** min(failures, 30), policy.longest_backoff_ms))


def judge(case: Case, found: Inspection, now_ms: int, policy: Policy) -> Resolve | Change:
    """What a look-up does to an open case."""
    too_long = now_ms - case.opened_ms >= policy.give_up_ms
    match found.finding:
        case Finding.OBSERVED:
            return Resolve(CaseState.OBSERVED, found.result, found.evidence, found.version)
        case Finding.ABSENT:
            return Resolve(CaseState.ABSENT, b"", found.evidence, found.version)
        case Finding.RESOLVED:
            return resolved(case, found.state, found.version, found.evidence, now_ms, policy)
        case Finding.UNDECIDABLE:
            return Resolve(CaseState.NEEDS_RECONCILIATION, b"", found.evidence, found.version)
        case Finding.NOT_YET if not too_long:
            pause = min(max(found.settle_ms, 1), policy.longest_backoff_ms)
            return Change(CaseState.OPEN, now_ms + pause, 0, found.evidence, found.version)
    failures = case.failures + 1
    why = found.evidence or "the provider could not be asked"
    if too_long or failures >= policy.max_unreachable:
        text = f"no look-up decided it in {case.lookups + 1} tries: {why}"
        return Resolve(CaseState.NEEDS_RECONCILIATION, b"", text, found.version)
    return Change(CaseState.OPEN, now_ms + backoff(policy, case.failures), failures, why, found.version)


def recorded(case: Case, asked: Resolve, *, done: bool, state: str, version: int, now_ms: int, policy: Policy) -> Change:
    """What the gateway's answer to a resolution does: recorded, or the effect moved meanwhile and is looked up anew."""
    if done:
        return Change(asked.state, 0, 0, asked.evidence, version)
    return resolved(case, state, version, asked.evidence, now_ms, policy)


def resolved(case: Case, state: str, version: int, evidence: str, now_ms: int, policy: Policy) -> Change:
    """The case of an effect that has this state at the gateway, whoever brought it there. Empty: the gateway knows no such
    effect, which only a person can judge (its database may have lost it)."""
    known = state_of(state)
    if known is CaseState.OPEN:
        pause = backoff(policy, case.failures - 1) if case.failures else 0
        return Change(CaseState.OPEN, now_ms + pause, case.failures + 1, evidence, version)
    if known is CaseState.SELF_RESOLVED:
        return Change(known, 0, 0, f"resolved by itself: {state}", version)
    return Change(known, 0, 0, evidence if state else "the gateway does not know this effect", version)


def state_of(effect_state: str) -> CaseState:
    """What the state of an effect means for its case."""
    if effect_state == "unknown":
        return CaseState.OPEN
    if not effect_state:
        return CaseState.NEEDS_RECONCILIATION
    return next((state for state, word in WORDS.items() if word == effect_state), CaseState.SELF_RESOLVED)
