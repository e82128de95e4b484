"""Shards handed over while a queue is held: two schedulers, one shard, a ticket of the held queue and one of another.

As the code has it: a leader forgets its memory before it gives the key up (`libs/authority/elections.py`), its successor reads the
holds, confirms a greater epoch in the row, then reads the tickets (`services/scheduler/app/take_over.py`); commits compare the epoch;
holds are in memory alone, each process writes down the revision it acts on once no plan made before is under way
(`obey_holds.py`), and the operator's answer names all that may grant (`hold_desk.py`). A grant of the held ticket after the answer
said that everybody acts, and a ticket that nobody will ever grant, are what may not be. Leases and their ends are in `grant`,
sessions with etcd in `leader`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from tests.models.explorer import Broken, Model, Move, swap

ABSENT, WAITS, OVER = 0, 1, 2
SHELF = 2
HELD, OTHER = 0, 1
PLACED, RELEASED = 1, 2


class Process(NamedTuple):
    """One scheduler. `up`: 0 not yet, 1 it read the holds and said so, 2 etcd names it, 3 dead; `hears`: whether it knows of the other as a
    member; `holds`: the revision it acts on in memory; `said`: in the database, -1: nothing yet; `won`: a create revision that is not
    led yet; `read`: whether holds were read since; `confirmed`: and its epoch is in the row; `leads`: its epoch; `memory`: of
    both tickets; `plan`, `put`: under way at the database, the ticket (from 1) and the epoch; `silent`: it was stopped for long before
    etcd named it."""

    up: int = 0
    hears: bool = False
    holds: int = 0
    said: int = -1
    won: int = 0
    read: bool = False
    confirmed: bool = False
    leads: int = 0
    memory: tuple[int, int] = (ABSENT, ABSENT)
    plan: tuple[int, int] = (0, 0)
    put: int = 0
    silent: bool = False


class World(NamedTuple):
    """Everything. `key`: who holds the shard at etcd; `revision`: newest there; `row`: the shard's epoch; `tickets`: in the database;
    `holds`: revision of the table; `asked`: who placed the hold and waits for its answer; `told`: all act, said the answer."""

    processes: tuple[Process, Process]
    key: int | None = 0
    revision: int = 1
    row: int = 1
    tickets: tuple[int, int] = (WAITS, ABSENT)
    holds: int = 0
    asked: int | None = None
    told: bool = False
    gives: int = 1
    deaths: int = 1


FIRST = Process(up=2, said=0, leads=1, memory=(WAITS, ABSENT))


class HandoverModel(Model[World]):
    """The first process leads; the second starts at any time. One hold, one release, a bound on elections."""

    name = "handover"
    about = "shards given to another process while a queue is held: no grant after all act, no ticket lost"
    mutants: ClassVar[Mapping[str, str]] = {
        "wins-unread": "who wins a shard reads the holds before it leads",
        "said-too-early": "a process says that it acts once no plan made before is under way",
        "newcomers-unasked": "the answer waits for processes that etcd does not name yet",
        "leaders-alone-asked": "and for those that lead nothing",
        "read-before-confirmed": "tickets are read once the epoch is confirmed",
        "put-without-compare": "a ticket is stored by who leads only",
        "memory-kept": "who gives a shard up forgets its memory of it",
        "shelf-stays": "what is held no more goes back from the shelf",
        "shelf-dropped": "what is held stays in memory",
    }

    costly: ClassVar[frozenset[str]] = frozenset({"memory-kept", "shelf-stays", "put-without-compare"})

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.elections = 4 if wide else 3
        self.silence = wide or self.without("wins-unread")

    def initial(self) -> World:
        """The first process leads, nothing is held."""
        return World((FIRST, Process()), gives=2 if self.wide else 1, deaths=1 if self.wide else 0)

    def moves(self, state: World) -> Iterator[Move]:
        """Processes start, hear, hold, elect, store, plan, die."""
        for place, process in enumerate(state.processes):
            if process.up in (0, 3):
                if process.up == 0:
                    yield Move(
                        f"process {place} starts",
                        self._put(state, place, process._replace(up=1, holds=state.holds, said=state.holds)),
                    )
                continue
            yield from self._membership(state, place, process)
            yield from self._election(state, place, process)
            yield from self._holds(state, place, process)
            yield from self._tickets(state, place, process)
        yield from self._people(state)

    def _put(self, state: World, place: int, process: Process, **others: Any) -> World:
        return state._replace(processes=swap(state.processes, place, process), **others)

    # ------------------------------------------------------------------------------------------------ processes

    def _membership(self, state: World, place: int, process: Process) -> Iterator[Move]:
        other = state.processes[1 - place]
        if process.up == 1:
            yield Move(f"etcd names process {place}", self._put(state, place, process._replace(up=2)))
            if self.silence and not process.silent:
                yield Move(
                    f"process {place} is stopped for long", self._put(state, place, process._replace(silent=True)), False
                )
        if process.hears != (other.up == 2):
            yield Move(f"process {place} hears who lives", self._put(state, place, process._replace(hears=other.up == 2)))
        if state.deaths:
            asked = None if state.asked == place else state.asked
            dead = self._put(state, place, Process(up=3, said=process.said), deaths=0, asked=asked)
            yield Move(f"process {place} dies", dead._replace(key=None if state.key == place else state.key), False)

    def _election(self, state: World, place: int, process: Process) -> Iterator[Move]:
        if process.up == 2 and state.key is None and not process.won and state.revision < self.elections:
            won = process._replace(won=state.revision + 1, read=self.without("wins-unread"), confirmed=False)
            after = self._put(state, place, won, key=place, revision=state.revision + 1)
            yield Move(f"process {place} wins the shard", after)
        if process.won and not process.read:
            yield Move(
                f"process {place} reads the holds", self._put(state, place, self._obey(state, process)._replace(read=True))
            )
        if process.won and process.read:
            yield from self._takes_over(state, place, process)
        if process.leads and state.gives and state.processes[1 - place].up == 2 and state.key == place:
            memory = process.memory if self.without("memory-kept") else (ABSENT, ABSENT)
            given = self._put(state, place, process._replace(leads=0, memory=memory), key=None, gives=state.gives - 1)
            yield Move(f"process {place} gives the shard up", given, False)

    def _takes_over(self, state: World, place: int, process: Process) -> Iterator[Move]:
        early = self.without("read-before-confirmed")
        loaded = process._replace(memory=self._loaded(state, process))
        if not process.confirmed:
            before = loaded if early else process
            yield Move(
                f"process {place} {'reads the tickets' if early else 'is confirmed'}",
                self._put(state, place, before._replace(confirmed=True), row=state.row if early else process.won),
            )
            return
        leads = (process if early else loaded)._replace(won=0, read=False, confirmed=False, leads=process.won)
        yield Move(f"process {place} leads", self._put(state, place, leads, row=process.won))

    def _loaded(self, state: World, process: Process) -> tuple[int, int]:
        """What waits, on the shelf where it is held. With memory of before, only what it does not know already."""
        if self.without("memory-kept") and process.memory != (ABSENT, ABSENT):
            return process.memory
        held = SHELF if process.holds == PLACED else WAITS
        return (
            held if state.tickets[HELD] == WAITS else ABSENT,
            WAITS if state.tickets[OTHER] == WAITS else ABSENT,
        )

    # ------------------------------------------------------------------------------------------------ holds

    def _obey(self, state: World, process: Process) -> Process:
        """Memory as the table says. Who has no plan under way says so at once."""
        held = process.memory[HELD]
        if state.holds == PLACED and held == WAITS:
            held = ABSENT if self.without("shelf-dropped") else SHELF
        elif state.holds == RELEASED and held == SHELF and not self.without("shelf-stays"):
            held = WAITS
        settled = not process.plan[0] or self.without("said-too-early")
        said = state.holds if settled else process.said
        return process._replace(holds=state.holds, memory=(held, process.memory[OTHER]), said=said, silent=False)

    def _holds(self, state: World, place: int, process: Process) -> Iterator[Move]:
        if process.holds != state.holds:
            yield Move(f"process {place} reads the holds", self._put(state, place, self._obey(state, process)))
        elif process.said != process.holds and not process.plan[0]:
            yield Move(f"process {place} says what it acts on", self._put(state, place, process._replace(said=process.holds)))

    def _people(self, state: World) -> Iterator[Move]:
        if state.holds == 0:
            for place, process in enumerate(state.processes):
                if process.up == 2:
                    placed = state._replace(holds=PLACED, asked=place)
                    yield Move(f"the queue is held, at process {place}", placed, False)
        if state.asked is not None and not state.told and state.holds == PLACED and self._all_act(state, state.asked):
            yield Move("the answer: all act", state._replace(told=True))
        if state.holds == PLACED:
            yield Move("the queue is released", state._replace(holds=RELEASED, told=False, asked=None), False)

    def _all_act(self, state: World, asked: int) -> bool:
        """Those that the asked process knows of as members; and those that spoke to the database lately."""
        mine, other = state.processes[asked], state.processes[1 - asked]
        if mine.said < PLACED:
            return False
        if self.without("leaders-alone-asked"):
            return not other.leads or other.said >= PLACED
        newcomer = other.up in (1, 2) and not other.silent and not self.without("newcomers-unasked")
        return other.said >= PLACED or not (mine.hears or newcomer)

    # ------------------------------------------------------------------------------------------------ tickets

    def _tickets(self, state: World, place: int, process: Process) -> Iterator[Move]:
        if process.leads and state.tickets[OTHER] == ABSENT and not process.put:
            yield Move(f"a ticket comes to process {place}", self._put(state, place, process._replace(put=process.leads)))
        if process.put:
            yield self._stored(state, place, process)
        if process.leads and not process.plan[0]:
            for ticket in (HELD, OTHER):
                if process.memory[ticket] == WAITS:
                    planned = process._replace(plan=(ticket + 1, process.leads))
                    yield Move(f"process {place} plans ticket {ticket}", self._put(state, place, planned))
        if process.plan[0]:
            yield self._granted(state, place, process)

    def _stored(self, state: World, place: int, process: Process) -> Move:
        done = process._replace(put=0)
        if process.put != state.row and not self.without("put-without-compare"):
            return Move(f"process {place} is refused the ticket it brings", self._put(state, place, done))
        fresh = state.tickets[OTHER] == ABSENT
        if process.leads == process.put and fresh:
            done = done._replace(memory=(process.memory[HELD], WAITS))
        tickets = (state.tickets[HELD], WAITS if fresh else state.tickets[OTHER])
        return Move(f"process {place} stores the ticket", self._put(state, place, done, tickets=tickets))

    def _granted(self, state: World, place: int, process: Process) -> Move:
        ticket, epoch = process.plan[0] - 1, process.plan[1]
        mine = process.leads == epoch
        memory = swap(process.memory, ticket, ABSENT) if mine else process.memory
        done = process._replace(plan=(0, 0), memory=memory)
        if epoch != state.row or state.tickets[ticket] != WAITS:
            return Move(f"process {place} is refused the grant of ticket {ticket}", self._put(state, place, done))
        if ticket == HELD and state.told:
            return Move(f"process {place} grants it", Broken("a held ticket is granted after all were said to act"))
        tickets = swap(state.tickets, ticket, OVER)
        return Move(f"process {place} grants ticket {ticket}", self._put(state, place, done, tickets=tickets))

    # ------------------------------------------------------------------------------------------------ rules

    def goals(self) -> Mapping[str, Callable[[World], bool]]:
        """What is not held is granted in the end (or the bound on elections stops it)."""

        def over(state: World) -> bool:
            nobody = all(process.up == 3 for process in state.processes)
            stopped = state.revision >= self.elections and not any(p.leads or p.won for p in state.processes)
            return (
                stopped or nobody or (state.tickets[OTHER] == OVER and (state.tickets[HELD] == OVER or state.holds == PLACED))
            )

        return {"granted": over}
