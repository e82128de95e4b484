"""Authoritative for the states of an effect, and for what a receipt or a resolution does to one.

An effect is a logical slot of a step; its tries are dispatches. Facts are never fenced: a receipt lands on its dispatch
whenever it comes. Can go wrong: two tries of one slot that both happened. The first answer stands, the second is an alarm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from libs.kernel.values import value


class State(StrEnum):
    """Where an effect or one of its tries stands."""

    PROPOSED = "proposed"
    REQUESTED = "requested"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"
    OBSERVED = "observed"
    ABSENT = "absent"
    NEEDS_RECONCILIATION = "needs_reconciliation"
    COMPENSATED = "compensated"


UNRESOLVED = frozenset({State.PROPOSED, State.REQUESTED, State.UNKNOWN, State.NEEDS_RECONCILIATION})
"""Nobody can say yet what became of it."""
DOUBTFUL = frozenset({State.UNKNOWN, State.NEEDS_RECONCILIATION})
"""It may have happened, and no answer is on its way."""
ANSWERED = frozenset({State.SUCCEEDED, State.OBSERVED, State.COMPENSATED})
"""It happened: the recorded answer is replayed."""
RESOLUTIONS: Mapping[State, frozenset[State]] = {
    State.OBSERVED: DOUBTFUL,
    State.ABSENT: DOUBTFUL,
    State.NEEDS_RECONCILIATION: frozenset({State.UNKNOWN}),
}
"""What a resolution may follow, by its target."""


class ReplayClass(StrEnum):
    """What may follow a lost answer."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    RECONCILABLE = "reconcilable"
    NON_REPLAYABLE = "non_replayable"


@dataclass(frozen=True, slots=True, order=True)
class EffectName:
    """The logical slot: never the attempt."""

    run_id: UUID
    step_key: str
    slot: str


@value(frozen=True, slots=True)
class Failed:
    """Why something did not work, for policy and for people."""

    failure_class: str
    message: str
    type: str


@value(frozen=True, slots=True)
class Effect:
    """A slot as it is stored. `answered`: the try that its state speaks of; `held`: money still held for its tries."""

    name: EffectName
    tool: str
    replay_class: ReplayClass
    state: State
    version: int
    dispatches: int
    answered: int
    proposal: bytes
    proposal_digest: bytes
    result: bytes | None
    failure: Failed | None
    evidence: str
    tenant: str
    project: str
    held: int
    cost: int
    tokens: int
    created_ms: int
    changed_ms: int
    resolved_ms: int
    ordinal: int = 0
    proposal_hold: int = 0
    """What the proposed call wants to hold."""

    @property
    def resolved(self) -> bool:
        """Whether its outcome is known."""
        return self.state not in UNRESOLVED


@value(frozen=True, slots=True)
class Try:
    """One dispatch. `held` is what is still held for it; `received_ms` when its outcome, also an unknown one, was recorded."""

    name: EffectName
    n: int
    nonce: UUID
    process: UUID
    authority_epoch: int
    lease_epoch: int
    attempt_id: UUID
    state: State
    held: int
    cost: int
    tokens: int
    requested_ms: int
    received_ms: int


@value(frozen=True, slots=True)
class Outcome:
    """How a call ended. `cost` None: the provider did not say, so what was held is charged if it may have happened."""

    state: State
    result: bytes | None = None
    failure: Failed | None = None
    evidence: str = ""
    cause: str = ""
    cost: int | None = None
    tokens: int = 0
    void: bool = False
    """Concluded from rows and not from a call: that nobody made it. Says nothing against what was said of it meanwhile."""


@value(frozen=True, slots=True)
class Receipt:
    """The outcome of one try, keyed by its nonce."""

    name: EffectName
    n: int
    nonce: UUID
    outcome: Outcome


@value(frozen=True, slots=True)
class Resolution:
    """What was found about a doubtful effect, by a look-up or by a person."""

    name: EffectName
    state: State
    result: bytes | None
    evidence: str
    expected_version: int
    actor: str


@value(frozen=True, slots=True)
class Landed:
    """What a receipt or a resolution changes. `effect` and `attempt` are the new values; sums are for the run's gate."""

    before: Effect
    effect: Effect
    attempt: Try
    released: int = 0
    used: int = 0
    tokens: int = 0
    duplicate: bool = False

    @property
    def moved(self) -> bool:
        """Whether the slot itself changed."""
        return self.effect.version != self.before.version


_MAY_FOLLOW: Mapping[State, frozenset[State]] = {
    State.REQUESTED: frozenset({State.SUCCEEDED, State.FAILED, State.NOT_SENT, State.UNKNOWN}),
    State.UNKNOWN: frozenset({State.SUCCEEDED, State.FAILED, State.NOT_SENT}),
    State.NEEDS_RECONCILIATION: frozenset({State.SUCCEEDED, State.FAILED, State.NOT_SENT}),
    State.OBSERVED: frozenset({State.SUCCEEDED}),
    State.ABSENT: frozenset({State.SUCCEEDED}),
}
"""What a receipt may still say of a try. All else was said before: a repeated receipt changes nothing."""


def land(effect: Effect, attempt: Try, receipt: Receipt, now_ms: int) -> Landed | None:
    """What a receipt does; None where its try has had one."""
    said = receipt.outcome
    if said.state not in _MAY_FOLLOW.get(attempt.state, frozenset()) or (said.void and attempt.state is not State.REQUESTED):
        return None
    sent = said.state is not State.NOT_SENT
    cost = attempt.cost
    held = attempt.held
    if said.state is not State.UNKNOWN:
        charged = attempt.held if sent and said.state is not State.FAILED else 0
        cost = said.cost if said.cost is not None else max(attempt.cost, charged)
        held = 0
    tried = replace(attempt, state=said.state, held=held, cost=cost, tokens=said.tokens or attempt.tokens, received_ms=now_ms)
    released, used, tokens = attempt.held - held, cost - attempt.cost, tried.tokens - attempt.tokens
    counted = replace(effect, held=effect.held - released, cost=effect.cost + used, tokens=effect.tokens + tokens)
    landed = Landed(effect, counted, tried, released, used, tokens)
    if effect.state in ANSWERED:
        return _after_an_answer(landed)
    if said.state is not State.SUCCEEDED and attempt.n != effect.dispatches:
        return landed
    moved = replace(
        counted,
        state=said.state,
        version=effect.version + 1,
        answered=attempt.n,
        result=said.result,
        failure=said.failure,
        evidence=said.evidence,
        changed_ms=now_ms,
        resolved_ms=0 if said.state is State.UNKNOWN else now_ms,
    )
    return replace(landed, effect=moved)


def _after_an_answer(landed: Landed) -> Landed:
    """The slot has its answer, which stands; another try that happened as well is a duplicate."""
    effect, tried = landed.before, landed.attempt
    if tried.state is not State.SUCCEEDED or effect.answered == tried.n:
        return landed
    text = f"try {tried.n} happened as well as try {effect.answered}: DUPLICATE_EFFECT"
    marked = replace(
        landed.effect,
        version=effect.version + 1,
        failure=Failed("attempt", text, "DUPLICATE_EFFECT"),
        evidence=f"{effect.evidence}; {text}" if effect.evidence else text,
    )
    return replace(landed, effect=marked, duplicate=True)


def resolve(effect: Effect, attempt: Try, found: Resolution, now_ms: int) -> Landed | None:
    """What a finding does; None where the effect moved meanwhile, or such a finding may not decide it."""
    if effect.version != found.expected_version or effect.state not in RESOLUTIONS[found.state]:
        return None
    if effect.state is State.NEEDS_RECONCILIATION and found.actor == LOOKUP:
        return None
    waits = found.state is State.NEEDS_RECONCILIATION
    held = attempt.held if waits else 0
    cost = attempt.held if found.state is State.OBSERVED else attempt.cost
    tried = replace(attempt, state=found.state, held=held, cost=cost)
    moved = replace(
        effect,
        state=found.state,
        version=effect.version + 1,
        answered=attempt.n,
        held=effect.held - (attempt.held - held),
        cost=effect.cost + (cost - attempt.cost),
        result=found.result if found.state is State.OBSERVED else None,
        failure=None,
        evidence=found.evidence if found.evidence.startswith(found.actor) else f"{found.actor}: {found.evidence}",
        changed_ms=now_ms,
        resolved_ms=0 if waits else now_ms,
    )
    return Landed(effect, moved, tried, released=attempt.held - held, used=cost - attempt.cost)


LOOKUP = "lookup"
"""Who resolves when no person does."""
