"""Pauses: a run that people stop and let go on, beside its deadline, a cancel, a lost lease and its own end; everything late or twice.

What launch makes of a pause, a resume, a limit that has passed and receipts is decided by the product's own code
(`services/launch/domain/pausing.py`, `closing.py`); around it, as the code has it: gates that merge by maximum at the scheduler and
the gateway, grants and intents that look at them, reports of a point that nothing of the run is left there. A raise and an answer that
were sent may arrive at any later moment, and again. Zombies and step fences are in `fence.py` and `grant.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple
from uuid import UUID

from libs.kernel.epochs import Mode
from libs.kernel.refusal import Refusal
from services.launch.domain.closing import Closing, Lapse, Limit, Receipt, apply_receipts, decide_closing
from services.launch.domain.pausing import PAUSED, Moved, decide_pause, decide_resume
from services.launch.domain.run import DECIDED, TERMINAL, RunHead, RunState
from tests.models.explorer import Broken, Model, Move, swap

GATEWAY, SCHEDULER = 1, 4
POINTS = (GATEWAY, SCHEDULER)
RUN = UUID(int=1)
DEADLINE, LONGEST = 1, 1
OPEN, DRAINING, CLOSED = 0, 1, 2
Gate = tuple[int, int]


class Paused(NamedTuple):
    """Everything. `gates`: what the gateway and the scheduler hold; `lease`: the epoch of the live attempt's token, 0: none; `calling`: an
    effect is under way; `used`: effects that happened; `flying`: raises and answers on their way; `seen`: limits that the reaper has seen
    to have passed; `ran`: time in which the run was not held; `pauses`: how often people paused it; `moment`: the time."""

    head: RunHead
    gates: tuple[Gate, Gate] = ((1, OPEN), (1, OPEN))
    lease: int = 0
    calling: bool = False
    used: int = 0
    flying: frozenset[tuple[str, int, int, int, int]] = frozenset()
    seen: frozenset[Lapse] = frozenset()
    moment: int = 0
    ran: int = 0
    pauses: int = 0


class PauseModel(Model[Paused]):
    """One run of one step that calls, its scheduler and its gateway."""

    name: ClassVar[str] = "pause"
    about: ClassVar[str] = (
        "a pause drains, freezes the deadline, and holds until people let the run go on, under a new epoch; one outcome"
    )
    mutants: ClassVar[Mapping[str, str]] = {
        "drained": "paused once each point has nothing live, unresolved or held, not once it holds the gate",
        "receipts-begin-anew": "receipts of an earlier pause count nothing for a later one",
        "any-epoch-counts": "a receipt counts for the epoch that it names",
        "open-is-quiet": "a point whose gate is open is not quiet",
        "open-counts": "a point whose gate is open holds no pause, whatever its epoch",
        "effects-forgotten": "a gateway with an effect under way is not quiet",
        "grant-looks": "the scheduler grants nothing behind a gate that drains",
        "intent-looks": "the gateway admits nothing behind a gate that drains",
        "maximum": "gates merge by maximum",
        "same-epoch": "a run goes on under the next epoch",
        "clock-goes-on": "the time of a pause is given back",
        "reaper-remembers": "what the reaper saw is judged again behind the lock",
        "budget-forgotten": "who has used all of its budget does not go on",
        "outcome-again": "an outcome is decided once",
        "renewed": "an attempt that slept through a pause gets a token of the new epoch",
    }
    costly: ClassVar[frozenset[str]] = frozenset({"receipts-begin-anew", "any-epoch-counts", "same-epoch", "renewed"})

    @property
    def _most_pauses(self) -> int:
        return 2

    @property
    def _last_moment(self) -> int:
        return 3 if self.wide else 1

    @property
    def _calls(self) -> int:
        return 2 if self.wide else 1

    def initial(self) -> Paused:
        """The run was launched and goes on."""
        head = RunHead(RUN, "t", "p", RunState.RUNNING, "", 1, 1, GATEWAY | SCHEDULER, 0, 0, (), self._calls, 0, DEADLINE)
        return Paused(head)

    def moves(self, state: Paused) -> Iterator[Move]:
        """People, time and the reaper, the attempt, messages."""
        yield from self._people(state)
        yield from self._time(state)
        yield from self._attempt(state)
        yield from self._messages(state)

    # -- launch

    def _people(self, state: Paused) -> Iterator[Move]:
        head = state.head
        if head.state in DECIDED and not self.without("outcome-again"):
            return
        if head.state not in PAUSED and head.state not in DECIDED and state.pauses < self._most_pauses:
            moved = decide_pause(head, LONGEST, state.moment)
            assert moved is not None
            yield Move("people pause it", self._moved(state._replace(pauses=state.pauses + 1), moved), fair=False)
        if head.state in PAUSED:
            yield from self._resume(state)
        if head.state not in TERMINAL and head.outcome != "cancelled":
            yield Move("people cancel it", self._close(state, "cancelled", None), fair=False)

    def _resume(self, state: Paused) -> Iterator[Move]:
        head = state.head
        asked = replace(head, budget_micros=0) if self.without("budget-forgotten") else head
        try:
            moved = decide_resume(asked, 0, state.moment)
        except Refusal:
            return
        assert moved is not None
        if head.state is RunState.PAUSED and state.used >= head.budget_micros:
            yield Move("people let it go on", Broken("a run that has nothing left goes on"))
            return
        if self.without("same-epoch"):
            moved = replace(moved, epoch=head.epoch)
        if self.without("clock-goes-on"):
            moved = replace(moved, deadline_ms=head.deadline_ms)
        yield Move("people let it go on", self._moved(state, moved), fair=False)

    def _moved(self, state: Paused, moved: Moved) -> Paused:
        """As `apply_pauses` stores it: receipts begin anew, and the gate is raised."""
        kept = self.without("receipts-begin-anew")
        head = replace(
            state.head,
            state=moved.state,
            epoch=moved.epoch,
            version=state.head.version + 1,
            enforced=state.head.enforced if kept else 0,
            quiesced=state.head.quiesced if kept else 0,
            deadline_ms=moved.deadline_ms,
            paused_ms=moved.paused_ms,
            pause_until_ms=moved.pause_until_ms,
        )
        return self._raised(state._replace(head=head), int(moved.mode))

    def _raised(self, state: Paused, mode: int) -> Paused:
        raises = {("raise", point, state.head.epoch, mode, 0) for point in POINTS}
        return state._replace(flying=state.flying | raises)

    def _close(self, state: Paused, outcome: str, lapse: Lapse | None) -> Paused | Broken:
        head = state.head
        if self.without("outcome-again") and head.state in DECIDED and head.state not in TERMINAL:
            head = replace(head, state=RunState.RUNNING)
        asked = Closing(RUN, outcome, b"", None, "", "", None if self.without("reaper-remembers") else lapse)
        decided = decide_closing(head, asked, 0)
        if decided is None:
            return state
        if state.head.outcome:
            return Broken("a run has a second outcome")
        if lapse is not None and lapse.limit is Limit.DEADLINE and (state.ran < DEADLINE or head.state in PAUSED):
            return Broken("a run expires before it had its time")
        if lapse is not None and lapse.limit is Limit.PAUSE and head.state not in PAUSED:
            return Broken("a run that goes on expires for its pause")
        ended = replace(
            head, state=decided.state, outcome=outcome, epoch=decided.epoch, version=head.version + 1, enforced=0, quiesced=0
        )
        return self._raised(state._replace(head=ended), CLOSED)

    # -- time, and the reaper

    def _time(self, state: Paused) -> Iterator[Move]:
        head = state.head
        if head.state in TERMINAL:
            return
        if state.moment < self._last_moment:
            ran = state.ran + (head.state not in PAUSED)
            yield Move("time passes", state._replace(moment=state.moment + 1, ran=ran), fair=False)
        for limit in (Limit.DEADLINE, Limit.PAUSE):
            lapse = Lapse(limit, state.moment)
            if lapse.holds(head) and not state.seen:
                yield Move(f"the reaper sees its {limit.name.lower()}", state._replace(seen=state.seen | {lapse}))
        for lapse in state.seen:
            after = self._close(state._replace(seen=state.seen - {lapse}), "expired", lapse)
            yield Move(f"the reaper ends it for its {lapse.limit.name.lower()}", after)

    # -- the attempt

    def _attempt(self, state: Paused) -> Iterator[Move]:
        (gate_epoch, gate_mode), (epoch, mode) = state.gates
        grants = mode == OPEN or (mode == DRAINING and self.without("grant-looks"))
        if not state.lease and not state.calling and state.head.state not in TERMINAL and grants:
            yield Move("an attempt is leased", state._replace(lease=epoch))
        if state.calling:
            yield Move("the call has its answer", state._replace(calling=False, used=state.used + 1))
        if not state.lease:
            return
        admits = gate_mode == OPEN or (gate_mode == DRAINING and self.without("intent-looks"))
        if not state.calling and state.used < self._calls and admits and gate_epoch == state.lease:
            yield Move("the attempt calls", state._replace(calling=True))
        if state.lease < epoch and mode == OPEN and not self.without("renewed"):
            yield Move("its token is renewed", state._replace(lease=epoch))
        if state.calling:
            yield Move("its lease is lost", state._replace(lease=0), fair=False)
            return
        if mode != OPEN:
            yield Move("it returns its lease", state._replace(lease=0))
        if state.used == self._calls and mode != CLOSED and epoch == state.lease:
            done = state._replace(lease=0)
            yield Move("it has succeeded", self._close(done, "succeeded", None))

    # -- messages

    def _messages(self, state: Paused) -> Iterator[Move]:
        for message in state.flying:
            kind, point, epoch, mode, quiet = message
            left = state._replace(flying=state.flying - {message})
            if kind == "raise":
                after = self._merge(left, point, (epoch, mode))
                yield Move(f"{self._who(point)} holds {epoch} {Mode(mode).name.lower()}", after)
                if self.wide and after.gates != state.gates:
                    yield Move("… and will hear it again", after._replace(flying=after.flying | {message}), fair=False)
            else:
                yield Move(f"launch hears of {self._who(point)} at {epoch}", self._hear(left, point, epoch, mode, quiet))
        for place, point in enumerate(POINTS):
            epoch, _ = state.gates[place]
            report = ("answer", point, epoch, CLOSED, 1)
            new = not state.head.quiesced & point and epoch == state.head.epoch and report not in state.flying
            if self._quiet(state, point) and new and state.head.state not in TERMINAL:
                yield Move(f"{self._who(point)} has nothing of it left", state._replace(flying=state.flying | {report}))

    def _merge(self, state: Paused, point: int, gate: Gate) -> Paused:
        place = POINTS.index(point)
        held = gate if self.without("maximum") else max(state.gates[place], gate)
        merged = state._replace(gates=swap(state.gates, place, held))
        if held != gate:
            return merged
        answer = ("answer", point, gate[0], gate[1], int(self._quiet(merged, point)))
        return merged._replace(flying=merged.flying | {answer})

    def _quiet(self, state: Paused, point: int) -> bool:
        _, mode = state.gates[POINTS.index(point)]
        if mode == OPEN and not self.without("open-is-quiet"):
            return False
        if point == SCHEDULER:
            return not state.lease
        return not state.calling or self.without("effects-forgotten")

    def _hear(self, state: Paused, point: int, epoch: int, mode: int, quiet: int) -> Paused:
        head = state.head
        told = head.epoch if self.without("any-epoch-counts") else epoch
        held = Mode.CLOSED if self.without("open-counts") else Mode(mode)
        receipt = Receipt(RUN, point, told, bool(quiet) or self.without("drained"), mode=held)
        progress = apply_receipts(head, [receipt])
        if progress is None:
            return state
        used = state.used if point == GATEWAY else head.used_micros
        became = replace(head, state=progress.state, enforced=progress.enforced, quiesced=progress.quiesced, used_micros=used)
        return state._replace(head=became)

    @staticmethod
    def _who(point: int) -> str:
        return "the gateway" if point == GATEWAY else "the scheduler"

    # -- rules

    def broken(self, state: Paused) -> str:
        """What a run that was called paused does."""
        if state.head.state is RunState.PAUSED and state.calling:
            return "an effect is under way, and the run was called paused"
        if state.head.state is RunState.PAUSED and state.lease:
            return "an attempt is live, and the run was called paused"
        if state.head.state is RunState.PAUSING:
            for point, gate in zip(POINTS, state.gates, strict=True):
                if state.head.enforced & point and gate < (state.head.epoch, DRAINING):
                    return "a point is said to hold a pause that it does not hold"
        if state.head.state in TERMINAL and (state.calling or state.lease):
            return "something is live after the run is over"
        return ""

    def canonical(self, state: Paused) -> Paused:
        """What can change nothing any more is forgotten."""
        head = replace(state.head, version=0)
        if head.state in TERMINAL:
            return state._replace(
                head=replace(head, deadline_ms=0), flying=frozenset(), seen=frozenset(), moment=0, ran=0, pauses=0
            )
        if head.state in DECIDED and not self.without("outcome-again"):
            head = replace(head, deadline_ms=0, paused_ms=0, pause_until_ms=0, used_micros=0)
            state = state._replace(seen=frozenset(), moment=0, ran=0, pauses=0)
        flying = frozenset(one for one in state.flying if self._counts(state, one))
        return state._replace(head=head, ran=min(state.ran, DEADLINE), flying=flying)

    def _counts(self, state: Paused, message: tuple[str, int, int, int, int]) -> bool:
        kind, point, epoch, mode, quiet = message
        if kind == "raise":
            return self.without("maximum") or (epoch, mode) > state.gates[POINTS.index(point)]
        if state.head.state in PAUSED and mode == OPEN and not self.without("open-counts"):
            return False
        news = not state.head.enforced & point or (quiet and not state.head.quiesced & point)
        return self.without("any-epoch-counts") or (epoch == state.head.epoch and bool(news))

    def goals(self) -> Mapping[str, Callable[[Paused], bool]]:
        """A run comes to its end, unless people hold it; whoever is asked to pause does, or ends."""
        still = (RunState.PAUSED,)
        return {"it ends, or people hold it": lambda state: state.head.state in TERMINAL or state.head.state in still}
