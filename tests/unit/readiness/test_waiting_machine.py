"""Any sequence of commands, yields, events, answers, timers and clock jumps: each slot ends once and wakes its step once.

The rules of `domain/steps.py` and `domain/waits.py` under a model that keeps what every step may know. No I/O: the rows' rules
(one lock, once per slot) are the tests' in `tests/rpc/waits`.
"""

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.readiness.domain.graph import Contract, Join, Node, Retry, build_graph
from services.readiness.domain.steps import (
    AttemptFact,
    End,
    FailureFacts,
    RunView,
    StepState,
    answered,
    begin,
    close,
    finish_attempt,
    needs_ticket,
    retry_due,
    too_early,
)
from services.readiness.domain.waits import (
    PROVIDER_CAPACITY,
    WAIT_REASONS,
    Asked,
    Kind,
    Told,
    Wait,
    WaitState,
    answer,
    begin_wait,
    end_told,
)

NODE = Node("s", (), Join.ALL, Retry(3, 10, 2.0, 100, frozenset({"transient"})), Contract("h", 0, 0, (), (), False, (), 0), "")
SLOTS = st.sampled_from(["a", "b", "c", "d", "e"])


class Waiting(RuleBasedStateMachine):
    """One step; `rows` are the waits as committed, `ends` how each ended first."""

    def __init__(self) -> None:
        super().__init__()
        graph = build_graph([NODE], "")
        self.view = RunView(UUID(int=1), graph, begin(graph))
        self.rows: dict[str, Wait] = {}
        self.ends: dict[str, Wait] = {}
        self.now = 1_000
        self.woken: dict[int, int] = {}
        """Version at which each ticket was made."""

    def commit(self) -> None:
        """What the app does after each delivery."""
        for (_, slot), wait in self.view.ended.items():
            assert slot not in self.ends, "a wait ended twice"
            assert wait.state != WaitState.OPEN
            self.ends[slot] = self.rows[slot] = wait
        step = self.view.steps["s"]
        if step.state == StepState.READY and "s" in self.view.touched and needs_ticket(self.view, step):
            assert self.woken.setdefault(step.ticket_sequence, step.version) == step.version, "two tickets of one number"
        self.view.ended.clear()
        self.view.touched.clear()
        self.view.noted.clear()
        self.view.waits.clear()

    def load(self, *slots: str) -> None:
        self.view.waits.update({("s", slot): self.rows[slot] for slot in slots if slot in self.rows})

    @rule(
        slot=SLOTS,
        kind=st.sampled_from([Kind.TIMER, Kind.EVENT, Kind.INPUT, Kind.CAPACITY]),
        length=st.integers(-1, 50),
        bad=st.booleans(),
    )
    def ask(self, slot: str, kind: Kind, length: int, bad: bool) -> None:
        """A command, also a repeat with other words."""
        length = max(length, 0) if kind == Kind.TIMER else length
        asked = Asked("s", slot, kind, "e", for_ms=length, problem="unreadable" if bad and length == 7 else "")
        new = begin_wait(asked, self.now)
        if slot not in self.rows:
            self.rows[slot] = new
            if new.state != WaitState.OPEN:
                self.ends[slot] = new

    @rule(slots=st.lists(SLOTS, max_size=3, unique=True), late=st.integers(-1, 1))
    def yielded(self, slots: list[str], late: int) -> None:
        """An attempt returns its lease, perhaps before what it asked came, or as a repeat."""
        step = self.view.steps["s"]
        fact = AttemptFact("s", step.ticket_sequence + late, End.YIELDED, b"", None, {}, awaits=tuple(slots))
        self.load(*slots)
        if too_early(self.view, fact):
            assert late == 1 or any(slot not in self.rows for slot in slots)
            self.view.waits.clear()
            return
        before = step
        finish_attempt(self.view, fact, {}, self.now)
        after = self.view.steps["s"]
        if late or before.state != StepState.READY:
            assert after == before, "a fact about another ticket changes nothing"
        elif after.state == StepState.WAITING:
            assert slots, "it waits for something"
            assert all(self.view.waits["s", slot].state == WaitState.OPEN for slot in slots)
        else:
            assert after.ticket_sequence == before.ticket_sequence + 1
            waits = [self.view.waits["s", slot] for slot in slots]
            wanted = [wait.slot for wait in waits if wait.kind == Kind.CAPACITY]
            if wanted and all(wait.state == WaitState.OPEN for wait in waits):
                assert (after.wait_reason, list(after.pending)) == (PROVIDER_CAPACITY, [min(wanted)])
                found = self.view.capacity_of(after)
                assert found is not None
                assert found.slot == min(wanted)
            else:
                assert (after.wait_reason, dict(after.pending)) == ("", {}), "it waits for nothing"
        self.commit()

    @rule(slot=SLOTS)
    def wait_for_capacity(self, slot: str) -> None:
        """Asked and waited for at once, as attempts do."""
        self.ask(slot, Kind.CAPACITY, -1, False)
        self.yielded([slot], 0)

    @rule(slot=SLOTS, late=st.booleans())
    def lease(self, slot: str, late: bool) -> None:
        """The scheduler leased a step that waited for capacity; also told again, or after its attempt ended."""
        wait, step = self.rows.get(slot), self.view.steps["s"]
        if wait is None or wait.state != WaitState.OPEN or wait.kind != Kind.CAPACITY:
            return
        answered(self.view, end_told(wait, Told("s", slot, Kind.CAPACITY, False, b"", "scheduler", late), self.now))
        after = self.view.steps["s"]
        assert self.view.ended["s", slot].state == (WaitState.TIMED_OUT if late else WaitState.DONE)
        assert after.ticket_sequence == step.ticket_sequence, "it goes on under the ticket that it has"
        if slot in step.pending:
            assert (after.state, after.wait_reason, dict(after.pending)) == (StepState.READY, "", {})
            assert not needs_ticket(self.view, after)
        else:
            assert after == step
        self.commit()

    @rule(slot=SLOTS)
    def tell(self, slot: str) -> None:
        """An event or an answer, judged as the app judges it."""
        wait = self.rows.get(slot)
        step = self.view.steps["s"]
        if wait is None or wait.state != WaitState.OPEN or wait.overdue(self.now) or wait.kind in (Kind.TIMER, Kind.CAPACITY):
            return
        answered(self.view, answer(wait, b"v", "who", self.now))
        after = self.view.steps["s"]
        waited = step.state == StepState.WAITING and slot in step.pending
        assert (
            (after.state == StepState.READY and after.ticket_sequence == step.ticket_sequence + 1) if waited else after == step
        )
        self.commit()

    @rule(ms=st.integers(0, 60))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    @rule(ms=st.sampled_from([-7_200_000, 7_200_000]))
    def jump(self, ms: int) -> None:
        self.now = max(1, self.now + ms)

    @rule()
    def tick(self) -> None:
        """The timer, as a process that saw the rows."""
        step = self.view.steps["s"]
        self.load(*step.pending)
        retry_due(self.view, "s", self.now)
        after = self.view.steps["s"]
        if step.state == StepState.WAITING and 0 < step.retry_at_ms <= self.now:
            assert after.state == StepState.READY
            assert any(self.view.waits["s", slot].state != WaitState.OPEN for slot in step.pending), "woken by an end"
        else:
            assert after == step
        self.commit()

    @precondition(lambda self: self.view.steps["s"].state == StepState.WAITING)
    @rule(really=st.integers(0, 9))
    def cancel(self, really: int) -> None:
        if really == 0:
            close(self.view)
            assert self.view.steps["s"].state == StepState.CANCELLED
            self.commit()

    @invariant()
    def what_waits_can_wake(self) -> None:
        """No step waits for a slot that has ended, and the time at which it wakes by itself is that of its rows."""
        step = self.view.steps["s"]
        if step.state != StepState.WAITING:
            return
        assert step.wait_reason in WAIT_REASONS
        waits = [self.rows[slot] for slot in step.pending]
        assert all(wait.state == WaitState.OPEN for wait in waits)
        assert step.retry_at_ms == min((wait.due_ms for wait in waits if wait.due_ms), default=0)
        assert all(wait.due_ms for wait in waits if wait.kind == Kind.TIMER), "a timer always comes"

    @invariant()
    def an_end_is_final(self) -> None:
        assert all(self.rows[slot] == end for slot, end in self.ends.items())


Waiting.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWaiting = pytest.mark.requirement("step.wait")(Waiting.TestCase)


@pytest.mark.requirement("step.wait")
@pytest.mark.parametrize("end", [End.SUCCEEDED, End.FAILED, End.LOST])
def test_an_end_that_overtakes_how_a_wait_for_capacity_ended_leaves_nothing_to_be_told(end: End) -> None:
    machine = Waiting()
    machine.wait_for_capacity("a")
    step = machine.view.steps["s"]
    failure = FailureFacts("transient", "once", "Once") if end == End.FAILED else None
    finish_attempt(machine.view, AttemptFact("s", step.ticket_sequence, end, b"", failure, {}), {}, machine.now)
    before = machine.view.steps["s"]
    assert (before.wait_reason in ("", "retry_backoff"), dict(before.pending)) == (True, {})
    machine.view.touched.clear()
    answered(machine.view, end_told(machine.rows["a"], Told("s", "a", Kind.CAPACITY, False, b"", "scheduler"), machine.now))
    assert machine.view.steps["s"] == before
    assert not machine.view.touched
