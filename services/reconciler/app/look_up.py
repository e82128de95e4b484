"""Look up what became of effects: claim due cases, ask the gateway, record there what is certain, then move the cases.

No connection is held while the gateway is asked. Can go wrong: this process dies after the gateway recorded a finding; the
gateway's own event decides the case. A replica that was paused: its lease has passed, its changes find other leases.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from libs.kernel.refusal import Reason, Refusal
from services.reconciler.domain.cases import BY_LOOKUP, Case, CaseState, Change, Inspection, Resolve, backoff, judge, recorded
from services.reconciler.ports import Answer, Ports

_AWAY = (Reason.AUTHORITY_UNREACHABLE, Reason.DRAINING, Reason.DEADLINE_EXCEEDED, Reason.NO_LEADER)
_EVIDENCE = 2000
T = TypeVar("T")
R = TypeVar("R")


async def look_up(ports: Ports) -> int:
    """One batch; how many cases were due."""
    lease, now = ports.ids.random128(), ports.clock.now_ms()
    until, most = now + ports.limits.lookup_lease_ms, ports.policy.longest_backoff_ms
    cases = await ports.cases.claim(lease, now, until, ports.limits.batch_cases, most)
    if not cases:
        return 0
    try:
        changes = await _changes(ports, cases)
    except Refusal as no:
        text = f"the gateway could not be asked: {no.message}"[:_EVIDENCE]
        again = ports.clock.now_ms() + backoff(ports.policy, 1)
        await ports.cases.put_off(lease, [case.case_id for case in cases], again, text)
        return len(cases)
    await ports.cases.change(lease, [(case.case_id, change) for case, change in changes], ports.clock.now_ms())
    for case, change in changes:
        if change.state is CaseState.NEEDS_RECONCILIATION:
            ports.gauges.needs_person(case, change.evidence)
        elif change.state is not CaseState.OPEN:
            ports.gauges.decided(change.state)
    return len(cases)


async def _changes(ports: Ports, cases: Sequence[Case]) -> list[tuple[Case, Change]]:
    inspections: list[Inspection | Refusal] = await _each(
        cases, lambda part: ports.effects.inspect([case.name for case in part])
    )
    now = ports.clock.now_ms()
    changes: list[tuple[Case, Change]] = []
    certain: list[tuple[Case, Resolve]] = []
    for case, found in zip(cases, inspections, strict=True):
        verdict = _refused(ports, case, found) if isinstance(found, Refusal) else judge(case, found, now, ports.policy)
        if isinstance(verdict, Resolve):
            certain.append((case, verdict))
        else:
            changes.append((case, verdict))
    answers: list[Answer | Refusal] = await _each(
        certain, lambda part: ports.effects.resolve([(case.name, verdict, BY_LOOKUP) for case, verdict in part])
    )
    for (case, verdict), answer in zip(certain, answers, strict=True):
        if isinstance(answer, Refusal):
            change = _refused(ports, case, answer)
        else:
            change = recorded(
                case,
                verdict,
                done=answer.recorded,
                state=answer.state,
                version=answer.version,
                now_ms=ports.clock.now_ms(),
                policy=ports.policy,
            )
        changes.append((case, change))
    return changes


async def _each(items: Sequence[T], ask: Callable[[Sequence[T]], Awaitable[list[R]]]) -> list[R | Refusal]:
    """Asks for all at once; where the gateway refuses the whole for one of them, one by one. Raises where it is away."""
    if not items:
        return []
    try:
        return list(await ask(items))
    except Refusal as no:
        if no.reason in _AWAY:
            raise
        if len(items) == 1:
            return [no]
    found: list[R | Refusal] = []
    for item in items:
        try:
            found += await ask([item])
        except Refusal as no:
            if no.reason in _AWAY:
                raise
            found.append(no)
    return found


def _refused(ports: Ports, case: Case, no: Refusal) -> Change:
    """The gateway does not know the effect, or will not judge it: tried again, in the end a person's."""
    failures, now = case.failures + 1, ports.clock.now_ms()
    text = f"the gateway refused: {no.message}"[:_EVIDENCE]
    if failures >= ports.policy.max_unreachable:
        return Change(CaseState.NEEDS_RECONCILIATION, 0, failures, text, case.effect_version)
    return Change(CaseState.OPEN, now + backoff(ports.policy, case.failures), failures, text, case.effect_version)
