"""Fence and cancel: one run with a live attempt, its gate at gateway, checkpoint and scheduler, and a scope above it.

As the code has it: `libs/fence/sql/fence.sql` (lock_gates, judge, merge_gates, lock_scopes_to_raise), `libs/fence/cold.py`,
`services/launch/domain/closing.py` (one outcome, receipts by epoch, terminal once quiesced), `pausing.py`, `revoking.py` (the next
epoch, the same mode, less; every intent here is by what is taken). An intent asks, takes the
gate's lock, is judged and committed; a raise, once sent, may arrive again at any later moment.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from tests.models.explorer import Broken, Model, Move, add, swap

OPEN, DRAINING, CLOSED = 0, 1, 2
RUNNING, PAUSED, CLOSING, TERMINAL = "running", "paused", "closing", "terminal"
GATEWAY, SCHEDULER, CHECKPOINT = 0, 1, 2
POINTS = ("gateway", "scheduler", "checkpoint")
Value = tuple[int, int]


class Gate(NamedTuple):
    """A point's gate. `known`: read from launch once; before that it admits nothing."""

    value: Value = (0, OPEN)
    known: bool = False
    less: bool = False
    """Its grant lacks what was taken; follows the value."""


class Run(NamedTuple):
    """Launch's row; points as sets of numbers."""

    phase: str = RUNNING
    epoch: int = 1
    outcome: str = ""
    enforced: frozenset[int] = frozenset()
    quiesced: frozenset[int] = frozenset()
    less: bool = False

    @property
    def value(self) -> Value:
        """What is raised for it."""
        return self.epoch, {RUNNING: OPEN, PAUSED: DRAINING}.get(self.phase, CLOSED)


class Asking(NamedTuple):
    """An intent under way at the gateway: its token's epoch, whether it holds the lock, and how it was judged."""

    epoch: int
    locked: bool
    passes: bool


class Fences(NamedTuple):
    """Everything. `floor`: the greatest value that was confirmed to somebody; `scope`: 0 open, 1 killed at launch, 2 confirmed."""

    run: Run
    gates: tuple[Gate, ...]
    stopped: tuple[bool, ...]
    scope: int
    tokens: frozenset[int]
    lease: str
    unresolved: bool
    asking: Asking | None
    cold: tuple[Value, bool] | None
    net: frozenset[tuple[Any, ...]]
    floor: Value
    users: int
    taken: bool = False
    """That something was taken was confirmed to somebody."""


class FenceModel(Model[Fences]):
    """Gateway and scheduler; one lease. The wide search crosses scopes and people."""

    name = "fence"
    about = "gate and scope fences, admission, raise, receipts, ENFORCED, closing"
    mutants: ClassVar[Mapping[str, str]] = {
        "no-gate-lock": "an intent is judged and committed behind the gate's lock",
        "old-snapshot": "the judging statement's snapshot is younger than the lock",
        "no-scope-lock": "a scope raise waits for the admissions under way",
        "ack-before-raise": "a point acknowledges only what it has committed",
        "skips-unknown-run": "a raise writes the gate also where the run is unknown",
        "cold-overwrites": "a cold read merges by maximum",
        "receipts-of-any-epoch": "a receipt counts for its own epoch only",
        "enforced-by-one": "ENFORCED needs a receipt of every point",
        "epoch-not-compared": "an intent's epoch equals the gate's",
        "success-under-closed": "a success needs a gate that is not closed",
        "outcome-not-compared": "an outcome is decided once",
        "terminal-before-quiesced": "terminal needs every point quiesced",
        "resume-in-the-same-epoch": "a resume opens under a new epoch",
        "revoked-in-the-same-epoch": "a revocation raises the epoch",
        "grant-left-behind": "the grant goes with the greater value",
        "resume-widens": "a resume gives nothing back",
    }

    costly = frozenset({"skips-unknown-run", "resume-widens", "resume-in-the-same-epoch", "grant-left-behind"})

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.points = range(2)
        self.users = 1

    def initial(self) -> Fences:
        """A run that was just leased: the scheduler has read its gate, the others know nothing."""
        gates = tuple(Gate((1, OPEN), True) if point == SCHEDULER else Gate() for point in self.points)
        stopped = (False,) * len(self.points)
        return Fences(Run(), gates, stopped, 0, frozenset({1}), "live", False, None, None, frozenset(), (0, OPEN), 0)

    def moves(self, state: Fences) -> Iterator[Move]:
        """Launch, messages, the points, the attempt."""
        yield from self._people(state)
        yield from self._messages(state)
        yield from self._cold(state)
        yield from self._intent(state)
        yield from self._lease(state)
        yield from self._scope(state)

    # ------------------------------------------------------------------------------------------------ launch

    def _issue(self, state: Fences, run: Run) -> Fences:
        """Launch commits a value and its raise; receipts begin anew."""
        run = run._replace(enforced=frozenset(), quiesced=frozenset())
        return state._replace(run=run, net=add(state.net, ("raise", *run.value, run.less)))

    def _people(self, state: Fences) -> Iterator[Move]:
        run = state.run
        if run.phase == RUNNING and state.users < self.users and (self.wide or not state.scope):
            asked = state._replace(users=state.users + 1)
            yield Move("launch pauses", self._issue(asked, run._replace(phase=PAUSED)), False)
        paused = run.phase == PAUSED and (self.wide or self.without("resume-widens"))  # else too many states for every test run
        free = paused or (run.phase == RUNNING and state.users < self.users)
        if free and not run.less and (self.wide or not state.scope):
            asked = state._replace(users=max(state.users, 1))
            epoch = run.epoch + (not self.without("revoked-in-the-same-epoch"))
            yield Move("launch takes a capability", self._issue(asked, run._replace(epoch=epoch, less=True)), False)
        if run.phase == PAUSED:
            epoch = run.epoch + (not self.without("resume-in-the-same-epoch"))
            less = run.less and not self.without("resume-widens")
            after = self._issue(state, run._replace(phase=RUNNING, epoch=epoch, less=less))
            yield Move("launch resumes", after._replace(floor=(state.floor[0], OPEN)), False)
        if run.phase in (RUNNING, PAUSED) or self._again(run, "cancelled"):
            yield Move("launch accepts a cancel", self._close(state, "cancelled"), False)
        if state.lease in ("succeeded", "failed") and (run.phase in (RUNNING, PAUSED) or self._again(run, state.lease)):
            yield Move(f"launch hears that the graph {state.lease}", self._close(state, state.lease))

    def _again(self, run: Run, outcome: str) -> bool:
        return self.without("outcome-not-compared") and run.phase == CLOSING and run.outcome != outcome

    def _close(self, state: Fences, outcome: str) -> Fences | Broken:
        run = state.run
        if run.phase == CLOSING:
            return Broken("an outcome that was decided changes")
        return self._issue(state, run._replace(phase=CLOSING, epoch=run.epoch + 1, outcome=outcome))

    def _received(self, state: Fences, point: int, value: Value, quiet: bool) -> Fences:
        run = state.run
        if value[0] != run.epoch and not self.without("receipts-of-any-epoch"):
            return state
        if value[1] != run.value[1] and not self.without("receipts-of-any-epoch"):
            return state
        if run.phase == TERMINAL:
            return state
        run = run._replace(enforced=run.enforced | {point})
        quiet = quiet or self.without("terminal-before-quiesced")
        if quiet:
            run = run._replace(quiesced=run.quiesced | {point})
        enough = 1 if self.without("enforced-by-one") else len(self.points)
        floor = state.floor
        if len(run.enforced) >= enough:
            floor = max(floor, run.value)
            state = state._replace(taken=state.taken or run.less)
            if run.phase == CLOSING and len(run.quiesced) >= len(self.points):
                run = run._replace(phase=TERMINAL)
        return state._replace(run=run, floor=floor)

    # ------------------------------------------------------------------------------------------------ raises

    def _quiet(self, state: Fences, point: int) -> bool:
        if state.gates[point].value[1] != CLOSED:
            return False
        return not (point == GATEWAY and state.unresolved) and not (point == SCHEDULER and state.lease == "live")

    def _messages(self, state: Fences) -> Iterator[Move]:
        for message in state.net:
            match message:
                case ("raise", int(epoch), int(mode), bool(less)):
                    for point in self.points:
                        yield from self._raise(state, point, (epoch, mode), less)
                case ("receipt", int(point), (int(), int()) as value, bool(quiet)):
                    after = self._received(state, point, value, quiet)
                    if after != state:
                        yield Move(f"launch records the receipt of {POINTS[point]} for {value}", after)
        for point in self.points:
            value = state.gates[point].value
            news = ("receipt", point, value, True)
            if self._quiet(state, point) and value[0] == state.run.epoch and news not in state.net:
                yield Move(f"{POINTS[point]} reports that it is quiet", state._replace(net=add(state.net, news)))

    def _merged(self, gate: Gate, value: Value, less: bool) -> Gate:
        """By maximum; the grant follows the greater value."""
        kept = gate.less if value <= gate.value or self.without("grant-left-behind") else less
        return gate._replace(value=max(gate.value, value), less=kept)

    def _raise(self, state: Fences, point: int, value: Value, less: bool) -> Iterator[Move]:
        gate = state.gates[point]
        busy = point == GATEWAY and state.asking is not None and state.asking.locked and not self.without("no-gate-lock")
        if busy:
            return  # it waits for the lock
        merged = self._merged(gate, value, less)
        if self.without("skips-unknown-run") and not gate.known:
            merged = gate
        gates = swap(state.gates, point, merged)
        after = state._replace(gates=gates)
        seen = value if self.without("ack-before-raise") or self.without("skips-unknown-run") else merged.value
        answer = ("receipt", point, seen, self._quiet(after, point))
        if self.without("ack-before-raise"):
            yield Move(f"{POINTS[point]} acknowledges {value}", state._replace(net=add(state.net, answer)))
        after = after._replace(net=add(state.net, answer))
        if after != state:
            yield Move(f"{POINTS[point]} commits {value} and answers", after)

    def _cold(self, state: Fences) -> Iterator[Move]:
        """The gateway asks launch, then writes what it was told."""
        gate = state.gates[GATEWAY]
        if state.cold is None:
            if not gate.known or max(state.tokens) > gate.value[0]:
                yield Move("the gateway asks launch", state._replace(cold=(state.run.value, state.run.less)))
            return
        if state.asking is not None and state.asking.locked:
            return
        merged = Gate(state.cold[0], less=state.cold[1]) if self.without("cold-overwrites") else self._merged(gate, *state.cold)
        read = state._replace(gates=swap(state.gates, GATEWAY, merged._replace(known=True)), cold=None)
        yield Move(f"the gateway writes what launch said, {state.cold}", read)

    # ------------------------------------------------------------------------------------------------ the attempt

    def _passes(self, state: Fences, epoch: int) -> bool:
        gate = state.gates[GATEWAY]
        if state.stopped[GATEWAY] or not gate.known:
            return False
        return gate.value[1] == OPEN and (gate.value[0] == epoch or self.without("epoch-not-compared"))

    def _intent(self, state: Fences) -> Iterator[Move]:
        asking = state.asking
        if asking is None:
            for epoch in state.tokens:
                passes = self.without("old-snapshot") and self._passes(state, epoch)
                ask = Asking(epoch, locked=False, passes=passes)
                yield Move(f"an intent of epoch {epoch} asks", state._replace(asking=ask))
            return
        if not asking.locked:
            passes = asking.passes if self.without("old-snapshot") else self._passes(state, asking.epoch)
            yield Move("it takes the lock and is judged", state._replace(asking=asking._replace(locked=True, passes=passes)))
            return
        done = state._replace(asking=None)
        if not asking.passes:
            yield Move("it is refused", done)
            return
        label = f"the INTENT of epoch {asking.epoch} commits"
        if asking.epoch < state.floor[0] or state.floor[1] != OPEN:
            yield Move(label, Broken("an intent commits under what was confirmed as stopped"))
        elif state.taken and not state.gates[GATEWAY].less:
            yield Move(label, Broken("an intent commits by what was confirmed as taken"))
        elif state.scope == 2:
            yield Move(label, Broken("an intent commits after its scope was confirmed as stopped"))
        elif state.run.phase == TERMINAL:
            yield Move(label, Broken("an intent commits after the terminal state"))
        else:
            yield Move(label, done._replace(unresolved=True))

    def _lease(self, state: Fences) -> Iterator[Move]:
        if state.unresolved:
            yield Move("the effect's receipt is stored", state._replace(unresolved=False))
        if state.lease != "live":
            return
        value = state.gates[SCHEDULER].value
        closed = value[1] == CLOSED
        if closed:
            yield Move("the scheduler ends the lease of a closed run", state._replace(lease="cancelled"))
        elif value[1] == OPEN and value[0] not in state.tokens:
            yield Move("the attempt renews its token", state._replace(tokens=state.tokens | {value[0]}))
        yield Move("the attempt is lost", state._replace(lease="failed"), False)
        for epoch in state.tokens:
            if (not closed and epoch == value[0]) or self.without("success-under-closed"):
                if state.floor[1] == CLOSED:
                    yield Move("a success is committed", Broken("a success commits after the cancel was ENFORCED"))
                else:
                    yield Move("the attempt succeeds", state._replace(lease="succeeded"), False)
        if CHECKPOINT in self.points:
            held = state.gates[CHECKPOINT]
            if held.known and held.value[1] != CLOSED and held.value[0] in state.tokens and state.floor[1] == CLOSED:
                yield Move("a checkpoint is committed", Broken("a checkpoint commits after the cancel was ENFORCED"))
            if not held.known:
                gate = self._merged(held, state.run.value, state.run.less)._replace(known=True)
                yield Move("checkpoint reads the gate cold", state._replace(gates=swap(state.gates, CHECKPOINT, gate)))

    # ------------------------------------------------------------------------------------------------ the scope

    def _scope(self, state: Fences) -> Iterator[Move]:
        if state.scope == 0 and (self.wide or not state.users):
            yield Move("launch kills the scope", state._replace(scope=1), False)
        if state.scope != 1:
            return
        for point in self.points:
            busy = point == GATEWAY and state.asking is not None and state.asking.locked and not self.without("no-scope-lock")
            if not state.stopped[point] and not busy:
                stopped = swap(state.stopped, point, True)
                scope = 2 if all(stopped) else 1
                yield Move(f"{POINTS[point]} stops the scope", state._replace(stopped=stopped, scope=scope))

    # ------------------------------------------------------------------------------------------------ rules

    def broken(self, state: Fences) -> str:
        """What a terminal run may not have."""
        if state.run.phase == TERMINAL and state.unresolved:
            return "terminal with an unresolved effect"
        if state.run.phase == TERMINAL and state.lease == "live":
            return "terminal with a live lease"
        return ""

    def canonical(self, state: Fences) -> Fences:
        """Messages that can change nothing more are forgotten."""
        if self.mutant in ("receipts-of-any-epoch", "ack-before-raise", "skips-unknown-run"):
            return state
        net = set()
        for message in state.net:
            if message[0] == "raise":
                value = message[1:]
                late = all(gate.value >= value for gate in state.gates) and value != state.run.value
            else:
                value = message[2]
                late = value != state.run.value or message[1] in (state.run.quiesced if message[3] else state.run.enforced)
            if not late:
                net.add(message)
        if state.run.phase == TERMINAL:
            net = {message for message in net if message[0] == "raise"}
        return state._replace(net=frozenset(net))

    def goals(self) -> Mapping[str, Callable[[Fences], bool]]:
        """Nothing hangs, and what launch says reaches every point."""
        return {
            "a closing run is terminal": lambda state: state.run.phase != CLOSING,
            "every point holds what launch says": lambda state: (
                (state.run.value == (1, OPEN) and not state.users) or all(gate.value == state.run.value for gate in state.gates)
            ),
        }
