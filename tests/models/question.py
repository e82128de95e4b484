"""Questions: a child's step that asks people once, its root, whose log tells of that, two who answer, a deadline, a cancel of the tree.

What a command, a yield, an answer, a passed time and a closing do is decided by the product's own code (`services/readiness/domain`, and
the judgement of `app/answer_inputs.py`); around it, as the code has it: events that arrive late and again, the lock of a run, the ticket's
row, attempts that are given what was answered before, and launch, which notes in the root's log what its children ask.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple
from uuid import UUID

from libs.kernel.refusal import Refusal
from services.readiness.app.answer_inputs import AnswerAsk, _judge
from services.readiness.domain import steps as domain
from services.readiness.domain.graph import Contract, Join, Node, Retry, build_graph
from services.readiness.domain.steps import TERMINAL, AttemptFact, End, FailureFacts, RunView, Step, StepState
from services.readiness.domain.waits import Asked, Kind, Wait, WaitState, begin_wait
from services.readiness.ports import ACTIVE, CLOSED, RunFacts
from tests.models.explorer import Broken, Model, Move

CHILD, ROOT = UUID(int=2), UUID(int=1)
KEY, SLOT = "ask", "q"
DUE, MOST_TICKETS = 5, 5
LOST = FailureFacts("infrastructure", "silence", "LEASE_LOST")
ANSWERS = (b"1", b"2")
IDLE, READY, HELD = "idle", "ready", "held"
_CONTRACT = Contract("h@1", 0, 0, (), (), False, (), 1)
GRAPH = build_graph([Node(KEY, (), Join.ALL, Retry(9, 0, 1.0, 0, frozenset()), _CONTRACT, "")], KEY)
Event = tuple[str, int]


class Row(NamedTuple):
    """The step's row. `waits`: for the question."""

    state: StepState
    sequence: int
    attempts: int = 0
    retry_at_ms: int = 0
    wait_reason: str = ""
    waits: bool = False

    def step(self) -> Step:
        """As the domain has it."""
        pending = {SLOT: 0} if self.waits else {}
        return Step(
            KEY,
            self.state,
            self.sequence,
            self.attempts,
            retry_at_ms=self.retry_at_ms,
            wait_reason=self.wait_reason,
            pending=pending,
        )


def row_of(step: Step) -> Row:
    """The other way."""
    return Row(step.state, step.ticket_sequence, step.attempts, step.retry_at_ms, step.wait_reason, bool(step.pending))


class Answering(NamedTuple):
    """Everything. `step`, `wait`: readiness' rows; `ticket`: the scheduler's row and its sequence; `given`: what the ticket carries of the
    question; `events`: what is on its way; `taken`: answers that people were told are taken; `told`: what attempts were told; `logged`: how
    often the root's log has the question; `asked`: commands that were recorded; `lost`: leases that were lost; `moment`: before or after
    the question's end; `read`: an answer that was judged and is not stored yet, which only mutants have."""

    step: Row
    wait: Wait | None = None
    ticket: tuple[str, int] = (READY, 1)
    given: Wait | None = None
    events: frozenset[Event] = frozenset()
    taken: tuple[bytes, ...] = ()
    told: frozenset[bytes] = frozenset()
    logged: int = 0
    lost: int = 0
    moment: int = 0
    closed: bool = False
    over: bool = False
    read: bytes = b""


class QuestionModel(Model[Answering]):
    """One question of one child."""

    name: ClassVar[str] = "question"
    about: ClassVar[str] = (
        "a child's question through its root: asked once, answered once, told to every attempt alike, over on cancel"
    )
    mutants: ClassVar[Mapping[str, str]] = {
        "slot-once": "what is asked under a slot stands",
        "first-stands": "an answer is taken while the question is open",
        "run-lock": "an answer is judged and stored behind the run's lock",
        "too-late": "a question whose time has passed takes no answer",
        "closed-run": "a question of a run that is over takes no answer",
        "yield-waits": "a step that asks is not leased before it is answered",
        "too-early": "a yield is applied once what it asked is known",
        "given": "a later attempt is given what was answered",
        "logged-once": "the root's log tells of a question once",
        "root-goes-on": "a root whose end is decided is told nothing",
        "answer-wakes": "an answer wakes the step that waits for it",
        "closing-ends": "a closing ends what waits",
    }
    costly: ClassVar[frozenset[str]] = frozenset()

    def initial(self) -> Answering:
        """The child was spawned, and its step has a ticket."""
        return Answering(row_of(domain.begin(GRAPH)[KEY]))

    def moves(self, state: Answering) -> Iterator[Move]:
        """The scheduler, events, people, time."""
        yield from self._scheduler(state)
        for event in state.events:
            yield from self._event(state, event)
        yield from self._people(state)
        if state.moment == 0:
            yield Move("the question's time passes", state._replace(moment=DUE), fair=False)
        step = state.step
        if step.state is StepState.WAITING and 0 < step.retry_at_ms <= state.moment and not state.closed:
            view = self._view(state)
            domain.retry_due(view, KEY, state.moment)
            yield Move("readiness' timer runs", self._saved(state, view))

    # -- the scheduler, and the attempt

    def _scheduler(self, state: Answering) -> Iterator[Move]:
        word, sequence = state.ticket
        if word == READY:
            waits = state.wait is not None and state.wait.state is WaitState.OPEN and not state.closed
            if waits and sequence > 1:
                yield Move("the step is leased", Broken("a step is leased while its question is open"))
                return
            yield Move("the step is leased", state._replace(ticket=(HELD, sequence)))
        if word != HELD:
            return
        idle = state._replace(ticket=(IDLE, sequence))
        if state.given is None:
            asked = idle._replace(events=state.events | {("command", sequence), ("yielded", sequence)})
            yield Move("the attempt asks, and returns its lease", asked)
        else:
            value = state.given.result if state.given.state is WaitState.DONE else b"nothing"
            if state.told and value not in state.told:
                yield Move("the attempt passes", Broken("two attempts are told different things"))
                return
            passed = idle._replace(told=state.told | {value}, events=state.events | {("succeeded", sequence)})
            yield Move("the attempt passes, and succeeds", passed)
            if state.lost < 1:
                gone = idle._replace(told=state.told | {value}, lost=1, events=state.events | {("lost", sequence)})
                yield Move("the attempt passes, and its lease is lost", gone, fair=False)
        if state.lost < 1:
            gone = idle._replace(lost=state.lost + 1, events=state.events | {("lost", sequence)})
            yield Move("the lease is lost", gone, fair=False)

    # -- readiness and launch

    def _event(self, state: Answering, event: Event) -> Iterator[Move]:
        kind, sequence = event
        left = state._replace(events=state.events - {event})
        if kind == "command":
            for again in (left, state):
                yield Move(f"readiness hears what attempt {sequence} asks", self._ask(again), fair=again is left)
        elif kind == "asked":
            for again in (left, state):
                told = self.without("root-goes-on") or not state.over
                count = state.logged + (told and (not state.logged or self.without("logged-once")))
                after = again._replace(logged=count)
                broken = Broken("the log of a root that is over grows") if state.over and count > state.logged else after
                yield Move("launch hears what the child asks", broken, fair=again is left)
        elif kind == "close":
            view = self._view(state)
            if not self.without("closing-ends"):
                domain.close(view)
            yield Move("readiness hears that the run is over", self._saved(left, view)._replace(closed=True))
        else:
            yield from self._ended(state, left, kind, sequence)

    def _ask(self, state: Answering) -> Answering:
        if state.closed or (state.wait is not None and not self.without("slot-once")):
            return state
        new = begin_wait(Asked(KEY, SLOT, Kind.INPUT, until_ms=DUE, payload=b"?"), 0)
        return state._replace(wait=new, events=state.events | {("asked", 0)})

    def _ended(self, state: Answering, left: Answering, kind: str, sequence: int) -> Iterator[Move]:
        if state.closed:
            yield Move(f"readiness hears too late that attempt {sequence} {kind}", left)
            return
        ends = {"yielded": End.YIELDED, "succeeded": End.SUCCEEDED, "lost": End.LOST}
        fact = AttemptFact(KEY, sequence, ends[kind], b"", LOST, {}, awaits=(SLOT,) if kind == "yielded" else ())
        view = self._view(state)
        if domain.too_early(view, fact) and not self.without("too-early"):
            return
        if self.without("too-early") and kind == "yielded" and state.wait is None:
            fact = replace(fact, awaits=())
        if self.without("yield-waits") and kind == "yielded":
            view.ready(state.step.step())
        else:
            domain.finish_attempt(view, fact, {}, state.moment)
            domain.retry_due(view, KEY, 2**62) if view.steps[KEY].wait_reason == "retry_backoff" else None
        yield Move(f"readiness hears that attempt {sequence} {kind}", self._saved(left, view))

    def _view(self, state: Answering) -> RunView:
        waits = {(KEY, SLOT): state.wait} if state.wait is not None else {}
        return RunView(CHILD, GRAPH, {KEY: state.step.step()}, waits=waits)

    def _saved(self, state: Answering, view: RunView) -> Answering:
        """The rows after a transaction, and the step's next ticket with what was answered."""
        step = view.steps[KEY]
        wait = view.ended.get((KEY, SLOT), state.wait)
        after = state._replace(step=row_of(step), wait=wait)
        if KEY in view.touched and step.state is StepState.READY:
            ended = wait is not None and wait.state is not WaitState.OPEN and not self.without("given")
            return after._replace(ticket=(READY, step.ticket_sequence), given=wait if ended else None)
        if step.state in TERMINAL and state.ticket[0] == READY:
            return after._replace(ticket=(IDLE, state.ticket[1]))
        return after

    # -- people

    def _people(self, state: Answering) -> Iterator[Move]:
        if not state.over:
            yield Move("people cancel the tree", state._replace(over=True, events=state.events | {("close", 0)}), fair=False)
        if state.wait is None:
            return
        for said in ANSWERS:
            if self.without("run-lock") and not state.read and self._takes(state, said):
                yield Move(f"{said!r} is judged", state._replace(read=said), fair=False)
            yield from self._answered(state, said)
        if state.read:
            yield from self._answered(state._replace(read=b""), state.read, judged=True)

    def _facts(self, state: Answering) -> RunFacts:
        open_here = ACTIVE if not state.closed or self.without("closed-run") else CLOSED
        return RunFacts(CHILD, "t", "p", b"", "", 1, 0, 0, 1, b"", "", open_here, 1, root_run_id=ROOT)

    def _takes(self, state: Answering, said: bytes) -> bool:
        wait = state.wait
        assert wait is not None
        return wait.state is WaitState.OPEN and not wait.overdue(state.moment) and not state.closed

    def _answered(self, state: Answering, said: bytes, *, judged: bool = False) -> Iterator[Move]:
        wait = state.wait
        assert wait is not None
        if judged or self.without("first-stands"):
            wait = replace(wait, state=WaitState.OPEN)
        if self.without("too-late"):
            wait = replace(wait, due_ms=0)
        view = self._view(state)
        ask = AnswerAsk("t", "p", CHILD, KEY, SLOT, said, "rita", lambda _: None)
        outcome = _judge(ask, {CHILD: self._facts(state)}, {CHILD: {(KEY, SLOT): wait}}, {CHILD: view}, state.moment)
        if isinstance(outcome, Refusal) or outcome.replayed:
            return
        if state.taken:
            yield Move(f"people answer {said!r}", Broken("two answers are taken"), fair=False)
        elif state.closed:
            yield Move(f"people answer {said!r}", Broken("an answer is taken of a run that is over"), fair=False)
        elif state.moment >= DUE:
            yield Move(f"people answer {said!r}", Broken("an answer is taken after the question's time"), fair=False)
        else:
            if self.without("answer-wakes"):
                view.steps[KEY] = state.step.step()
                view.touched.clear()
            yield Move(f"people answer {said!r}", self._saved(state, view)._replace(taken=(said,)), fair=False)

    # -- rules

    def broken(self, state: Answering) -> str:
        """Rules of states."""
        if state.step.sequence > MOST_TICKETS:
            return "a step asks again and again"
        if state.logged > 1:
            return "a question is told to the root twice"
        if state.taken and (state.wait is None or state.wait.result != state.taken[0]):
            return "an answer that was taken is not the question's"
        if state.closed and state.step.state not in TERMINAL:
            return "something waits in a run that is over"
        return ""

    def goals(self) -> Mapping[str, Callable[[Answering], bool]]:
        """Nothing is left to do but for people: the step is over, or its question is open and in the root's log."""

        def rests(state: Answering) -> bool:
            if state.step.state in TERMINAL:
                return not state.over or state.closed
            open_here = state.wait is not None and state.wait.state is WaitState.OPEN
            return (
                open_here and state.step.state is StepState.WAITING and (state.logged == 1 or state.over) and state.moment < DUE
            )

        return {"the step is over, or people are asked": rests}
