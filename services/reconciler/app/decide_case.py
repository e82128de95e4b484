"""A person decides a case. The gateway is told first, by compare-and-set on the effect; the case follows.

Can go wrong: two people at once, or a receipt that comes by itself. The effect's version decides: who loses is told what is.
Saying that something did not happen lets it be done again, so that takes a case whose look-ups have ended.
"""

from uuid import UUID

from libs.kernel.refusal import Reason, Refusal, not_found
from libs.kernel.values import value
from services.reconciler.domain.cases import UNDECIDED, Case, CaseState, Resolve, state_of
from services.reconciler.ports import Ports

_TRIES = 3


@value(frozen=True, slots=True)
class Decision:
    """What a person says. `expected_version`: only if the case still has it; None: whatever it has."""

    case_id: UUID
    tenant: str
    project: str
    state: CaseState
    reason: str
    result: bytes
    actor: str
    expected_version: int | None


async def decide_case(ports: Ports, asked: Decision) -> Case:
    """The case as decided; the same decision by the same person again is the first one's answer."""
    case = await _find(ports, asked)
    if case.state not in UNDECIDED:
        if (case.state, case.decided_by, case.reason) == (asked.state, asked.actor, asked.reason):
            return case
        raise _decided(case)
    if asked.expected_version is not None and case.version != asked.expected_version:
        raise Refusal(
            Reason.VERSION_CONFLICT,
            f"the case has version {case.version}, not {asked.expected_version}",
            remedy="read the case again, then decide",
            detail={"version": str(case.version)},
        )
    if asked.state is CaseState.ABSENT and case.state is CaseState.OPEN:
        raise Refusal(
            Reason.EFFECT_IN_FLIGHT,
            "look-ups still go on, and the effect may still happen",
            remedy="wait until the case needs reconciliation; OBSERVED may be said at once",
            retry_after_ms=5_000,
        )
    version = await _record(ports, asked, case)
    after = await ports.cases.decide(case.case_id, asked.state, asked.actor, asked.reason, version, ports.clock.now_ms())
    if after is None:
        raise _decided(await _find(ports, asked))
    ports.gauges.decided(asked.state)
    return after


async def _find(ports: Ports, asked: Decision) -> Case:
    case = await ports.cases.find(asked.case_id, asked.tenant)
    if case is None or asked.project not in ("", case.project):
        raise not_found("case")
    return case


async def _record(ports: Ports, asked: Decision, case: Case) -> int:
    """Tells the gateway; the effect's version then. An effect that moved, and is still undecided, is told again; of one
    that the gateway does not know (its database lost it), the case alone keeps the decision."""
    version = case.effect_version
    for _ in range(_TRIES):
        resolution = Resolve(asked.state, asked.result, f"{asked.actor}: {asked.reason}", version)
        try:
            [answer] = await ports.effects.resolve([(case.name, resolution, asked.actor)])
        except Refusal as no:
            if no.reason is not Reason.NOT_FOUND:
                raise
            return version
        if answer.recorded or not answer.state:
            return answer.version
        if state_of(answer.state) not in UNDECIDED:
            raise _decided_as(answer.state)
        if answer.version == version:
            break
        version = answer.version
    raise Refusal(
        Reason.VERSION_CONFLICT,
        "the effect moved while it was decided",
        remedy="read the case again, then decide",
        detail={"version": str(case.version)},
    )


def _decided(case: Case) -> Refusal:
    return _decided_as(case.state.name.lower(), case.decided_by)


def _decided_as(state: str, by: str = "") -> Refusal:
    return Refusal(
        Reason.CASE_DECIDED,
        f"the case was decided before: {state}" + (f", by {by}" if by else ""),
        remedy="read the case; what is decided stays",
        detail={"state": state},
    )
