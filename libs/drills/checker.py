"""Authoritative for what a history may not hold. Pure: facts in, violations out; the same history has the same verdict always.

Facts and who notes them:
- `client`: launched(request_id, run), cancelled(run, phase, epoch, in_flight), seen(run, state, outcome, epoch);
- `worker`: began / accepted / refused (attempt, run, step, call, `call_id`), lease (run, step, authority, lease, attempt);
- `provider`: applied(run, step, slot, key), repeated(…: known by its key, not applied again);
- `probe`: leader(shard, epoch, holder);
- `drill`: forgotten(since): a ledger may lack the effects applied from then until this was noted, and only those;
- `final`: run(run, state, outcome, epoch), effect(run, step, slot, state, dispatches), attempt(run, step, attempt, authority,
  lease, state), unknown(run), orphan(run), ledger(account, micros), outbox(service, waiting, dead), tenant(reserved, active).

Can go wrong: a rule that no history can break. Each has a forged bad history among the tests.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from libs.drills.history import Fact

TERMINAL = frozenset({"succeeded", "failed", "cancelled", "expired", "denied"})
HAPPENED = frozenset({"succeeded", "observed", "compensated"})
DID_NOT = frozenset({"absent", "not_sent", "failed", "proposed"})


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a history breaks, and where."""

    rule: str
    detail: str


Rule = Callable[[Sequence[Fact], bool], Iterable[str]]
"""Facts, and whether accepted work may be lost (a standby promoted without the last commits)."""


def _of(facts: Sequence[Fact], who: str, *what: str) -> list[Fact]:
    return [fact for fact in facts if fact["who"] == who and fact["what"] in what]


def forgotten(facts: Sequence[Fact]) -> set[tuple[str, str, str]]:
    """Effects whose intents the gateway's database may have lost: first applied after its standby had heard the last."""
    windows = [(fact["since"], fact["t"]) for fact in _of(facts, "drill", "forgotten")]
    first: dict[tuple[str, str, str], float] = {}
    for fact in _of(facts, "provider", "applied"):
        first.setdefault((fact["run"], fact["step"], fact["slot"]), fact["t"])
    return {effect for effect, when in first.items() if any(since <= when <= until for since, until in windows)}


def applied_once(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """Each logical effect is applied at most once."""
    times: dict[tuple[str, str, str], int] = defaultdict(int)
    for fact in _of(facts, "provider", "applied"):
        times[fact["run"], fact["step"], fact["slot"]] += 1
    lost = forgotten(facts)
    return (f"{'/'.join(e)} was applied {count} times" for e, count in times.items() if count > 1 + (e in lost))


def ledger_is_true(facts: Sequence[Fact], lossy: bool) -> Iterable[str]:
    """What the effect ledger says in the end is what the provider did; nothing stays unresolved in silence."""
    applied = {(fact["run"], fact["step"], fact["slot"]) for fact in _of(facts, "provider", "applied")}
    gone = {fact["run"] for fact in _of(facts, "final", "unknown")} if lossy else set()
    known = set()
    for fact in _of(facts, "final", "effect"):
        effect = fact["run"], fact["step"], fact["slot"]
        known.add(effect)
        if fact["state"] in HAPPENED and effect not in applied:
            yield f"{'/'.join(effect)} is {fact['state']} and was never applied"
        elif fact["state"] in DID_NOT and effect in applied:
            yield f"{'/'.join(effect)} is {fact['state']} and was applied"
        elif fact["state"] not in HAPPENED | DID_NOT | {"needs_reconciliation"}:
            yield f"{'/'.join(effect)} is still {fact['state']}"
    for effect in sorted(applied - known - forgotten(facts)):
        if effect[0] not in gone:
            yield f"{'/'.join(effect)} was applied and is in no ledger"


def nothing_after_enforced(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """No effect of a run is applied after its cancel was ENFORCED, but those that the answer named as under way."""
    enforced: dict[str, tuple[float, set[tuple[str, str]]]] = {}
    for fact in _of(facts, "client", "cancelled"):
        if fact["phase"] in ("ENFORCED", "QUIESCED") and fact["run"] not in enforced:
            enforced[fact["run"]] = (fact["t"], {(step, slot) for step, slot in fact["in_flight"]})
    for fact in _of(facts, "provider", "applied"):
        when, in_flight = enforced.get(fact["run"], (float("inf"), set()))
        if fact["t"] > when and (fact["step"], fact["slot"]) not in in_flight:
            yield f"{fact['run']}/{fact['step']}/{fact['slot']} was applied {fact['t'] - when:.0f} ms after ENFORCED"


def enforced_stays(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """A cancel that was enforced is the run's outcome."""
    enforced = {f["run"] for f in _of(facts, "client", "cancelled") if f["phase"] in ("ENFORCED", "QUIESCED", "ACCEPTED")}
    for fact in _of(facts, "final", "run"):
        if fact["run"] in enforced and fact["outcome"] != "cancelled":
            yield f"{fact['run']} was cancelled and ended as {fact['outcome'] or fact['state']}"


def one_live_lease(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """Once a later lease of a step has acted, nothing that an earlier one begins is accepted."""
    leases: dict[str, tuple[int, int]] = {}
    for fact in facts:
        if fact["what"] in ("lease", "attempt") and "lease" in fact:
            leases[fact["attempt"]] = (fact["authority"], fact["lease"])
    began = {fact["call_id"]: fact["t"] for fact in _of(facts, "worker", "began")}
    acted: dict[tuple[str, str], list[tuple[tuple[int, int], float]]] = defaultdict(list)
    for fact in _of(facts, "worker", "accepted"):
        lease = leases.get(fact["attempt"])
        start = began.get(fact["call_id"])
        if lease is None or start is None:
            continue
        step = fact["run"], fact["step"]
        if any(other > lease and when < start for other, when in acted[step]):
            yield f"{'/'.join(step)}: {fact['call']} of lease {lease[1]} was accepted after a later lease had acted"
        acted[step].append((lease, fact["t"]))


def one_success(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """At most one attempt of a step succeeds."""
    successes: dict[tuple[str, str], int] = defaultdict(int)
    for fact in _of(facts, "final", "attempt"):
        successes[fact["run"], fact["step"]] += fact["state"] == "succeeded"
    return (f"{'/'.join(step)}: {count} attempts succeeded" for step, count in successes.items() if count > 1)


def one_run_per_request(facts: Sequence[Fact], lossy: bool) -> Iterable[str]:
    """The same request id is the same run."""
    gone = {fact["run"] for fact in _of(facts, "final", "unknown")} if lossy else set()
    runs: dict[str, set[str]] = defaultdict(set)
    for fact in _of(facts, "client", "launched"):
        if fact["run"] not in gone:
            runs[fact["request_id"]].add(fact["run"])
    return (f"request {request} made runs {', '.join(sorted(found))}" for request, found in runs.items() if len(found) > 1)


def one_outcome(facts: Sequence[Fact], lossy: bool) -> Iterable[str]:
    """Every launched run ends, with one outcome, which nobody saw differently before."""
    final = {fact["run"]: fact for fact in _of(facts, "final", "run")}
    gone = {fact["run"] for fact in _of(facts, "final", "unknown")}
    for run in sorted({fact["run"] for fact in _of(facts, "client", "launched")}):
        if run in gone and lossy:
            continue
        if run in gone or run not in final:
            yield f"{run} was launched and is not known any more"
        elif final[run]["state"] not in TERMINAL:
            yield f"{run} did not end: it is {final[run]['state']}"
    for fact in _of(facts, "client", "seen"):
        ended = final.get(fact["run"])
        if ended is not None and fact["outcome"] and fact["outcome"] != ended["outcome"]:
            yield f"{fact['run']} was seen as {fact['outcome']} and ended as {ended['outcome']}"


def outcomes_are_kept(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """Once somebody was told an outcome, nobody is told later that there is none."""
    told: dict[str, str] = {}
    for fact in facts:
        if fact["who"] == "client" and fact["what"] in ("seen", "cancelled"):
            if fact["outcome"]:
                told[fact["run"]] = fact["outcome"]
            elif fact["run"] in told:
                yield f"{fact['run']} was told to be {told[fact['run']]} and is {fact['state']} later"


def epochs_are_used_once(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """No epoch of a run falls; none of a shard or lease is given to two."""
    newest: dict[str, int] = {}
    outcomes: dict[tuple[str, int], str] = {}
    for fact in facts:
        if fact["what"] in ("seen", "run", "cancelled") and fact.get("epoch"):
            run, epoch = fact["run"], fact["epoch"]
            if epoch < newest.get(run, 0):
                yield f"the epoch of {run} fell from {newest[run]:#x} to {epoch:#x}"
            newest[run] = max(epoch, newest.get(run, 0))
            if (outcome := fact.get("outcome")) and outcomes.setdefault((run, epoch), outcome) != outcome:
                yield f"{run}: epoch {epoch:#x} was {outcomes[run, epoch]} and {outcome}"
    holders: dict[tuple[object, ...], str] = {}
    for fact in facts:
        if fact["what"] == "leader" and fact["holder"]:
            place: tuple[object, ...] = ("shard", fact["shard"], fact["epoch"])
            holder = fact["holder"]
        elif fact["what"] in ("lease", "attempt") and "lease" in fact:
            place = ("lease", fact["run"], fact["step"], fact["authority"], fact["lease"])
            holder = fact["attempt"]
        else:
            continue
        if holders.setdefault(place, holder) != holder:
            yield f"{' '.join(str(part) for part in place)} was given to {holders[place]} and to {holder}"


def money_adds_up(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """Ledgers sum to zero, account by account, and nothing stays reserved."""
    for fact in _of(facts, "final", "ledger"):
        if fact["micros"] != 0:
            yield f"{fact['account']} is {fact['micros']} micros instead of 0"
    for fact in _of(facts, "final", "tenant"):
        if fact["reserved"] or fact["active"]:
            yield f"the tenant still reserves {fact['reserved']} micros for {fact['active']} runs"


def no_orphans(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """Nothing that a run spawned outlives it."""
    return (f"{fact['run']} still runs, and what it came of is over" for fact in _of(facts, "final", "orphan"))


def outboxes_drain(facts: Sequence[Fact], _: bool) -> Iterable[str]:
    """Every event is delivered in the end, and none refused."""
    for fact in _of(facts, "final", "outbox"):
        if fact["waiting"] or fact["dead"]:
            yield f"{fact['service']}: {fact['waiting']} events undelivered, {fact['dead']} dead letters"


RULES: tuple[Rule, ...] = (
    applied_once,
    ledger_is_true,
    nothing_after_enforced,
    enforced_stays,
    one_live_lease,
    one_success,
    one_run_per_request,
    one_outcome,
    outcomes_are_kept,
    epochs_are_used_once,
    money_adds_up,
    no_orphans,
    outboxes_drain,
)


def check(facts: Sequence[Fact], *, lossy: bool = False) -> list[Violation]:
    """Every violation, rule by rule. `lossy`: accepted launches may be lost, and nothing else is forgiven."""
    return [Violation(rule.__name__, detail) for rule in RULES for detail in rule(facts, lossy)]
