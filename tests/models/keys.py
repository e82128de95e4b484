"""Keys: one API key, launch's row of it, and a process that believes for a while what launch said of it (`libs/rpc/directory.py`).

As the code has it: one look-up at a time, begun beside the calls, waited for with patience, its answer believed from when it was asked;
an authority that is away makes what was known count on, for so long. Time is in steps: a look-up takes none or many. Each process is
like any other, so one is enough. Expiry needs no answer of launch, and is a unit test.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

from tests.models.explorer import Broken, Model, Move

TTL, UNKNOWN, PATIENCE, OUTAGE, DEADLINE = 2, 1, 1, 5, 4
"""How long what is known, and what is unknown, is believed; how long a look-up is waited for; for how long an outage lasts at most before
nothing is believed; when a look-up is given up."""


class Lookup(NamedTuple):
    """A question on its way to launch, or its answer on its way back."""

    began: int
    read: str = ""


class Entry(NamedTuple):
    """What the process believes, since when; `failed`: launch did not answer since."""

    known: bool
    since: int
    failed: bool = False


class Believing(NamedTuple):
    """Everything. `told`: when the revocation was answered; `waits`: when the call came that waits for a look-up."""

    moment: int = 0
    row: bool = True
    told: int = -1
    entry: Entry | None = None
    lookups: tuple[Lookup, ...] = ()
    waits: int = -1


class KeysModel(Model[Believing]):
    """One key, one process."""

    name: ClassVar[str] = "keys"
    about: ClassVar[str] = (
        "a revoked key is refused everywhere once what was believed of it is over, later only where launch is silent"
    )
    mutants: ClassVar[Mapping[str, str]] = {
        "believed-for-a-while": "what is known is believed for a while",
        "since-it-was-asked": "an answer is believed from when it was asked, not from when it came",
        "commit-first": "a revocation is answered after its commit",
        "outage-ends": "what was known before an outage counts for so long",
        "unknown-stays": "an outage never revives a key that is unknown",
        "given-up": "a look-up is given up",
    }

    @property
    def _last(self) -> int:
        return 9 if self.wide else 7

    def initial(self) -> Believing:
        """Nobody has used the key."""
        return Believing()

    def moves(self, state: Believing) -> Iterator[Move]:
        """Time, people, launch, calls."""
        if state.moment < self._last:
            yield Move("time passes", self._given_up(state._replace(moment=state.moment + 1)), fair=False)
        if state.told < 0:
            committed = state.row and self.without("commit-first")
            yield Move("people revoke it", state._replace(row=committed, told=state.moment), fair=False)
        elif state.row:
            yield Move("the revocation is committed", state._replace(row=False))
        for place, lookup in enumerate(state.lookups):
            yield from self._lookup(state, place, lookup)
        if state.waits < 0:
            yield Move("a call comes with it", self._call(state), fair=False)
        elif self._impatient(state):
            yield Move("the call waits no longer", self._accepted(state._replace(waits=-1), state.waits))

    # -- look-ups

    def _lookup(self, state: Believing, place: int, lookup: Lookup) -> Iterator[Move]:
        rest = (*state.lookups[:place], *state.lookups[place + 1 :])
        if not lookup.read:
            read = lookup._replace(read="known" if state.row else "unknown")
            yield Move(
                "launch reads its row", state._replace(lookups=(*state.lookups[:place], read, *state.lookups[place + 1 :]))
            )
        else:
            since = state.moment if self.without("since-it-was-asked") else lookup.began
            entry = Entry(lookup.read == "known", since)
            answered = state._replace(entry=entry, lookups=rest, waits=-1)
            if state.waits >= 0 and entry.known:
                late = state.moment - lookup.began >= PATIENCE
                yield Move("launch's answer comes", self._accepted(answered, state.waits, excused=late))
            else:
                yield Move("launch's answer comes", answered)
        yield Move("launch does not answer", self._failed(state, rest), fair=False)

    def _failed(self, state: Believing, rest: tuple[Lookup, ...]) -> Believing | Broken:
        """Without an answer what was known counts on; a call that waits for a key that is not known is refused."""
        left = state._replace(lookups=rest, waits=-1)
        entry = state.entry
        if entry is None or not (entry.known or self.without("unknown-stays")) or not self._lasts(state, entry):
            return left
        after = left._replace(entry=entry._replace(known=True, failed=True))
        return self._accepted(after, state.waits) if state.waits >= 0 else after

    def _lasts(self, state: Believing, entry: Entry) -> bool:
        return state.moment - entry.since < OUTAGE or self.without("outage-ends")

    def _given_up(self, state: Believing) -> Believing | Broken:
        over = [one for one in state.lookups if state.moment - one.began >= DEADLINE]
        if not over or self.without("given-up"):
            return state
        return self._failed(state, tuple(one for one in state.lookups if one not in over))

    def _asked(self, state: Believing) -> Believing:
        return state if state.lookups else state._replace(lookups=(Lookup(state.moment),))

    # -- calls

    def _call(self, state: Believing) -> Believing | Broken:
        """As `CachedDirectory.resolve` has it."""
        entry = state.entry
        if entry is None or not entry.known:
            if entry is not None and state.moment - entry.since < UNKNOWN:
                return state
            return self._asked(state)._replace(waits=state.moment)
        age = state.moment - entry.since
        asked = self._asked(state) if 2 * age >= TTL else state
        if age >= TTL and not self.without("believed-for-a-while") and (not entry.failed or not self._lasts(state, entry)):
            return asked._replace(waits=state.moment)
        return self._accepted(asked, state.moment)

    def _impatient(self, state: Believing) -> bool:
        entry = state.entry
        patient = entry is None or not entry.known or not self._lasts(state, entry)
        return not patient and state.moment - state.waits >= PATIENCE and bool(state.lookups)

    def _accepted(self, state: Believing, came: int, *, excused: bool = False) -> Believing | Broken:
        if state.told < 0 or came < state.told:
            return state
        late = state.moment - state.told
        silent = excused or (state.entry is not None and state.entry.failed)
        silent = silent or any(state.moment - one.began >= PATIENCE for one in state.lookups)
        if late >= TTL and not silent:
            return Broken("a key is accepted long after its revocation was answered, and launch answers")
        if late >= OUTAGE:
            return Broken("a key is accepted whatever time has passed since its revocation")
        return state

    def broken(self, state: Believing) -> str:
        """What is believed was said by launch."""
        entry = state.entry
        if entry is not None and entry.known and not state.row and state.told >= 0 and entry.since > state.told:
            return "a key is believed since after its revocation was answered"
        return ""
