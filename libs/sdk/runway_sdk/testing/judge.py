"""What a run left behind, and whether a disturbed run left the same as an undisturbed one. Pure: no I/O.

Authoritative for what the crash kit calls green. Can go wrong: a difference that is no fault, such as a time of day in a
result. Two undisturbed runs are compared first: what differs between them cannot be held against a crash, and is said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["green", "red", "needs a person", "not reached"]
SlotKey = tuple[str, str, str]

DONE = frozenset({"succeeded", "observed", "compensated"})
NOT_DONE = frozenset({"failed", "not_sent", "absent"})
OWNED_BY_A_PERSON = frozenset({"needs_reconciliation", "unknown"})
REPEATABLE = frozenset({"pure", "idempotent"})


@dataclass(frozen=True, slots=True)
class Try:
    """One dispatch of an effect."""

    attempt_id: str
    state: str
    requested_at: float


@dataclass(frozen=True, slots=True)
class EffectFacts:
    """One slot of the run's ledger."""

    step: str
    slot: str
    tool: str
    state: str
    replay_class: str
    digest: str = ""
    tries: Sequence[Try] = ()

    @property
    def key(self) -> SlotKey:
        """What it is compared by."""
        return self.step, self.slot, self.tool

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.step}/{self.slot} ({self.tool})"

    @property
    def end(self) -> str:
        """done, not done, or the state that is neither."""
        return "done" if self.state in DONE else "not done" if self.state in NOT_DONE else self.state


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt of a step."""

    step: str
    attempt_id: str
    state: str
    worker_id: str
    leased_at: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What one run came to, seen from inside and from outside."""

    run_id: str
    label: str
    wall_s: float
    settled: bool
    outcome: str
    result: Any = None
    failure: str = ""
    effects: Sequence[EffectFacts] = ()
    attempts: Sequence[AttemptFacts] = ()
    observed: Any = None
    trouble: Sequence[str] = ()
    """What could not be found out."""

    @property
    def repeated(self) -> dict[str, int]:
        """Steps that took more than one attempt."""
        count: dict[str, int] = {}
        for attempt in self.attempts:
            count[attempt.step] = count.get(attempt.step, 0) + 1
        return {step: number for step, number in count.items() if number > 1}

    @property
    def waits_for_a_person(self) -> list[EffectFacts]:
        """Effects whose outcome nobody but a person can say."""
        return [effect for effect in self.effects if effect.state in OWNED_BY_A_PERSON]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons, and what is worth knowing all the same."""

    verdict: Verdict
    reasons: Sequence[str] = field(default_factory=tuple)
    notes: Sequence[str] = field(default_factory=tuple)


def alike(first: RunFacts, second: RunFacts) -> list[str]:
    """Why two undisturbed runs cannot serve as the measure; empty where they can."""
    found = [*first.trouble, *second.trouble]
    for facts in (first, second):
        if not facts.settled:
            found.append(f"undisturbed, the run was not settled after {facts.wall_s:.0f} s")
        found += _broken(facts)
        found += [f"undisturbed, {effect.name} is {effect.state}" for effect in facts.waits_for_a_person]
    if found:
        return list(dict.fromkeys(found))
    for what, one, other in _compared(first, second):
        if one != other:
            found.append(f"two undisturbed runs differ in {what}: {brief(one)} and {brief(other)}")
    found += [f"two undisturbed runs differ in effects: {text}" for text in _slots(first, second)]
    return found


def judge(first: RunFacts, second: RunFacts, run: RunFacts, *, allow_unknown: bool = False, zombie: str = "") -> Judgement:
    """A disturbed run against two undisturbed ones. `zombie` is the worker that was paused past its lease."""
    notes = _notes(first, second, run)
    reasons = [*run.trouble, *_broken(run)]
    for attempt in run.attempts:
        if zombie and attempt.worker_id == zombie and attempt.state == "succeeded" and _followed(attempt, run.attempts):
            reasons.append(f"{attempt.step}: the report of an attempt that was lost has been taken")
    waiting = run.waits_for_a_person
    if waiting and not reasons:
        texts = [
            f"{effect.name} is {effect.state}: it may or may not have happened, and no look-up can tell "
            "(an HTTP target tells by its `lookup_path`)"
            for effect in waiting
        ]
        return Judgement("green", (), [*notes, *texts]) if allow_unknown else Judgement("needs a person", texts, notes)
    if not run.settled and not waiting:
        reasons.append(f"not settled after {run.wall_s:.0f} s")
    elif not waiting:
        for what, expected, got in _compared(first, run):
            if expected != got:
                reasons.append(f"{what} differs: {brief(expected)} undisturbed, {brief(got)} here")
        reasons += _slots(first, run)
    return Judgement("red" if reasons else "green", list(dict.fromkeys(reasons)), notes)


def _compared(one: RunFacts, other: RunFacts) -> list[tuple[str, Any, Any]]:
    return [
        ("outcome", (one.outcome, one.failure), (other.outcome, other.failure)),
        ("result", one.result, other.result),
        ("what is observed outside", one.observed, other.observed),
    ]


def _slots(expected: RunFacts, run: RunFacts) -> list[str]:
    """Effects that one of them has and the other has not, or that ended otherwise."""
    wanted = {effect.key: effect for effect in expected.effects}
    got = {effect.key: effect for effect in run.effects}
    found = [f"effect {wanted[key].name} is missing" for key in sorted(wanted.keys() - got.keys())]
    found += [f"effect {got[key].name} is one too many" for key in sorted(got.keys() - wanted.keys())]
    for key in sorted(wanted.keys() & got.keys()):
        if wanted[key].end != got[key].end:
            found.append(f"effect {got[key].name} is {wanted[key].state} undisturbed, {got[key].state} here")
    return found


def _broken(run: RunFacts) -> list[str]:
    """Promises about effects that hold for every run, whatever the workflow."""
    found = []
    leased = {attempt.attempt_id: attempt for attempt in run.attempts}
    for effect in run.effects:
        if effect.end not in ("done", "not done") and effect.state not in OWNED_BY_A_PERSON and run.settled:
            found.append(f"effect {effect.name} is left {effect.state}")
        sent = [item for item in effect.tries if item.state not in NOT_DONE]
        if effect.replay_class not in REPEATABLE and len(sent) > 1:
            found.append(f"effect {effect.name} is {effect.replay_class} and may have been sent {len(sent)} times")
        elif effect.replay_class != "pure" and sum(item.state in DONE for item in effect.tries) > 1:
            found.append(f"effect {effect.name} was done more than once")
        for item in effect.tries:
            holder = leased.get(item.attempt_id)
            after = holder and _followed(holder, run.attempts)
            if after and item.requested_at > after.leased_at:
                found.append(f"effect {effect.name} was sent for an attempt that another had followed")
    return found


def _followed(attempt: AttemptFacts, attempts: Sequence[AttemptFacts]) -> AttemptFacts | None:
    """The next attempt of the same step."""
    later = [item for item in attempts if item.step == attempt.step and item.leased_at > attempt.leased_at]
    return min(later, key=lambda item: item.leased_at, default=None)


def _notes(first: RunFacts, second: RunFacts, run: RunFacts) -> list[str]:
    steady: Mapping[SlotKey, str] = {
        effect.key: effect.digest
        for effect in first.effects
        if any(again.key == effect.key and again.digest == effect.digest for again in second.effects)
    }
    return [
        f"effect {effect.name} had other arguments than undisturbed"
        for effect in run.effects
        if effect.key in steady and steady[effect.key] != effect.digest
    ]


def brief(value: Any) -> str:
    """For one line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
