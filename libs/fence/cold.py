"""Authoritative for what happens when a point does not know enough: it asks the authorities, merges, stamps, judges again.

Launch answers for gates and scopes, the scheduler for every step of the run but first grants that are live: stamping a gate
says "anything newer would have been raised or re-seeded" of the whole run, so a read of one step would say too much.

Can go wrong: stamping with an incarnation that began after the read (a promotion in between would go unnoticed, so it is
read before the first question); joining a read that was already sent (it may have been answered before our token was
signed, and the holder of a good lease would be fenced); allowing because nobody answered (never: AUTHORITY_UNREACHABLE).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar
from uuid import UUID

from runway.internal.fence.v1 import fence_pb2

from libs.fence.refusals import expired, fenced
from libs.fence.store import FenceStore
from libs.fence.values import Asked, GateValue, StepValue, Verdict
from libs.fence.wire import gate_from, scope_from, step_from
from libs.kernel.epochs import Mode, StepFence, make_epoch
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.kernel.values import value
from libs.pg import Database, Tx

MAX_ROUNDS = 3
"""Judgements of one item: the first, the one after a cold read, and one more where the database was promoted in between."""


class Authorities(Protocol):
    """Who answers for fences: `Peers` of the process."""

    async def get_fences(self, service: str, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """The authority's present fences. Raises Refusal where it does not answer."""
        ...


@value(frozen=True, slots=True)
class Found:
    """What one cold read brought for one run. `confirmed`: what the scheduler itself says of the steps asked."""

    started_in: int
    refusal: Refusal | None = None
    confirmed: Mapping[str, StepFence] = field(default_factory=dict)


@dataclass(slots=True)
class _Waiting:
    steps: set[str]
    epoch: int
    answer: "asyncio.Future[Found]"


class ColdReader:
    """Reads fences cold: one read per run at a time, many runs in one, spread by a little jitter."""

    def __init__(
        self,
        db: Database,
        authorities: Authorities,
        *,
        keeps_steps: bool = True,
        timeout_ms: int = 2_000,
        max_runs: int = 200,
        flights: int = 2,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`jitter` gives seconds to wait before a read that follows another one; it spreads the storm after a promotion."""
        self._db = db
        self._authorities = authorities
        self.keeps_steps = keeps_steps
        self._timeout_ms = timeout_ms
        self._max_runs = max_runs
        self._flights = flights
        self._jitter = jitter
        self._waiting: dict[UUID, _Waiting] = {}
        self._busy: set[UUID] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def incarnation(self) -> int:
        """The incarnation of the point's database as now known."""
        return self._db.incarnation

    async def close(self) -> None:
        """Gives up the reads under way; who waits for them is cancelled."""
        for waiting in self._waiting.values():
            waiting.answer.cancel()
        self._waiting.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def read(self, asked: Iterable[Asked]) -> dict[UUID, Found]:
        """Reads the runs of these items cold. Never raises for an authority that is away: `Found.refusal` says so per run."""
        answers: dict[UUID, asyncio.Future[Found]] = {}
        for item in asked:
            waiting = self._waiting.get(item.run_id)
            if waiting is None:
                waiting = _Waiting(set(), 0, asyncio.get_running_loop().create_future())
                self._waiting[item.run_id] = waiting
            waiting.steps.add(item.step_key)
            waiting.epoch = max(waiting.epoch, item.epoch)
            answers[item.run_id] = waiting.answer
        self._launch_flights()
        found = await asyncio.gather(*[asyncio.shield(answer) for answer in answers.values()])
        return dict(zip(answers, found, strict=True))

    def _launch_flights(self) -> None:
        while len(self._tasks) < self._flights:
            ready = [run_id for run_id in self._waiting if run_id not in self._busy][: self._max_runs]
            if not ready:
                return
            batch = {run_id: self._waiting.pop(run_id) for run_id in ready}
            self._busy |= batch.keys()
            # A flight is many calls': with the context of the first, it would end with that one's deadline.
            task = asyncio.get_running_loop().create_task(self._fly(batch), name="cold read", context=Context())
            self._tasks.add(task)
            task.add_done_callback(lambda done, runs=frozenset(batch): self._landed(done, runs))  # type: ignore[misc]

    def _landed(self, task: "asyncio.Task[None]", runs: frozenset[UUID]) -> None:
        self._tasks.discard(task)
        self._busy -= runs
        self._launch_flights()

    async def _fly(self, batch: dict[UUID, _Waiting]) -> None:
        started_in = self._db.incarnation
        try:
            found = await self._read(batch, started_in)
        except asyncio.CancelledError:
            for waiting in batch.values():
                waiting.answer.cancel()
            raise
        except Refusal as no:
            found = {run_id: Found(started_in, no) for run_id in batch}
        except Exception as cause:  # whatever went wrong, nothing was decided, and nobody may wait for ever
            nobody = unreachable("the authority of the run's fences")
            nobody.__cause__ = cause
            found = {run_id: Found(started_in, nobody) for run_id in batch}
        for run_id, waiting in batch.items():
            waiting.answer.set_result(found[run_id])

    async def _read(self, batch: dict[UUID, _Waiting], started_in: int) -> dict[UUID, Found]:
        runs = sorted(batch)
        names = [(run_id, step_key) for run_id in runs for step_key in sorted(batch[run_id].steps)]
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                if (pause := self._jitter()) > 0:
                    await asyncio.sleep(pause)
                launch, steps = await asyncio.gather(self._ask_launch(runs), self._ask_scheduler(runs, names))
        except TimeoutError:
            raise unreachable("the authority of the run's fences") from None
        gates = [gate_from(gate) for gate in launch.gates]
        if [gate.run_id for gate in gates] != runs or len(steps.steps) < (len(names) if self.keeps_steps else 0):
            raise unreachable("an authority that answers for every run asked")
        confirmed: dict[UUID, dict[str, StepFence]] = {run_id: {} for run_id in runs}
        kept: list[StepValue] = []
        for place, message in enumerate(steps.steps):
            step = step_from(message)
            if place < len(names):
                confirmed[step.run_id][step.step_key] = step.fence
            if not message.live_first_grant and step.fence.lease_epoch > 0:
                kept.append(step)

        async def write(tx: Tx) -> None:
            store = FenceStore(tx)
            await store.merge_scopes([scope_from(s) for s in launch.scopes])
            presented = {run_id: waiting.epoch for run_id, waiting in batch.items()}
            closed = await close_unknown(store, gates, presented, launch.incarnation)
            await store.merge_cold(closed, kept, [], started_in=started_in)

        await self._db.run(write)
        return {run_id: Found(started_in, None, confirmed[run_id]) for run_id in runs}

    async def _ask_launch(self, runs: Sequence[UUID]) -> fence_pb2.GetFencesResponse:
        request = fence_pb2.GetFencesRequest(service="launch", run_ids=[run_id.bytes for run_id in runs])
        return await self._authorities.get_fences("launch", request)

    async def _ask_scheduler(self, runs: Sequence[UUID], names: Sequence[tuple[UUID, str]]) -> fence_pb2.GetFencesResponse:
        if not self.keeps_steps:
            return fence_pb2.GetFencesResponse()
        request = fence_pb2.GetFencesRequest(
            service="scheduler",
            run_ids=[run_id.bytes for run_id in runs],
            steps=[fence_pb2.StepName(run_id=run_id.bytes, step_key=step_key) for run_id, step_key in names],
        )
        return await self._authorities.get_fences("scheduler", request)


async def close_unknown(
    store: FenceStore, gates: Sequence[GateValue], presented: Mapping[UUID, int], incarnation: int
) -> list[GateValue]:
    """A run that launch does not know (closed, epoch zero) is closed above whatever epoch is held or was presented here.
    Takes the gates' locks, so scopes are merged before."""
    unknown = {gate.run_id for gate in gates if gate.mode is Mode.CLOSED and gate.epoch == 0}
    if not unknown:
        return list(gates)
    await store.lock_gates_to_raise([gate.run_id for gate in gates])
    held = await store.gates(unknown)
    floor = make_epoch(incarnation, 0)
    return [
        replace(g, epoch=max(floor, presented.get(g.run_id, 0), held[g.run_id].value.epoch)) if g.run_id in unknown else g
        for g in gates
    ]


class Judged(Protocol):
    """What a point's judging function returns per item; it may say much more than the verdict."""

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        ...


T = TypeVar("T")
J = TypeVar("J", bound=Judged)


async def admit_with_cold_reads(
    items: Sequence[T],
    judge: Callable[[Sequence[T]], Awaitable[Sequence[J]]],
    reader: ColdReader,
    asked_of: Callable[[T], Asked],
) -> list[J | Refusal]:
    """Judges a batch; what is cold is read from the authorities and judged again; what is still cold is LEASE_FENCED.

    `judge` commits its own transaction and may be called again with the items that are left. An item whose token has expired
    is read cold before it is judged at all, and must be confirmed by the scheduler. Never allows because nobody answered.
    """
    answers: dict[int, J | Refusal] = {}
    await _revalidate(items, reader, asked_of, answers)
    left = [place for place in range(len(items)) if place not in answers]
    read_in: dict[int, int] = {}
    for _ in range(MAX_ROUNDS):
        if not left:
            break
        cold: list[int] = []
        for place, judged in zip(left, await judge([items[place] for place in left]), strict=True):
            answers[place] = judged
            if judged.verdict is Verdict.COLD:
                cold.append(place)
        known = reader.incarnation
        for place in [place for place in cold if read_in.get(place) == known]:
            answers[place] = fenced(asked_of(items[place]))
            cold.remove(place)
        left = await _read(items, cold, reader, asked_of, answers, read_in) if cold else []
    for place in left:
        answers[place] = unreachable("a database that stays the same between a cold read and its use")
    return [answers[place] for place in range(len(items))]


async def _revalidate(
    items: Sequence[T], reader: ColdReader, asked_of: Callable[[T], Asked], answers: dict[int, J | Refusal]
) -> None:
    """Asks the scheduler whether leases with dead tokens live. A clock that jumped must not stop the world."""
    dead = {place: asked_of(item) for place, item in enumerate(items) if asked_of(item).expired}
    if not dead:
        return
    found = await reader.read(dead.values())
    for place, asked in dead.items():
        about = found[asked.run_id]
        if about.refusal is not None:
            answers[place] = expired(asked) if about.refusal.reason is Reason.AUTHORITY_UNREACHABLE else about.refusal
        elif reader.keeps_steps and about.confirmed.get(asked.step_key) != asked.fence:
            answers[place] = fenced(asked)


async def _read(
    items: Sequence[T],
    cold: Sequence[int],
    reader: ColdReader,
    asked_of: Callable[[T], Asked],
    answers: dict[int, J | Refusal],
    read_in: dict[int, int],
) -> list[int]:
    """Reads what is cold and says what is to be judged again; what could not be read has its answer."""
    found = await reader.read([asked_of(items[place]) for place in cold])
    again: list[int] = []
    for place in cold:
        about = found[asked_of(items[place]).run_id]
        if about.refusal is not None:
            answers[place] = about.refusal
        else:
            read_in[place] = about.started_in
            again.append(place)
    return again
