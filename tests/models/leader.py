"""Leader and epoch: two schedulers, their sessions with etcd, the key of one shard, and the shard's row in the database.

As the code has it: `libs/authority/session.py` (lost two thirds of the TTL after the last acknowledged renewal was *sent*, by the
process' own clock), `elections.py` (create by compare, epoch = create revision, stop before giving back), `confirm` and
`raise_generation` of `services/scheduler/store/sql/shards.sql`. Time is counted in thirds of the TTL and passes for everybody; a
paused process simply makes no move. etcd may once be restored, empty, to its first revision.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from tests.models.explorer import Broken, Model, Move, swap

TTL, DEADLINE = 3, 2
Epoch = tuple[int, int]


class Process(NamedTuple):
    """One scheduler. `left`: thirds until its own deadline, 0 without a session; `renewal`: age of one whose answer is under way;
    `won`: a create revision not confirmed yet; `late`: one whose session ended meanwhile; `held`: what it leads under;
    `commit`: under way at the database."""

    left: int = 0
    renewal: int | None = None
    won: int = 0
    late: int = 0
    held: Epoch = (0, 0)
    commit: Epoch = (0, 0)

    @property
    def leads(self) -> bool:
        """Whether it acts as a leader."""
        return self.left > 0 and self.held != (0, 0)


class Shard(NamedTuple):
    """Everything. `leases`: thirds that etcd gives each process; `key`: who holds the shard there, and its create revision."""

    processes: tuple[Process, ...] = (Process(), Process())
    leases: tuple[int, ...] = (0, 0)
    key: tuple[int, int] | None = None
    revision: int = 0
    row: Epoch = (0, 0)
    generation: int = 0
    restored: bool = False


class LeaderModel(Model[Shard]):
    """Two processes; a bound on elections."""

    name = "leader"
    about = "etcd leases judged by one's own clock, epochs confirmed in the database, etcd restored to the past"
    mutants: ClassVar[Mapping[str, str]] = {
        "deadline-from-answer": "the deadline counts from when the renewal was sent",
        "clock-stops-in-a-pause": "the clock of the deadline runs while the process is paused",
        "given-back-before-stopping": "a leader stops before it gives its key back",
        "commit-without-compare": "each commit compares the shard row's epoch",
        "confirm-without-compare": "a leader is confirmed by a greater epoch only",
        "confirm-equal": "nor by an equal one",
        "create-without-compare": "a shard's key is made only where there is none",
        "reset-lowers-the-row": "a reset raises the generation; the row never falls",
    }

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.elections = 2

    def initial(self) -> Shard:
        """Nobody has a session."""
        return Shard()

    def moves(self, state: Shard) -> Iterator[Move]:
        """Time, sessions, elections, confirmations, commits, and etcd's loss."""
        yield Move("a third of the TTL passes", self._tick(state, ()))
        if self.without("clock-stops-in-a-pause"):
            for place in (0, 1):
                yield Move(f"a third of the TTL passes, process {place} paused", self._tick(state, (place,)))
        if not state.restored and state.row[1]:
            lost = state._replace(leases=(0, 0), key=None, revision=0, restored=True)
            yield Move("etcd is restored, empty", lost, False)
        for place, process in enumerate(state.processes):
            yield from self._session(state, place, process)
            yield from self._election(state, place, process)
            yield from self._commits(state, place, process)

    def _put(self, state: Shard, place: int, process: Process) -> Shard:
        return state._replace(processes=swap(state.processes, place, process))

    def _tick(self, state: Shard, paused: tuple[int, ...]) -> Shard:
        processes = []
        for place, process in enumerate(state.processes):
            left = process.left if place in paused else max(0, process.left - 1)
            renewal = None if process.renewal is None else min(process.renewal + 1, DEADLINE)
            after = process._replace(left=left, renewal=renewal)
            processes.append(self._without_session(after) if process.left and not left else after)
        leases = tuple(max(0, lease - 1) for lease in state.leases)
        key = state.key if state.key is None or leases[state.key[0]] else None
        return state._replace(processes=tuple(processes), leases=leases, key=key)

    def _without_session(self, process: Process) -> Process:
        """A lost session is lost for good: nothing that it won is acted upon, whatever answers come later."""
        return process._replace(left=0, renewal=None, won=0, late=process.won or process.late, held=(0, 0))

    # ------------------------------------------------------------------------------------------------ sessions

    def _session(self, state: Shard, place: int, process: Process) -> Iterator[Move]:
        """A renewal reaches etcd as soon as it is sent: later would only make the lease outlive the deadline by more."""
        if process.renewal is None and not state.leases[place] and process.left:
            yield Move(f"etcd knows no lease of process {place}", self._put(state, place, self._without_session(process)))
        elif process.renewal is None and process.left < DEADLINE:
            former = process.left == 0 and state.key is not None and state.key[0] == place  # its lease is revoked
            sent = self._put(state, place, process._replace(renewal=0))
            after = sent._replace(leases=swap(state.leases, place, TTL), key=None if former else state.key)
            yield Move(f"etcd {'renews' if process.left else 'grants'} the lease of process {place}", after)
        elif process.renewal is not None:
            since = 0 if self.without("deadline-from-answer") else process.renewal
            answered = process._replace(renewal=None, left=max(process.left, DEADLINE - since))
            yield Move(f"process {place} hears it", self._put(state, place, answered))

    def _election(self, state: Shard, place: int, process: Process) -> Iterator[Move]:
        free = state.key is None or (self.without("create-without-compare") and state.key[0] != place)
        if process.left and state.leases[place] and free and not process.won and state.revision < self.elections:
            revision = state.revision + 1
            won = self._put(state, place, process._replace(won=revision))
            yield Move(f"process {place} wins revision {revision}", won._replace(key=(place, revision), revision=revision))
        if process.won:
            yield from self._confirm(state, place, process)
        if process.late:
            over = self._put(state, place, process._replace(late=0))
            epoch = (state.generation, process.late)
            if epoch > state.row:
                landed = over._replace(row=epoch)
                yield Move(f"the confirmation of a lost session of process {place} lands", landed, False)
            yield Move(f"process {place} never confirmed what it won", over)
        if process.held != (0, 0) and (self.wide or self.mutant):
            mine = state.key is not None and state.key[0] == place
            held = process.held if self.without("given-back-before-stopping") else (0, 0)
            given = self._put(state, place, process._replace(held=held))
            yield Move(f"process {place} gives the shard back", given._replace(key=None if mine else state.key), False)

    def _confirm(self, state: Shard, place: int, process: Process) -> Iterator[Move]:
        epoch = (state.generation, process.won)
        greater = (
            epoch > state.row
            or self.without("confirm-without-compare")
            or (self.without("confirm-equal") and epoch == state.row)
        )
        if greater:
            yield Move(f"process {place} is confirmed under {epoch}", self._confirmed(state, place, process, epoch))
            return
        lost_etcd = state.row[1] > state.revision and state.row[0] == state.generation
        mine = state.key is not None and state.key[0] == place
        refused = self._put(state, place, process._replace(won=0))._replace(key=None if mine else state.key)
        yield Move(f"process {place} is refused and gives its key back", refused, not lost_etcd)
        label = "etcd was lost: the generation is raised"
        if lost_etcd and self.without("reset-lowers-the-row"):
            yield Move(label, self._confirmed(state, place, process, epoch))
        elif lost_etcd:
            raised = state._replace(generation=state.generation + 1)
            yield Move(label, self._confirmed(raised, place, process, (raised.generation, process.won)))

    def _confirmed(self, state: Shard, place: int, process: Process, epoch: Epoch) -> Shard | Broken:
        if epoch == state.row:
            return Broken("an epoch is used again")
        if epoch < state.row:
            return Broken("the shard's epoch falls")
        leads = process._replace(won=0, held=epoch if process.left else (0, 0))
        return self._put(state, place, leads)._replace(row=epoch)

    # ------------------------------------------------------------------------------------------------ commits

    def _commits(self, state: Shard, place: int, process: Process) -> Iterator[Move]:
        if process.leads and process.commit == (0, 0):
            begun = self._put(state, place, process._replace(commit=process.held))
            yield Move(f"process {place} begins a commit under {process.held}", begun)
        if process.commit != (0, 0):
            done = self._put(state, place, process._replace(commit=(0, 0)))
            if process.commit == state.row:
                yield Move(f"the commit of process {place} lands", done)
            elif self.without("commit-without-compare"):
                yield Move(f"the commit of process {place} lands", Broken("a leader that was deposed commits"))
            else:
                down = done.processes[place]._replace(held=(0, 0))
                yield Move(f"the commit of process {place} is refused", self._put(done, place, down))

    # ------------------------------------------------------------------------------------------------ rules

    def broken(self, state: Shard) -> str:
        """While etcd keeps what it promised, two never act at once, not even for a moment."""
        if not state.restored and all(process.leads for process in state.processes):
            return "two processes lead at once"
        return ""

    def canonical(self, state: Shard) -> Shard:
        """The two processes are alike."""
        first, second = state.processes
        if self._rank(first, state.leases[0]) <= self._rank(second, state.leases[1]):
            return state
        key = None if state.key is None else (1 - state.key[0], state.key[1])
        return state._replace(processes=(second, first), leases=(state.leases[1], state.leases[0]), key=key)

    def _rank(self, process: Process, lease: int) -> tuple[Any, ...]:
        return (*process._replace(renewal=-1 if process.renewal is None else process.renewal), lease)

    def goals(self) -> Mapping[str, Callable[[Shard], bool]]:
        """Somebody leads in the end (or the bound on elections stops it)."""
        return {
            "a confirmed leader": lambda state: (
                state.revision >= self.elections or any(p.leads and p.held == state.row for p in state.processes)
            )
        }
