"""What this process took from buckets, and takes: a call that finds its buckets empty is refused before anything is stored.

A process takes a little ahead of its calls, in one transaction for all of its tenants and buckets, and gives back what it
does not use. Authoritative for nothing: rows say what is in a bucket. Can go wrong: a process that dies with what it took
ahead, a commit whose answer is lost. It is lost, never taken or given back twice: calls are fewer than allowed, not more.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value
from libs.rpc.batcher import Batcher
from libs.telemetry.catalogue import BUCKET_REFUSALS
from services.gateway.domain.buckets import CALLS, Bucket, Got, Kind, Name, Standing, Use, Want, give_back, take
from services.gateway.domain.effect import Outcome, State

AHEAD_MS = 100
"""A process takes ahead what flows into a bucket in this time."""
IDLE_MS = 1_000
"""What was taken ahead and not used for so long goes back."""
REMEMBER_MS = 3_600_000
COMES_AGAIN_MS = 500
"""Who was told to come again in a while is expected for twice that, and this."""
MOST_WAITING = 10_000
LEARN = 0.1

Decide = Callable[[dict[Name, Standing], Mapping[Name, Mapping[str, int]]], dict[Name, Standing]]


class Rows(Protocol):
    """Buckets in the database."""

    async def version(self) -> int:
        """Of everything about buckets."""
        ...

    async def buckets(self) -> list[Bucket]:
        """Every bucket, by name."""
        ...

    async def weights(self) -> dict[Name, dict[str, int]]:
        """Every weight."""
        ...

    async def uses(self, since_ms: int) -> dict[Name, dict[str, Use]]:
        """What tenants took, of those that wanted something since."""
        ...

    async def change(self, names: Sequence[Name], since_ms: int, decide: Decide) -> None:
        """One decision over these buckets, stored. A name without a bucket is left out."""
        ...

    async def forget_uses(self, before_ms: int) -> None:
        """Of who wants nothing any more."""
        ...


@value(frozen=True, slots=True)
class Draw:
    """A tenant wants from a bucket; `least` nothing and `most` below nothing: gives back."""

    name: Name
    want: Want


@value(frozen=True, slots=True)
class Taken:
    """What a call took, by bucket."""

    tenant: str
    units: Mapping[Name, float]


@dataclass(slots=True)
class _Stock:
    units: float = 0.0
    used_ms: int = 0


NOTHING = Taken("", {})


@dataclass(slots=True)
class Buckets:
    """Memory of one process."""

    rows: Rows
    clock: Clock
    bounded: Mapping[tuple[str, str], tuple[Bucket, ...]] = field(default_factory=dict)
    """Buckets by what they stand before."""
    typical: dict[Name, float] = field(default_factory=dict)
    """What a call takes, as calls went here lately."""
    version: int = 0
    _stock: dict[tuple[Name, str], _Stock] = field(default_factory=dict)
    _touched: set[Name] = field(default_factory=set)
    _of_call: dict[UUID, Taken] = field(default_factory=dict)
    _refused: dict[Name, dict[Hashable, tuple[float, int]]] = field(default_factory=dict)
    """Calls that come again: what they want, and until when they are expected."""
    _began: int = field(init=False)
    _draws: Batcher[Draw, Got] = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock.now_ms() - self.clock.monotonic_ms()
        self._draws = Batcher(self._draw, name="draws", in_flight=1)

    @property
    def steady_ms(self) -> int:
        """A wall clock that never jumps."""
        return self._began + self.clock.monotonic_ms()

    async def refresh(self) -> None:
        """Reads what was decided, if anything was since."""
        version = await self.rows.version()
        if version == self.version:
            return
        bounded: dict[tuple[str, str], tuple[Bucket, ...]] = {}
        names = set()
        for bucket in await self.rows.buckets():
            key = (bucket.name.kind, bucket.name.name)
            bounded[key] = (*bounded.get(key, ()), bucket)
            names.add(bucket.name)
        self.bounded, self.version = bounded, version
        self._stock = {key: stock for key, stock in self._stock.items() if key[0] in names}
        self.typical = {name: units for name, units in self.typical.items() if name in names}

    def before(self, tool: str, provider: str) -> list[Bucket]:
        """The buckets that a call takes from."""
        if not self.bounded:
            return []
        kind, name = (Kind.MODEL, tool.removeprefix("model:")) if tool.startswith("model:") else (Kind.TOOL, tool)
        return [*self.bounded.get((kind, name), ()), *self.bounded.get((Kind.PROVIDER, provider), ())]

    def waiting(self, name: Name) -> float:
        """What calls want that were refused here and are expected again."""
        refused, now_ms = self._refused.get(name, {}), self.clock.monotonic_ms()
        for call in [call for call, (_, until_ms) in refused.items() if until_ms < now_ms]:
            del refused[call]
        return sum(cost for cost, _ in refused.values())

    async def take(self, tenant: str, tool: str, provider: str, tokens: int, call: Hashable = None) -> Taken:
        """What one call needs of all its buckets, or a refusal that says when to come again: then nothing is taken. `call`
        names it, so that one that comes again is counted once."""
        buckets = self.before(tool, provider)
        costs = {b.name: min(float(1 if b.name.unit == CALLS else tokens), float(b.capacity)) for b in buckets}
        costs = {name: cost for name, cost in costs.items() if cost > 0}
        if not costs:
            return NOTHING
        now_ms = self.clock.monotonic_ms()
        short: dict[Name, float] = {}
        for name, cost in costs.items():
            stock = self._stock.setdefault((name, tenant), _Stock())
            held = min(max(stock.units, 0.0), cost)
            stock.units -= held
            stock.used_ms = now_ms
            if held < cost:
                short[name] = cost - held
        if short:
            await self._draw_short(tenant, {b.name: b for b in buckets}, costs, short, call)
        if self._refused:
            for name in costs:
                self._refused.get(name, {}).pop(call, None)
        return Taken(tenant, costs)

    async def _draw_short(
        self,
        tenant: str,
        buckets: Mapping[Name, Bucket],
        costs: Mapping[Name, float],
        short: Mapping[Name, float],
        call: Hashable,
    ) -> None:
        """Draws what the stock lacks, and a little ahead; where one has too little, everything goes back to the stock."""
        asks = [
            Draw(name, Want(tenant, least, least + buckets[name].per_minute * AHEAD_MS / 60_000))
            for name, least in short.items()
        ]
        answers = await asyncio.gather(*(self._draws.submit(ask) for ask in asks), return_exceptions=True)
        failed: BaseException | None = None
        dry: tuple[Name, int] | None = None
        missing: set[Name] = set()
        for ask, got in zip(asks, answers, strict=True):
            if isinstance(got, BaseException):
                failed = failed or got
                missing.add(ask.name)
            elif got.units <= 0:
                dry = (ask.name, got.wait_ms) if dry is None or got.wait_ms > dry[1] else dry
                missing.add(ask.name)
            else:
                self._kept(ask.name, tenant).units += got.units - ask.want.least
        if not missing:
            return
        for name, cost in costs.items():
            self._kept(name, tenant).units += cost - (short[name] if name in missing else 0.0)
        if failed is not None:
            raise failed
        assert dry is not None
        refused = self._refused.setdefault(dry[0], {})
        if len(refused) < MOST_WAITING:
            refused[call] = (costs[dry[0]], self.clock.monotonic_ms() + 2 * dry[1] + COMES_AGAIN_MS)
        raise saturated(*dry)

    def _kept(self, name: Name, tenant: str) -> _Stock:
        """What is kept of a bucket; it may have been given up, or the bucket removed, while a draw took its time."""
        return self._stock.setdefault((name, tenant), _Stock(used_ms=self.clock.monotonic_ms()))

    def hold(self, nonce: UUID, taken: Taken) -> None:
        """What the call of this nonce took; `settle` follows."""
        if taken.units:
            self._of_call[nonce] = taken

    def settle(self, nonce: UUID, outcome: Outcome | None) -> None:
        """The call is over. What it did not use goes back, more than it took is owed; where nobody knows, all is used."""
        if outcome is not None and outcome.state is State.NOT_SENT:
            self.withdraw(nonce)
            return
        taken = self._of_call.pop(nonce, NOTHING)
        if outcome is None or outcome.state is not State.SUCCEEDED or not outcome.tokens:
            return
        for name, units in taken.units.items():
            if name.unit != CALLS:
                self._stock.setdefault((name, taken.tenant), _Stock()).units += units - outcome.tokens
                known = self.typical.get(name, units)
                self.typical[name] = known + LEARN * (outcome.tokens - known)

    def withdraw(self, nonce: UUID) -> None:
        """The call of this nonce is not made."""
        taken = self._of_call.pop(nonce, NOTHING)
        for name, units in taken.units.items():
            self._stock.setdefault((name, taken.tenant), _Stock()).units += units

    async def give_back(self, *, everything: bool = False) -> None:
        """What was taken ahead and is not used; what is owed."""
        now_ms = self.clock.monotonic_ms()
        idle = [
            (key, stock)
            for key, stock in self._stock.items()
            if everything or stock.units < 0 or now_ms - stock.used_ms > IDLE_MS
        ]
        asks = []
        for key, stock in idle:
            if stock.units:
                asks.append((key, stock.units))
                stock.units = 0.0
            elif now_ms - stock.used_ms > IDLE_MS:
                del self._stock[key]
        if not asks:
            return
        draws = [Draw(name, Want(tenant, 0.0, -units)) for (name, tenant), units in asks]
        answers = await asyncio.gather(*(self._draws.submit(draw) for draw in draws), return_exceptions=True)
        for (key, units), answer in zip(asks, answers, strict=True):
            if isinstance(answer, Refusal) and (units < 0 or not _may_stand(answer)):  # the database is away: later
                self._stock.setdefault(key, _Stock(used_ms=now_ms)).units += units

    async def close(self) -> None:
        """On the way out: gives everything back."""
        await self.give_back(everything=True)
        await self._draws.close()

    async def forget(self) -> None:
        """Uses of who wants nothing any more."""
        await self.rows.forget_uses(self.steady_ms - REMEMBER_MS)

    async def _draw(self, draws: list[Draw]) -> list[Got]:
        """One decision for all of them."""
        by_name: dict[Name, list[int]] = {}
        for place, draw in enumerate(draws):
            by_name.setdefault(draw.name, []).append(place)
        now_ms = self.steady_ms
        got: list[Got] = []

        def decide(standings: dict[Name, Standing], weights: Mapping[Name, Mapping[str, int]]) -> dict[Name, Standing]:
            got[:] = [Got(max(draw.want.least, 0.0)) for draw in draws]  # a bucket that was taken away bounds nothing
            for name, standing in standings.items():
                places = by_name[name]
                for place in [p for p in places if draws[p].want.least <= 0]:
                    standing = give_back(standing, draws[place].want.tenant, -draws[place].want.most, now_ms)
                taking = [p for p in places if draws[p].want.least > 0]
                first = name not in self._touched
                standing, answers = take(
                    standing, weights.get(name, {}), [draws[p].want for p in taking], now_ms, first_touch=first
                )
                standings[name] = standing
                for place, answer in zip(taking, answers, strict=True):
                    got[place] = answer
            return standings

        await self.rows.change(list(by_name), now_ms - REMEMBER_MS, decide)
        self._touched.update(by_name)
        return got


def _may_stand(refusal: Refusal) -> bool:
    """Whether nobody knows if it was committed. What may have gone back does not go back again; what is owed is owed on."""
    return refusal.detail.get("commit") == "unknown"


def saturated(name: Name, wait_ms: int) -> Refusal:
    """The bucket has too little for this tenant now."""
    BUCKET_REFUSALS.labels(name.kind, name.unit).inc()
    return Refusal(
        Reason.PROVIDER_SATURATED,
        f"the bucket of {name.text} has too little for this call now",
        remedy="repeat the same call after the time given; nothing was decided",
        retry_after_ms=wait_ms,
        detail={"bucket": name.text},
    )
