"""Grant and re-grant: one step of one shard, its leaders, its attempts, and the points whose fences they meet.

As the code has it: `services/scheduler/store/sql/tickets.sql` (put_tickets, grant, succeed, end_leases, acknowledge, finish),
`shards.sql` (confirm), `libs/fence` (merge by maximum, judge, cold read). A lease may expire at any moment: whatever
heartbeats say, safety may not depend on them, and a zombie goes on acting under its token for ever. A former leader goes on
acting from its memory until a commit of its own is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from tests.models.explorer import Broken, Model, Move, add, swap

READY, LEASED, ENDING, OVER = "ready", "leased", "ending", "over"
NOBODY = -1
Fence = tuple[int, int, int]


class Ticket(NamedTuple):
    """The step's row. `need`: points that have not acknowledged the raise of its last end."""

    state: str = OVER
    sequence: int = 0
    fence: Fence = (0, 0, NOBODY)
    need: frozenset[int] = frozenset()
    ended: int = NOBODY


class Grants(NamedTuple):
    """Everything. `row`: the shard's authority epoch; `leaders`: (epoch, remembered ticket); `asked`: readiness' newest ticket."""

    row: int
    leaders: tuple[tuple[int, Ticket], ...]
    ticket: Ticket
    points: tuple[Fence | None, ...]
    tokens: tuple[Fence, ...]
    net: frozenset[tuple[Any, ...]]
    asked: int
    done: bool
    told: frozenset[tuple[int, bool]]
    granted: frozenset[int]


class GrantModel(Model[Grants]):
    """Two processes that lead in turn, a step with retries, one point (two in the wide search)."""

    name = "grant"
    about = "shard epoch, lease, raise before re-grant, zombies"
    mutants: ClassVar[Mapping[str, str]] = {
        "told-before-raise": "an end is told only once every point has acknowledged its raise",
        "regrant-before-raise": "nor is the step granted again before that",
        "ack-before-raise": "a point acknowledges a raise only once it is committed",
        "ack-of-any-end": "an acknowledgement counts only for the very end that was raised",
        "no-authority-compare": "each commit compares the shard row's epoch",
        "end-without-compare": "an end compares the lease that it ends",
        "sequence-not-compared": "a repeated ticket changes nothing",
        "merge-overwrites": "fences merge by maximum",
        "requeue-by-scheduler": "only readiness decides what follows an ended attempt",
        "point-without-fence": "a point compares the step's fence",
    }

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.points = range(2 if wide else 1)
        self.attempts = 3
        self.takeovers = 4 if wide else 2

    def initial(self) -> Grants:
        """The first ticket is on its way; nobody leads."""
        nobody = (0, Ticket())
        net: frozenset[tuple[Any, ...]] = frozenset({("ready", 1)})
        return Grants(0, (nobody, nobody), Ticket(), (None,) * len(self.points), (), net, 1, False, frozenset(), frozenset())

    def moves(self, state: Grants) -> Iterator[Move]:
        """Elections, tickets, grants, ends, raises, receipts, and what attempts try."""
        for place, (epoch, _) in enumerate(state.leaders):
            if state.row < self.takeovers:
                won = (state.row + 1, state.ticket)
                yield Move(
                    f"process {place} leads under {state.row + 1}",
                    state._replace(row=state.row + 1, leaders=swap(state.leaders, place, won)),
                )
            if epoch:
                yield from self._leader(state, place)
        yield from self._messages(state)
        yield from self._attempts(state)

    # ------------------------------------------------------------------------------------------------ the scheduler

    def _commit(self, state: Grants, place: int, label: str, after: Grants) -> Move:
        """A commit of a leader, behind the shard's row."""
        epoch, _ = state.leaders[place]
        if epoch != state.row:
            if self.without("no-authority-compare"):
                return Move(label, Broken("a leader that was deposed commits"))
            return Move(f"process {place} is refused and steps down", self._remember(state, place, 0, Ticket()))
        return Move(label, self._remember(after, place, epoch, after.ticket))

    def _remember(self, state: Grants, place: int, epoch: int, ticket: Ticket) -> Grants:
        return state._replace(leaders=swap(state.leaders, place, (epoch, ticket)))

    def _leader(self, state: Grants, place: int) -> Iterator[Move]:
        epoch, memory = state.leaders[place]
        row = state.ticket
        for message in state.net:
            if message[0] == "ready" and epoch:
                yield from self._put(state, place, int(message[1]))
        if memory.state == READY and len(state.tokens) < self.attempts:
            same = row.state == READY and (row.sequence, row.fence[1]) == (memory.sequence, memory.fence[1])
            if same and (not row.need or self.without("regrant-before-raise")):
                yield self._commit(
                    state, place, f"process {place} grants to attempt {len(state.tokens)}", self._grant(state, epoch)
                )
            elif memory != row:
                yield Move(f"process {place} looks at the row again", self._remember(state, place, epoch, row))
        if memory.state == LEASED:
            if row.state == LEASED and row.fence == memory.fence:
                after = self._ended(state, epoch, row.fence)
                yield self._commit(state, place, f"process {place} ends attempt {row.fence[2]} as lost", after)
            else:
                yield Move(f"process {place} finds its lease gone", self._remember(state, place, epoch, row))

    def _put(self, state: Grants, place: int, sequence: int) -> Iterator[Move]:
        row = state.ticket
        newer = sequence > row.sequence or (self.without("sequence-not-compared") and sequence == row.sequence)
        if newer and row.state not in (LEASED, ENDING):
            ticket = row._replace(state=READY, sequence=sequence)
            yield self._commit(state, place, f"process {place} stores ticket {sequence}", state._replace(ticket=ticket))

    def _grant(self, state: Grants, epoch: int) -> Grants:
        row, attempt = state.ticket, len(state.tokens)
        fence = (epoch, row.fence[1] + 1, attempt)
        return state._replace(
            ticket=row._replace(state=LEASED, fence=fence),
            tokens=(*state.tokens, fence),
            granted=state.granted | {row.sequence} if row.sequence not in state.granted else frozenset({-1}),
        )

    def _ended(self, state: Grants, epoch: int, fence: Fence, *, well: bool = False) -> Grants:
        """The end of a lease: a success is told beside its raise, any other end only once every point has acknowledged."""
        row = state.ticket
        raised = (epoch, row.fence[1] + 1, NOBODY)
        need = frozenset(self.points)
        net = add(state.net, ("raise", raised))
        ticket = row._replace(state=ENDING, fence=raised, need=need, ended=fence[2])
        if well or self.mutant in ("told-before-raise", "regrant-before-raise"):
            net = add(net, ("ended", row.sequence, fence[2], well))
            return state._replace(ticket=ticket._replace(state=OVER), net=net, told=state.told | {(fence[2], well)})
        if self.without("requeue-by-scheduler"):
            ticket = ticket._replace(state=READY)
        return state._replace(ticket=ticket, net=net)

    # ------------------------------------------------------------------------------------------------ messages

    def _messages(self, state: Grants) -> Iterator[Move]:
        for message in state.net:
            match message:
                case ("raise", (int(), int(), int()) as fence):
                    for point in self.points:
                        yield from self._raise(state, point, fence)
                case ("ack", int(point), (int(), int(), int()) as fence):
                    yield from self._acknowledged(state, point, fence)
                case ("ended", int(sequence), int(attempt), bool(well)):
                    yield from self._heard(state, sequence, attempt, well)

    def _raise(self, state: Grants, point: int, fence: Fence) -> Iterator[Move]:
        held = state.points[point]
        merged = fence if held is None or self.without("merge-overwrites") else max(held, fence)
        if held is not None and merged < held:
            yield Move(f"a late raise {fence} reaches point {point}", Broken("a fence falls"))
            return
        net = add(state.net, ("ack", point, fence))
        if self.without("ack-before-raise") and merged != held:
            yield Move(f"point {point} acknowledges raise {fence} first", state._replace(net=net))
        after = state._replace(points=swap(state.points, point, merged), net=net)
        if after != state:
            yield Move(f"point {point} commits raise {fence} and acknowledges", after)

    def _acknowledged(self, state: Grants, point: int, fence: Fence) -> Iterator[Move]:
        row = state.ticket
        if point not in row.need or not (row.fence == fence or self.without("ack-of-any-end")):
            return
        row = row._replace(need=row.need - {point})
        net, told = state.net, state.told
        if row.state == ENDING and not row.need:
            net = add(net, ("ended", row.sequence, row.ended, False))
            told = told | {(row.ended, False)}
            row = row._replace(state=OVER)
        yield Move(f"the scheduler notes that point {point} raised {fence}", state._replace(ticket=row, net=net, told=told))

    def _heard(self, state: Grants, sequence: int, attempt: int, well: bool) -> Iterator[Move]:
        if sequence != state.asked or state.done:
            return
        if well or len(state.tokens) >= self.attempts:
            yield Move(f"readiness hears the end of ticket {sequence}", state._replace(done=True))
        else:
            after = state._replace(asked=sequence + 1, net=add(state.net, ("ready", sequence + 1)))
            yield Move(f"readiness hears that attempt {attempt} ended, and retries", after)

    # ------------------------------------------------------------------------------------------------ attempts

    def _attempts(self, state: Grants) -> Iterator[Move]:
        row = state.ticket
        for attempt, token in enumerate(state.tokens):
            held = row.state == LEASED and (row.fence == token or self.without("end-without-compare"))
            for place, (epoch, _) in enumerate(state.leaders):
                if not (held and epoch):
                    continue
                if row.fence != token:
                    yield Move(f"attempt {attempt} reports", Broken("an attempt's report ends the lease of another"))
                    return
                for well, word in ((True, "success"), (False, "a failure")):
                    after = self._ended(state, epoch, token, well=well)
                    yield self._commit(state, place, f"attempt {attempt} reports {word} to process {place}", after)
            for point in self.points:
                yield from self._intent(state, attempt, token, point)

    def _intent(self, state: Grants, attempt: int, token: Fence, point: int) -> Iterator[Move]:
        held = state.points[point]
        if (held is not None and token > held) or (held is None and token[1] > 1):
            read = state.ticket.fence  # a cold read: merged by maximum, then judged again
            if held is None or read > held:
                yield Move(f"point {point} reads the step cold", state._replace(points=swap(state.points, point, read)))
            return
        if held is not None and token < held and not self.without("point-without-fence"):
            return
        label = f"an intent of attempt {attempt} commits at point {point}"
        if attempt < len(state.tokens) - 1:
            yield Move(label, Broken("an attempt acts after a later one was granted"))
        elif (attempt, False) in state.told and not self.without("regrant-before-raise"):
            yield Move(label, Broken("an attempt acts after readiness was told that it ended"))
        elif held is None:
            yield Move(label, state._replace(points=swap(state.points, point, token)))

    # ------------------------------------------------------------------------------------------------ rules

    def broken(self, state: Grants) -> str:
        """One grant a ticket."""
        if -1 in state.granted:
            return "one ticket is granted twice"
        if any((attempt, not well) in state.told for attempt, well in state.told):
            return "one attempt ends in two ways"
        if state.ticket.state == LEASED and len(state.tokens) - 1 != state.ticket.fence[2]:
            return "two leases at once"
        return ""

    def canonical(self, state: Grants) -> Grants:
        """Processes are alike; messages that can change nothing more are forgotten."""
        if self.mutant:
            return state._replace(leaders=tuple(sorted(state.leaders)))
        row = state.ticket
        net = set()
        for message in state.net:
            kind = message[0]
            if kind == "raise":
                fence = message[1]
                late = all(held is not None and held >= fence for held in state.points)
                if late and not (fence == row.fence and row.need):
                    continue
            elif (
                (kind == "ack" and (message[2] != row.fence or message[1] not in row.need))
                or (kind == "ready" and message[1] <= row.sequence)
                or (kind == "ended" and message[1] != state.asked)
            ):
                continue
            net.add(message)
        return state._replace(leaders=tuple(sorted(state.leaders)), net=frozenset(net))

    def goals(self) -> Mapping[str, Callable[[Grants], bool]]:
        """Nothing hangs."""
        return {"readiness hears how the step ended": lambda state: state.done}
