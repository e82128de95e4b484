"""Effect and reconcile: one slot, its tries, two gateway processes, the provider, look-ups and a person.

What receipts, findings and look-ups do is decided by the product's own code (`services/gateway/domain/effect.py`, `lookup.py`);
around it, as the code has it: which slot may be asked again (`admit` of `services/gateway/store/sql/admission.sql`), calls that
only a live process makes (`app/run_calls.py`), tries adopted from proved dead processes, or by their own voided or told again
after a promotion that lost their receipt (`app/adopt_tries.py`), findings recorded by compare-and-set on the version (`app/resolve_effects.py`). Bytes that left a process
arrive, or never do, at any later moment; the settle window is over once none is under way.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, NamedTuple
from uuid import UUID

from services.gateway.domain import lookup
from services.gateway.domain.effect import (
    ANSWERED,
    DOUBTFUL,
    LOOKUP,
    Effect,
    EffectName,
    Landed,
    Outcome,
    Receipt,
    ReplayClass,
    Resolution,
    State,
    Try,
    land,
    resolve,
)
from services.gateway.domain.lookup import Finding, Found, Seen
from tests.models.explorer import Broken, Model, Move, swap

UNSENT, FLYING, APPLIED, LOST = "unsent", "flying", "applied", "lost"
NIL = UUID(int=0)
NAME = EffectName(NIL, "step", "slot")
AGAIN = frozenset({State.FAILED, State.NOT_SENT, State.ABSENT})
"""After these a slot may be asked anew."""


class Call(NamedTuple):
    """One try. `alive`: its process may still send it or is sending it; `bytes`: where its request is."""

    state: State
    process: int
    alive: bool
    bytes: str


class Slot(NamedTuple):
    """Everything. `state` None: never asked; `findings`: looked up, not recorded yet; `attempt`: who may ask now."""

    replay_class: ReplayClass | None = None
    state: State | None = None
    version: int = 0
    answered: int = 0
    calls: tuple[Call, ...] = ()
    dead: tuple[bool, bool] = (False, False)
    applied: int = 0
    attempt: int = 0
    findings: tuple[tuple[State, int, str], ...] = ()
    promoted: bool = False


class EffectModel(Model[Slot]):
    """Each replay class in turn; tries as far as the bound goes."""

    name = "effect"
    about = "intent, dispatch, receipt, unknown, look-up, settle window, replay, at most once by class"
    mutants: ClassVar[Mapping[str, str]] = {
        "attempt-in-the-slot": "a slot belongs to its step, not to an attempt",
        "answer-not-replayed": "a slot that has its answer is not asked again",
        "unknown-asked-again": "a slot whose outcome is unknown is not asked again",
        "under-way-asked-again": "a call repeated while the first is under way attaches to it",
        "no-settle-window": "nothing found proves nothing while bytes may be under way",
        "silence-is-death": "a process is dead when that is proved, not when it is silent",
        "void-while-alive": "a process voids only tries that it neither makes nor will make",
        "void-while-idle": "a process voids only what it gave up unsent, not all that it is not making",
        "receipts-fenced": "receipts are facts: never fenced",
        "lost-is-failed": "only a pure call's lost answer is a failure",
        "version-not-compared": "a finding counts only for the version that was looked up",
        "lookup-overrules-people": "what a person owns is not decided by a look-up",
    }

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.tries = 3 if wide else 2
        self.attempts = 3 if wide else 2
        self.lookups = 2

    def initial(self) -> Slot:
        """Nothing was asked yet."""
        return Slot()

    def moves(self, state: Slot) -> Iterator[Move]:
        """The attempt, the processes, the provider, the reconciler and people."""
        if state.replay_class is None:
            for replay_class in ReplayClass:
                yield Move(f"the tool is {replay_class.value}", state._replace(replay_class=replay_class))
            return
        if state.attempt + 1 < self.attempts:
            yield Move("the attempt ends, another is granted", state._replace(attempt=state.attempt + 1), False)
        yield from self._intent(state)
        for place, call in enumerate(state.calls):
            yield from self._call(state, place, call)
            yield from self._bytes(state, place, call)
        yield from self._processes(state)
        yield from self._reconcile(state)

    # ------------------------------------------------------------------------------------------------ the product's decisions

    def _objects(self, state: Slot, place: int) -> tuple[Effect, Try]:
        assert state.state is not None
        assert state.replay_class is not None
        call = state.calls[place]
        effect = Effect(
            NAME, "tool", state.replay_class, state.state, state.version, len(state.calls), state.answered, b"", b"", None, None,
            "", "", "", 0, 0, 0, 0, 0, 0,
        )  # fmt: skip
        return effect, Try(NAME, place + 1, NIL, NIL, 0, 0, NIL, call.state, 0, 0, 0, 0, 0)

    def _after(self, state: Slot, place: int, landed: Landed | None, *, over: bool = True) -> Slot | Broken:
        """The slot and the try after a decision of the product."""
        call = state.calls[place]
        if over:
            state = state._replace(calls=swap(state.calls, place, call._replace(alive=False)))
        if landed is None:
            return state
        if state.state in ANSWERED and landed.effect.state not in ANSWERED:
            return Broken("an effect that has its answer loses it")
        calls = swap(state.calls, place, state.calls[place]._replace(state=landed.attempt.state))
        effect = landed.effect
        return state._replace(calls=calls, state=effect.state, version=effect.version, answered=effect.answered)

    def _land(self, state: Slot, place: int, word: State, *, over: bool = True) -> Slot | Broken:
        effect, attempt = self._objects(state, place)
        if word is State.UNKNOWN and (state.replay_class is ReplayClass.PURE or self.without("lost-is-failed")):
            word = State.FAILED
        return self._after(state, place, land(effect, attempt, Receipt(NAME, place + 1, NIL, Outcome(word)), 0), over=over)

    # ------------------------------------------------------------------------------------------------ asking

    def _intent(self, state: Slot) -> Iterator[Move]:
        fresh = state.state is None or state.state in AGAIN
        if self.without("attempt-in-the-slot") and state.attempt and len(state.calls) == 1:
            fresh = True
        for guard, passes in (
            ("answer-not-replayed", state.state in ANSWERED),
            ("unknown-asked-again", state.state is State.UNKNOWN),
            ("under-way-asked-again", state.state is State.REQUESTED),
        ):
            fresh = fresh or (self.without(guard) and passes)
        if not fresh or len(state.calls) >= self.tries:
            return
        for process in (0, 1):
            if state.dead[process]:
                continue
            for confirmed in (True, False):
                call = Call(State.REQUESTED, process, confirmed, UNSENT)
                asked = state._replace(state=State.REQUESTED, version=state.version + 1, calls=(*state.calls, call))
                word = "is committed" if confirmed else "is committed, but not confirmed"
                yield Move(f"try {len(asked.calls)} {word} by process {process}", asked, confirmed)

    def _call(self, state: Slot, place: int, call: Call) -> Iterator[Move]:
        name = f"try {place + 1}"
        live = call.alive and not state.dead[call.process]
        if live and call.bytes == UNSENT:
            yield Move(
                f"{name} leaves process {call.process}",
                state._replace(calls=swap(state.calls, place, call._replace(bytes=FLYING))),
            )
        fenced = self.without("receipts-fenced") and state.attempt > 0 and len(state.calls) == 1
        if live and call.state is State.REQUESTED and call.bytes != UNSENT:
            told = State.SUCCEEDED if call.bytes == APPLIED else State.UNKNOWN
            for word in {told, State.UNKNOWN}:
                landed = self._after(state, place, None) if fenced else self._land(state, place, word)
                yield Move(f"{name}: the receipt says {word.value}", landed)
            if not state.promoted:
                idle = swap(state.calls, place, call._replace(alive=False))
                lost = state._replace(calls=idle, promoted=True)
                yield Move(f"{name}: its receipt is recorded, and lost by the database that is promoted", lost, False)
        if call.bytes == APPLIED and call.state in (State.UNKNOWN, State.NEEDS_RECONCILIATION, State.OBSERVED):
            yield Move(f"{name}: a late receipt says that it succeeded", self._land(state, place, State.SUCCEEDED), False)
        own = call.state is State.REQUESTED and not state.dead[call.process]
        given_up = not call.alive and (call.bytes == UNSENT or self.without("void-while-idle"))
        if own and (given_up or self.without("void-while-alive")):
            yield Move(f"process {call.process} voids {name}", self._land(state, place, State.NOT_SENT, over=False))
        elif own and not call.alive:
            for word in {State.SUCCEEDED if call.bytes == APPLIED else State.UNKNOWN, State.UNKNOWN}:
                told_again = self._after(state, place, None) if fenced else self._land(state, place, word)
                yield Move(f"process {call.process} tells of {name} again: {word.value}", told_again)

    def _bytes(self, state: Slot, place: int, call: Call) -> Iterator[Move]:
        if call.bytes != FLYING:
            return
        keyed = state.replay_class is ReplayClass.IDEMPOTENT and state.applied and not self.without("attempt-in-the-slot")
        calls = swap(state.calls, place, call._replace(bytes=APPLIED))
        applied = min(2, state.applied + (not keyed))
        if applied > 1 and state.replay_class is not ReplayClass.PURE:
            yield Move(f"the provider applies try {place + 1}", Broken("the effect happens twice"))
            return
        yield Move(f"the provider applies try {place + 1}", state._replace(calls=calls, applied=applied))
        lost = swap(state.calls, place, call._replace(bytes=LOST))
        yield Move(f"try {place + 1} is lost on its way", state._replace(calls=lost))

    def _processes(self, state: Slot) -> Iterator[Move]:
        for process in (0, 1):
            if not state.dead[process] and not any(state.dead):
                dead = (process == 0, process == 1)
                yield Move(f"process {process} dies", state._replace(dead=dead), False)
            if not state.dead[process] and not self.without("silence-is-death"):
                continue
            for place, call in enumerate(state.calls):
                if call.process == process and call.state is State.REQUESTED:
                    adopted = self._land(state, place, State.UNKNOWN, over=state.dead[process])
                    yield Move(f"try {place + 1} of dead process {process} is adopted", adopted)

    # ------------------------------------------------------------------------------------------------ looking up

    def _reconcile(self, state: Slot) -> Iterator[Move]:
        if state.state in DOUBTFUL and len(state.findings) < self.lookups:
            yield from self._look(state)
        for number, (word, version, actor) in enumerate(state.findings):
            rest = state._replace(findings=(*state.findings[:number], *state.findings[number + 1 :]))
            place = len(state.calls) - 1
            effect, attempt = self._objects(state, place)
            expected = state.version if self.without("version-not-compared") else version
            by = "person" if self.without("lookup-overrules-people") else actor
            found = resolve(effect, attempt, Resolution(NAME, word, None, "", expected, by), 0)
            yield Move(f"{actor} records {word.value} of version {version}", self._after(rest, place, found, over=False))

    def _look(self, state: Slot) -> Iterator[Move]:
        settled = not any(call.bytes == FLYING for call in state.calls)
        blind = state.replay_class is ReplayClass.NON_REPLAYABLE
        seen = Seen(Found.PRESENT if state.applied else Found.NOTHING, authoritative=True)
        if blind:
            seen = Seen(Found.NO_LOOKUP)
        waited = 1 if settled or self.without("no-settle-window") else 0
        if state.state is State.UNKNOWN or self.without("lookup-overrules-people"):
            if blind and self.without("lookup-overrules-people"):
                seen = Seen(Found.NOTHING, authoritative=True)
            finding, _ = lookup.judge(seen, waited, 1)
            word = {
                Finding.OBSERVED: State.OBSERVED,
                Finding.ABSENT: State.ABSENT,
                Finding.UNDECIDABLE: State.NEEDS_RECONCILIATION,
            }
            if finding in word:
                yield Move(f"a look-up finds {finding.value}", self._found(state, word[finding], LOOKUP))
        if state.state is State.NEEDS_RECONCILIATION and settled:
            truth = State.OBSERVED if state.applied else State.ABSENT
            yield Move(f"a person finds {truth.value}", self._found(state, truth, "person"))

    def _found(self, state: Slot, word: State, actor: str) -> Slot:
        return state._replace(findings=tuple(sorted((*state.findings, (word, state.version, actor)))))

    # ------------------------------------------------------------------------------------------------ rules

    def broken(self, state: Slot) -> str:
        """What is said of the slot is true, and stays true."""
        if state.state in ANSWERED and not state.applied:
            return f"{state.state} is said of what did not happen" if state.state else ""
        may_come = any(call.bytes == FLYING or (call.bytes == UNSENT and self._may_send(state, call)) for call in state.calls)
        if state.state in (State.ABSENT, State.NOT_SENT) and state.replay_class is not ReplayClass.PURE:
            if state.applied:
                return f"{state.state} is said of what happened" if state.state else ""
            if may_come:
                return f"{state.state} is said of what may still happen" if state.state else ""
        return ""

    def _may_send(self, state: Slot, call: Call) -> bool:
        return call.alive and not state.dead[call.process]

    def goals(self) -> Mapping[str, Callable[[Slot], bool]]:
        """No effect stays in doubt: it has its answer, or may be asked anew."""
        known = ANSWERED | AGAIN
        return {"the outcome is known": lambda state: state.state in known}
