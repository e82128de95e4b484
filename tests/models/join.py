"""Join readiness: a run's graph, every order and repetition of its facts, its closing, and the tickets at the scheduler.

The decisions are the product's own (`services/readiness/domain/steps.py`); around them, as the code has it: one transaction
behind the run's lock (`services/readiness/app/apply_facts.py`), and the ticket's row (`put_tickets`, `drop_ready`, `note_revoked`
of `services/scheduler/store/sql/tickets.sql`). What is revoked here is what a closing leaves; joins that stop their losers are in
`policy_join.py`. A fact that was sent once may arrive again at any later moment, a ticket may be overtaken by its withdrawal.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from services.readiness.domain import steps as domain
from services.readiness.domain.graph import Contract, Graph, Join, Need, Node, Retry, When, build_graph
from services.readiness.domain.joins import matches
from services.readiness.domain.state import JOIN_DECIDED
from services.readiness.domain.steps import TERMINAL, AttemptFact, EffectFact, End, FailureFacts, RunView, Step, StepState
from tests.models.explorer import Broken, Model, Move, add

RUN = UUID(int=1)
WAITS, HELD, OVER, DROPPED = "waits", "held", "over", "dropped"
FAILED = FailureFacts("attempt", "no", "NO")


class Row(NamedTuple):
    """The scheduler's row of a step. `withdrawn`: the newest ticket that was taken back."""

    state: str
    sequence: int
    withdrawn: int = 0


class Held(NamedTuple):
    """A step as the state keeps it: what the domain's decisions look at. `key` as in `Step`."""

    key: str
    state: StepState
    ticket_sequence: int = 0
    attempts: int = 0
    wait_reason: str = ""
    pending: tuple[tuple[str, int], ...] = ()
    stopped: bool = False

    def step(self) -> Step:
        """As the domain has it."""
        waiting = dict(self.pending)
        why = FailureFacts("policy", "", JOIN_DECIDED) if self.stopped else None
        return Step(
            self.key,
            self.state,
            self.ticket_sequence,
            self.attempts,
            wait_reason=self.wait_reason,
            failure=why,
            pending=waiting,
        )


def held_of(step: Step) -> Held:
    """The other way."""
    pending = tuple(sorted(step.pending.items()))
    return Held(step.key, step.state, step.ticket_sequence, step.attempts, step.wait_reason, pending, step.stopped)


class Joins(NamedTuple):
    """Everything. `doubts`: tickets whose attempt left a doubtful effect; `known`: those whose outcome readiness was told;
    `read`: a process that has read the steps and not saved yet, which only mutants have."""

    steps: tuple[Held, ...]
    rows: tuple[Row, ...]
    net: frozenset[tuple[Any, ...]]
    closed: bool
    closing: bool
    finished: int
    doubts: frozenset[tuple[str, int]]
    known: frozenset[tuple[str, int]]
    read: tuple[tuple[Held, ...], tuple[Any, ...]] | None


def graph_of(*nodes: tuple[str, Join, tuple[Need, ...]]) -> Graph:
    """A graph of steps that are retried once."""
    contract = Contract("h@1", 0, 0, (), (), False, (), 1)
    retry = Retry(2, 0, 1.0, 0, frozenset({"transient"}))
    return build_graph([Node(key, needs, join, retry, contract, "") for key, join, needs in nodes], nodes[-1][0])


def need(step: str, when: When = When.SUCCESS) -> Need:
    """One edge."""
    return Need(step, when)


DIAMOND = graph_of(
    ("a", Join.ALL, ()),
    ("b", Join.ALL, ()),
    ("all", Join.ALL, (need("a"), need("b"))),
    ("any", Join.ANY, (need("a"), need("b"))),
)
MENDED = graph_of(
    ("a", Join.ALL, ()),
    ("b", Join.ALL, ()),
    ("mend", Join.ALL, (need("a", When.FAILURE),)),
    ("last", Join.ALL, (need("b", When.ALWAYS), need("mend", When.ALWAYS))),
)


class JoinModel(Model[Joins]):
    """Two roots and what joins them; in the wide search also a step that mends a failure."""

    name = "join"
    about = "edges satisfied once, facts repeated and reordered, one StepReady per ticket, closing and withdrawal"
    mutants: ClassVar[Mapping[str, str]] = {
        "sequence-not-compared": "a fact counts only for the ticket that it names",
        "terminal-moves": "a fact about a step that is terminal changes nothing",
        "no-run-lock": "two facts of one run are decided one after the other",
        "any-joins-again": "a step is readied by its edges only while it is pending",
        "all-is-any": "a step is ready once every need holds",
        "closing-forgotten": "nothing of a closed run is readied",
        "late-ticket": "a ticket that its withdrawal overtook is not stored",
        "withdrawal-not-noted": "a withdrawal that overtakes its ticket leaves its sequence",
        "uncertain-retried": "an attempt that left a doubtful effect is not retried before it is resolved",
        "resolution-forgotten": "an outcome that came before the end of its attempt is remembered",
    }

    costly = frozenset({"resolution-forgotten"})

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.graph = MENDED if wide else DIAMOND
        self.keys = self.graph.order

    def initial(self) -> Joins:
        """The run was just launched: its roots are ready."""
        begun = domain.begin(self.graph)
        roots = frozenset(("ready", key, 1) for key in self.keys if begun[key].state is StepState.READY)
        rows = (Row(OVER, 0),) * len(self.keys)
        return Joins(
            tuple(held_of(step) for step in begun.values()), rows, roots, False, False, 0, frozenset(), frozenset(), None
        )

    def moves(self, state: Joins) -> Iterator[Move]:
        """The scheduler, facts, the closing."""
        for place, row in enumerate(state.rows):
            yield from self._scheduler(state, place, row)
        if not state.closing:
            after = state._replace(closing=True, net=add(state.net, ("close",)))
            yield Move("launch closes the run", after, False)
        for message in state.net:
            if message[0] not in ("ready", "revoke"):
                yield from self._fact(state, message)
        if state.read is not None:
            steps, fact = state.read
            yield Move(f"the other process saves {fact}", self._decide(state._replace(read=None), steps, fact))

    # ------------------------------------------------------------------------------------------------ the scheduler

    def _scheduler(self, state: Joins, place: int, row: Row) -> Iterator[Move]:
        key = self.keys[place]
        for message in state.net:
            if message[0] == "ready" and message[1] == key:
                yield from self._ticket(state, place, row, int(message[2]))
            if message[0] == "revoke" and message[1] == key:
                yield from self._revoke(state, place, row, int(message[2]))
        if row.state == WAITS:
            taken = row.withdrawn >= row.sequence
            granted = (
                Broken("a ticket that was withdrawn is granted") if taken else self._row(state, place, row._replace(state=HELD))
            )
            yield Move(f"{key} is granted", granted)
        if row.state == HELD:
            for end in (End.SUCCEEDED, End.FAILED):
                yield Move(f"{key} ends: {end.name}", self._end(state, place, row, end))
            if row.sequence == 1 and place == 0:
                yield Move(f"{key} yields", self._end(state, place, row, End.YIELDED), False)
            if not state.doubts and place < 2:
                yield Move(f"{key} ends in doubt", self._end(state, place, row, End.UNCERTAIN), False)

    def _row(self, state: Joins, place: int, row: Row, *messages: tuple[Any, ...]) -> Joins:
        rows = (*state.rows[:place], row, *state.rows[place + 1 :])
        return state._replace(rows=rows, net=add(state.net, *messages))

    def _end(self, state: Joins, place: int, row: Row, end: End) -> Joins:
        key = self.keys[place]
        after = self._row(state, place, row._replace(state=OVER), ("ended", key, row.sequence, end))
        if end is not End.UNCERTAIN:
            return after
        doubts = state.doubts | {(key, row.sequence)}
        return after._replace(doubts=doubts, net=add(after.net, ("resolved", key, row.sequence)))

    def _ticket(self, state: Joins, place: int, row: Row, sequence: int) -> Iterator[Move]:
        again = self.without("late-ticket") and row.state == DROPPED and sequence == row.sequence
        if (sequence > row.sequence or again) and row.state != HELD:
            stored = row._replace(state=WAITS, sequence=sequence)
            yield Move(f"ticket {sequence} of {self.keys[place]} is stored", self._row(state, place, stored))

    def _revoke(self, state: Joins, place: int, row: Row, sequence: int) -> Iterator[Move]:
        key = self.keys[place]
        if row.withdrawn >= sequence:
            return
        told = ("ended", key, sequence, End.CANCELLED)
        label = f"ticket {sequence} of {key} is withdrawn"
        row = row._replace(withdrawn=sequence)
        if row.state == HELD and row.sequence <= sequence:
            yield Move(f"{label}, its attempt stopped", self._end(state, place, row, End.CANCELLED))
        elif row.state == WAITS and row.sequence <= sequence:
            dropped = row._replace(state=DROPPED, sequence=max(sequence, row.sequence))
            yield Move(label, self._row(state, place, dropped, told))
        elif row.state in (OVER, DROPPED) and row.sequence < sequence:
            noted = row if self.without("withdrawal-not-noted") else row._replace(state=DROPPED, sequence=sequence)
            yield Move(f"{label} before it came", self._row(state, place, noted, told))

    # ------------------------------------------------------------------------------------------------ readiness

    def _fact(self, state: Joins, fact: tuple[Any, ...]) -> Iterator[Move]:
        label = " ".join(str(getattr(part, "name", part)) for part in fact)
        if self.without("no-run-lock") and state.read is None:
            yield Move(f"another process reads for: {label}", state._replace(read=(state.steps, fact)))
        after = self._decide(state, state.steps, fact)
        if after != state:
            again = fact[0] == "resolved" and fact[1:] in state.known  # nobody promises a second delivery
            yield Move(f"readiness applies: {label}", after, not again)

    def _decide(self, state: Joins, read: tuple[Held, ...], fact: tuple[Any, ...]) -> Joins | Broken:
        """One transaction: what the product decides, and the events that follow from it."""
        view = RunView(RUN, self.graph, {held.key: held.step() for held in read})
        known = state.known
        if fact[0] == "resolved":
            known = known | {(str(fact[1]), int(fact[2]))}
        passive = (state.closed and not self.without("closing-forgotten")) or (
            view.finished and not self.without("terminal-moves")
        )
        if passive:
            return state._replace(known=known)
        self._apply(state, view, fact)
        saved = tuple(held_of(view.touched[held.key]) if held.key in view.touched else held for held in state.steps)
        net = set(state.net)
        for place, key in enumerate(self.keys):
            if key in view.touched and (wrong := self._wrong(state, place, view.touched[key], known)):
                return Broken(wrong)
            if key in view.touched and saved[place].state is StepState.READY:
                net.add(("ready", key, saved[place].ticket_sequence))
        net |= {("revoke", key, sequence) for key, sequence in view.revoked.items()}
        if fact[0] == "close":
            net |= {("revoke", step.key, step.ticket_sequence) for step in read if step.state in domain.TICKETED}
        was = all(step.state in TERMINAL for step in state.steps)
        finished = state.finished + (all(step.state in TERMINAL for step in saved) and not was)
        closed = state.closed or fact[0] == "close"
        return state._replace(steps=saved, net=frozenset(net), closed=closed, finished=finished, known=known)

    def _wrong(self, state: Joins, place: int, step: Step, known: frozenset[tuple[str, int]]) -> str:
        """The rule that a step's change breaks."""
        before, row, ticket = state.steps[place], state.rows[place], step.ticket_sequence - 1
        if before.state in TERMINAL and step.state is not before.state:
            return f"a step that was {before.state.name.lower()} moves again"
        if step.state is not StepState.READY:
            return ""
        if state.closed:
            return "a step of a closed run is readied"
        if step.ticket_sequence <= before.ticket_sequence:
            return "two StepReady for one ticket"
        if ticket and (row.sequence < ticket or (row.sequence == ticket and row.state in (WAITS, HELD))):
            return "a step is readied again although its attempt did not end"
        if (step.key, ticket) in state.doubts and (step.key, ticket) not in known:
            return "a step is readied again while an effect of it is in doubt"
        return ""

    def _apply(self, state: Joins, view: RunView, fact: tuple[Any, ...]) -> None:
        match fact:
            case ("close",):
                if not self.without("closing-forgotten"):
                    domain.close(view)
            case ("ended", str(key), int(sequence), End() as end):
                self._ended(state, view, key, sequence, end)
            case ("resolved", str(key), int(sequence)):
                domain.resolve_effect(view, EffectFact(key, f"slot {sequence}", "observed", 2))
        for step in list(view.steps.values()):  # backoffs pass at once
            domain.retry_due(view, step.key, 2**62)
        self._weaken(view, fact)

    def _ended(self, state: Joins, view: RunView, key: str, sequence: int, end: End) -> None:
        step = view.steps[key]
        if self.without("sequence-not-compared"):
            sequence = step.ticket_sequence
        if self.without("terminal-moves") and step.state in TERMINAL:
            view.put(replace(step, state=StepState.FAILED if end is End.FAILED else StepState.SUCCEEDED))
        if self.without("uncertain-retried") and end is End.UNCERTAIN:
            end = End.YIELDED
        failure = FailureFacts("transient", "again", "") if end is End.FAILED else FAILED
        remembered = (key, sequence) in state.known and not self.without("resolution-forgotten")
        slot = f"slot {sequence}"
        doubts = {slot: 1} if end is End.UNCERTAIN else {}
        fact = AttemptFact(key, sequence, end, b"", failure, doubts)
        domain.finish_attempt(view, fact, {slot: 2} if remembered else {}, 0)

    def _weaken(self, view: RunView, fact: tuple[Any, ...]) -> None:
        """Mutants of the joins."""
        if fact[0] != "ended":
            return
        for key in view.graph.successors[str(fact[1])]:
            step = view.steps[key]
            if self.without("any-joins-again") and view.graph.nodes[key].join is Join.ANY and step.state in domain.TICKETED:
                view.ready(step)
            if self.without("all-is-any") and step.state is StepState.PENDING:
                view.ready(step)

    # ------------------------------------------------------------------------------------------------ rules

    def broken(self, state: Joins) -> str:
        """No step before what it needs, one end of the graph."""
        steps = {held.key: held.step() for held in state.steps}
        if state.finished > 1:
            return "the graph finishes twice"
        for key, step in steps.items():
            node = self.graph.nodes[key]
            if node.policy is not None:
                continue
            held = [matches(edge, steps[edge.step]) for edge in node.needs]
            enough = (any if node.join is Join.ANY else all)(held)
            if step.state in (StepState.READY, StepState.SUCCEEDED, StepState.FAILED) and held and not enough:
                return f"{key} is ready before what it needs"
        return ""

    def canonical(self, state: Joins) -> Joins:
        """Facts that can change nothing more are forgotten."""
        if self.mutant not in ("", "resolution-forgotten"):
            return state
        steps = dict(zip(self.keys, state.steps, strict=True))
        rows = dict(zip(self.keys, state.rows, strict=True))
        net = set()
        for message in state.net:
            key = str(message[1]) if len(message) > 1 else ""
            late = message[0] == "close" and state.closed
            if message[0] == "ended":
                late = steps[key].state not in domain.TICKETED or steps[key].ticket_sequence > int(message[2])
            elif message[0] == "resolved":
                late = (key, message[2]) in state.known and steps[key].ticket_sequence > int(message[2])
            elif message[0] == "ready":
                late = int(message[2]) <= rows[key].sequence
            elif message[0] == "revoke":
                late = rows[key].withdrawn >= int(message[2])
            if not late:
                net.add(message)
        return state._replace(net=frozenset(net))

    def goals(self) -> Mapping[str, Callable[[Joins], bool]]:
        """Nothing hangs, and a closed run leaves no ticket."""
        return {
            "the graph is finished": lambda state: state.finished > 0 or state.closed,
            "no ticket waits or is held": lambda state: not any(row.state in (WAITS, HELD) for row in state.rows),
        }
