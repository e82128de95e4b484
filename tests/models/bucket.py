"""A token bucket: two gateways that take ahead of their calls, commits whose answers are lost, calls that are not made or use more.

The decisions are the product's own (`services/gateway/domain/buckets.py`: `take`, `give_back`); around them, as the code has it
(`services/gateway/app/draw_buckets.py`): the stock of a process, what a call holds by its nonce, what goes back when it is idle.
One tenant, whole units, one flows in at a tick. The rule is conservation: nothing is in the row, in a stock, with a call, under
way or used that was not in the bucket at first or flowed in since. Units may be lost, by deaths and doubts; what a dying process
owed is forgiven.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

from services.gateway.domain.buckets import CALLS, Bucket, Kind, Name, Standing, Want, filled, give_back, take
from tests.models.explorer import Broken, Model, Move, swap

NAME = Name(Kind.TOOL, "t", CALLS)
CAPACITY = 2
TICK_MS = 1_000
PER_MINUTE = 60
AHEAD = 1
DRAW, BACK = "draw", "back"


class Gateway(NamedTuple):
    """One process. `stock`: units taken and not used, below nothing: owed; `call`: what its one call holds; `ask`: the change of the
    row under way; `units`: what goes back by it; `doubt`: 1 its answer is lost and it did not happen, 2 it did."""

    stock: int = 0
    call: int = 0
    ask: str = ""
    units: int = 0
    doubt: int = 0

    @property
    def held(self) -> int:
        """Units that are with this process, or on their way from it to the row."""
        return self.stock + self.call + (self.units if self.doubt < 2 else 0)


class World(NamedTuple):
    """Everything. `level`: in the row as of `age` ticks ago; `used`: units of calls that were made; `over`: calls that may still use
    one unit more than they took; `doubts`: commits that may still be lost or be of unknown end; `deaths`: processes that may still
    die; `forgiven`: what they owed."""

    gateways: tuple[Gateway, ...] = (Gateway(), Gateway())
    level: int = CAPACITY
    age: int = 0
    ticks: int = 0
    used: int = 0
    over: int = 1
    doubts: int = 1
    deaths: int = 1
    forgiven: int = 0


@cache
def drawn(level: int, age: int) -> tuple[int, int]:
    """What a draw leaves in the row, and what it got: a call's unit, and one ahead where there is one."""
    standing, (got,) = take(_standing(level), {}, [Want("acme", 1.0, 1.0 + AHEAD)], age * TICK_MS)
    return round(standing.bucket.level), round(got.units)


@cache
def returned(level: int, age: int, units: int) -> int:
    """What is in the row once so much went back."""
    return round(give_back(_standing(level), "acme", units, age * TICK_MS).bucket.level)


@cache
def there(level: int, age: int) -> int:
    """What is in the row now."""
    return round(filled(_standing(level).bucket, age * TICK_MS).level)


def _standing(level: int) -> Standing:
    return Standing(Bucket(NAME, CAPACITY, PER_MINUTE, float(level), 0), {})


class BucketModel(Model[World]):
    """Two gateways, a call each at a time; a bound on time, calls, doubts and deaths."""

    name = "bucket"
    about = "a token bucket: units taken ahead, given back, owed; commits in doubt, processes that die"
    mutants: ClassVar[Mapping[str, str]] = {
        "return-in-doubt-again": "what may have gone back already does not go back again",
        "debt-in-doubt-dropped": "what is owed is owed until it is known to be paid",
        "draw-in-doubt-counts": "what may have been taken counts as lost, not as taken",
        "return-stays-in-stock": "what goes back leaves the stock before the row is asked",
        "given-up-twice": "what a call held goes back once, by its nonce",
        "made-and-given-up": "what a call that was made held does not go back",
        "more-is-free": "what a call used beyond what it took is owed",
        "read-before-lock": "a change reads the row under its lock",
        "refused-is-lost": "what the database refused to take back goes back later",
    }

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.most_ticks = 3 if wide else 1
        self.most_used = 5 if wide else 4

    def initial(self) -> World:
        """A full bucket that nobody wants anything of."""
        return World(doubts=2, over=2) if self.wide else World()

    def moves(self, state: World) -> Iterator[Move]:
        """Time, calls, changes of the row, doubts and deaths."""
        if state.ticks < self.most_ticks:
            yield Move("a unit flows in", state._replace(age=state.age + 1, ticks=state.ticks + 1), False)
        for place, gateway in enumerate(state.gateways):
            for label, after, others, fair in self._of(state, place, gateway):
                yield Move(f"gateway {place}: {label}", self._judged(self._put(state, place, after, **others)), fair)
            if gateway.ask and not gateway.doubt and self.without("read-before-lock"):
                yield from self._overwritten(state, place)

    def _put(self, state: World, place: int, gateway: Gateway, **others: Any) -> World:
        return state._replace(gateways=swap(state.gateways, place, gateway), **others)

    def _of(self, state: World, place: int, gateway: Gateway) -> Iterator[tuple[str, Gateway, dict[str, int], bool]]:
        """What may happen to one process."""
        if gateway.ask:
            yield from self._row(state, gateway)
        else:
            if not gateway.call and state.used < self.most_used:
                yield from self._begins(gateway)
            if gateway.stock:
                left = gateway.stock if self.without("return-stays-in-stock") else 0
                yield "what it has goes back", gateway._replace(ask=BACK, units=gateway.stock, stock=left), {}, True
        if gateway.call:
            yield from self._ends(state, gateway)
        if state.deaths and gateway != Gateway():
            owed = max(0, -gateway.held)
            yield "dies", Gateway(), {"deaths": state.deaths - 1, "forgiven": state.forgiven + owed}, False

    def _begins(self, gateway: Gateway) -> Iterator[tuple[str, Gateway, dict[str, int], bool]]:
        if gateway.stock >= 1:
            yield "a call takes from the stock", gateway._replace(stock=gateway.stock - 1, call=1), {}, False
        else:
            yield "a call draws", gateway._replace(ask=DRAW), {}, False

    def _ends(self, state: World, gateway: Gateway) -> Iterator[tuple[str, Gateway, dict[str, int], bool]]:
        over, back = gateway._replace(call=0), gateway._replace(call=0, stock=gateway.stock + 1)
        yield "its call is not made", back, {}, True
        if self.without("given-up-twice"):
            yield "its call is given up twice", back._replace(stock=back.stock + 1), {}, False
        yield "its call is made", back if self.without("made-and-given-up") else over, {"used": state.used + 1}, True
        if state.over:
            owes = over if self.without("more-is-free") else over._replace(stock=over.stock - 1)
            yield "its call is made and uses one more", owes, {"used": state.used + 2, "over": state.over - 1}, False

    def _changed(self, level: int, age: int, gateway: Gateway) -> tuple[int, Gateway, Gateway]:
        """The row's change: its level, the process with the answer, and without."""
        if gateway.ask == DRAW:
            after, got = drawn(level, age)
            answered = gateway._replace(ask="", call=1, stock=gateway.stock + got - 1) if got else gateway._replace(ask="")
        else:
            after, answered = returned(level, age, gateway.units), gateway._replace(ask="", units=0)
        return after, answered, gateway._replace(doubt=2)

    def _row(self, state: World, gateway: Gateway) -> Iterator[tuple[str, Gateway, dict[str, int], bool]]:
        """Done and answered; refused; or in doubt, after it was done or without."""
        if gateway.doubt:
            yield "goes on after a doubt", self._after_doubt(gateway), {}, True
            return
        level, answered, doubted = self._changed(state.level, state.age, gateway)
        row = {"level": level, "age": 0}
        yield f"its {gateway.ask} is committed", answered, row, True
        if state.doubts:
            less = {"doubts": state.doubts - 1}
            yield f"its {gateway.ask} is committed, the answer is lost", doubted, row | less, False
            yield f"its {gateway.ask} is lost, and nobody tells", gateway._replace(doubt=1), less, False
            kept = 0 if self.without("refused-is-lost") else gateway.units
            yield f"its {gateway.ask} is refused", gateway._replace(ask="", units=0, stock=gateway.stock + kept), less, False

    def _after_doubt(self, gateway: Gateway) -> Gateway:
        """What a process makes of a change of which nobody knows."""
        over = gateway._replace(ask="", units=0, doubt=0)
        if gateway.ask == DRAW:
            return over._replace(call=1) if self.without("draw-in-doubt-counts") else over
        owed = gateway.units < 0 and not self.without("debt-in-doubt-dropped")
        again = owed or (gateway.units > 0 and self.without("return-in-doubt-again"))
        return over._replace(stock=over.stock + gateway.units) if again else over

    def _overwritten(self, state: World, place: int) -> Iterator[Move]:
        """Both look at the row before either has written: the last one's change is all that stays."""
        other = 1 - place
        theirs = state.gateways[other]
        if theirs.ask and not theirs.doubt:
            _, first, _ = self._changed(state.level, state.age, theirs)
            level, second, _ = self._changed(state.level, state.age, state.gateways[place])
            both = self._put(self._put(state, other, first), place, second, level=level, age=0)
            yield Move(f"the row changes for both, for gateway {place} last", self._judged(both), False)

    def _judged(self, state: World) -> World | Broken:
        """Nothing comes from nothing."""
        somewhere = there(state.level, state.age) + sum(gateway.held for gateway in state.gateways) + state.used
        if somewhere > CAPACITY + state.ticks + state.forgiven:
            return Broken("more units than the bucket held and than flowed in")
        return state

    def broken(self, state: World) -> str:
        """A burst is at most the capacity."""
        return "the bucket holds more than its capacity" if state.level > CAPACITY else ""

    def canonical(self, state: World) -> World:
        """The two processes are alike, and a full bucket is as old as one likes."""
        full = there(state.level, state.age) == CAPACITY
        state = state._replace(level=CAPACITY, age=0) if full else state
        return state._replace(gateways=tuple(sorted(state.gateways)))

    def goals(self) -> Mapping[str, Callable[[World], bool]]:
        """Nothing is held for ever that no call uses, nor owed."""
        return {"at rest": lambda state: all(gateway == Gateway() for gateway in state.gateways)}
