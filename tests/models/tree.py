"""A spawn beside a cancel, and its slice of the parent's envelope: launch's rows, the gateway's gate, and everything in
between.

As the code has it: a command may come again at any time and in two processes at once
(`services/launch/app/spawn_children.py`); the slice is taken at the gateway first, by its name
(`services/gateway/domain/envelopes.py`), then the child is stored behind the parent's lock or refused; a decision about the
parent takes everything below it in its transaction (`decide_outcomes.py`); a child that has settled, or never was, gives back
what it did not use, in a message that may come twice. A capability may be taken from the parent, and with it from what is below
(`revoke_capabilities.py`). Calls spend what is free at the gates. A spawn that lacks money may wait, and is judged again, as often as
it takes: it keeps its slice's name, and what was taken under it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from tests.models.explorer import Model, Move

GRANTED, RAISE, SLICE = 1, 1, 1
HELD = "held"
REPEATS = 3
NONE, OPEN, CLOSED, DONE, REFUSED = "none", "open", "closed", "done", "refused"
OUT, BACK = "out", "back"
ASKS, TOOK, POOR = "asks", "took", "poor"


class Tree(NamedTuple):
    """Everything. `judging`: processes that have asked the gateway and not committed yet; `read`: a cancel that has looked
    for children and not locked them, which only a mutant has; `returns`: what comes back, on its way."""

    parent: str = OPEN
    child: str = NONE
    gate: bool = True
    child_gate: bool = True
    slice: str = NONE
    delegated: int = 0
    used: int = 0
    child_used: int = 0
    told: int = 0
    judging: tuple[str, ...] = ()
    returns: tuple[int, ...] = ()
    read: str = ""
    granted: int = GRANTED
    parent_may: bool = True
    child_may: bool = True
    taking: str = ""
    """What a revocation saw of the child before it locked anything, which only a mutant does."""

    @property
    def free(self) -> int:
        """At the parent's gate."""
        return self.granted - self.used - self.delegated


class TreeModel(Model[Tree]):
    """One parent and one child that its step spawns."""

    name = "tree"
    about = "a spawn leaves no orphan beside a cancel, a slice is taken and given back once, a parent ends after its child"
    mutants: ClassVar[Mapping[str, str]] = {
        "parent-not-looked-at": "a spawn is stored only under a parent that is open, behind its lock",
        "cancel-reads-first": "a decision locks the parent before it looks for its children",
        "slice-not-first": "a child is stored only once its slice is taken",
        "slice-not-named": "a slice that is out is not taken again",
        "taken-after-return": "a slice that came back is not taken again",
        "slice-kept": "a spawn that is refused gives its slice back",
        "only-taken-comes-back": "a spawn that is refused gives its slice back, whoever took it, and also before it is taken",
        "returned-twice": "a slice comes back once",
        "all-comes-back": "what a child has used does not come back",
        "parent-before-child": "a parent becomes terminal after its child",
        "child-not-closed": "a decision about the parent closes its child",
        "held-gives-back": "a spawn that waits keeps its slice's name: what came back is not taken again",
        "held-forgotten": "a spawn that waits is judged again, and refused once its parent is decided",
        "held-made-blindly": "a spawn that waited is stored only under a parent that is open, behind its lock",
        "child-not-narrowed": "what is taken from the parent is taken from its child",
        "revocation-reads-first": "a revocation locks the parent before it looks for its children",
        "spawn-reads-first": "a spawn intersects with what the parent has behind its lock",
    }

    def initial(self) -> Tree:
        return Tree()

    def moves(self, state: Tree) -> Iterator[Move]:
        yield from self._asks(state)
        yield from self._judges(state)
        yield from self._decides(state)
        yield from self._settles(state)
        if state.granted == GRANTED and state.parent == OPEN:
            yield Move("the budget is raised", state._replace(granted=GRANTED + RAISE), fair=False)
        if state.gate and state.free > 0:
            yield Move("the parent's call", state._replace(used=state.used + 1), fair=False)
        if state.child == OPEN and state.child_gate and state.child_used < SLICE:
            yield Move("the child's call", state._replace(child_used=state.child_used + 1), fair=False)

    def _asks(self, state: Tree) -> Iterator[Move]:
        """The command comes, and is looked up; then the slice is taken."""
        fair = not state.judging
        again = state.child == HELD and not self.without("held-forgotten")
        if (state.child == NONE or again) and len(state.judging) < 2 and (fair or state.told <= REPEATS):
            judging = tuple(sorted((*state.judging, ASKS)))
            yield Move("the command comes", state._replace(judging=judging, told=state.told + (not fair)), fair)
        if ASKS not in state.judging:
            return
        place = state.judging.index(ASKS)
        left = state.judging[:place] + state.judging[place + 1 :]
        after, answer = self._take(state)
        yield Move("the gateway answers", after._replace(judging=tuple(sorted((*left, answer)))))
        if state.told <= REPEATS:
            yield Move("the gateway's answer is lost", after._replace(judging=left, told=state.told + 1), fair=False)

    def _take(self, state: Tree) -> tuple[Tree, str]:
        if state.slice == OUT and not self.without("slice-not-named"):
            return state, TOOK
        if state.slice == BACK and not self.without("taken-after-return"):
            return state, POOR
        if not state.gate or state.free < SLICE:
            return state, POOR
        return state._replace(slice=OUT, delegated=state.delegated + SLICE), TOOK

    def _judges(self, state: Tree) -> Iterator[Move]:
        """Behind the parent's lock: a child, or none."""
        for place, answer in enumerate(state.judging):
            if answer == ASKS:
                continue
            left = state._replace(judging=state.judging[:place] + state.judging[place + 1 :])
            if state.child not in (NONE, HELD):
                yield Move("judged before", left)
                continue
            blind = state.child == HELD and self.without("held-made-blindly")
            may = state.parent == OPEN or blind or self.without("parent-not-looked-at")
            if may and (answer == TOOK or self.without("slice-not-first")):
                may_too = state.parent_may or self.without("spawn-reads-first")
                yield Move("the child is stored", left._replace(child=OPEN, child_may=may_too))
                continue
            if may and state.parent == OPEN:
                back = (*left.returns, 0) if self.without("held-gives-back") else left.returns
                yield Move("it waits for money", left._replace(child=HELD, returns=back), fair=state.child == HELD)
                if state.child == HELD:
                    continue
            gives = not self.without("slice-kept") and (answer == TOOK or not self.without("only-taken-comes-back"))
            yield Move("refused", left._replace(child=REFUSED, returns=(*left.returns, 0) if gives else left.returns))

    def _decides(self, state: Tree) -> Iterator[Move]:
        """A cancel, or any end of the parent, with what is below it; a child that ends by itself."""
        if state.parent == OPEN and not state.read:
            if self.without("cancel-reads-first"):
                yield Move("a cancel looks for children", state._replace(read=state.child))
            else:
                yield Move("the parent is decided", self._close(state, state.child))
        if state.read:
            yield Move("a cancel decides what it saw", self._close(state, state.read)._replace(read=""))
        if state.parent == OPEN and state.parent_may and not state.taking:
            if self.without("revocation-reads-first"):
                yield Move("a revocation looks for children", state._replace(taking=state.child), fair=False)
            else:
                yield Move("a capability is taken", self._narrow(state, state.child), fair=False)
        if state.taking:
            yield Move("a revocation takes it from what it saw", self._narrow(state, state.taking)._replace(taking=""))
        if state.child == OPEN:
            yield Move("the child ends", state._replace(child=CLOSED))

    def _narrow(self, state: Tree, seen: str) -> Tree:
        reaches = seen == OPEN and not self.without("child-not-narrowed")
        return state._replace(parent_may=False, child_may=state.child_may and not reaches)

    def _close(self, state: Tree, seen: str) -> Tree:
        closes = seen == OPEN and state.child == OPEN and not self.without("child-not-closed")
        return state._replace(parent=CLOSED, child=CLOSED if closes else state.child)

    def _settles(self, state: Tree) -> Iterator[Move]:
        """Gates close, what is quiet becomes terminal, slices come back, perhaps twice."""
        if state.parent in (CLOSED, DONE) and state.gate:
            yield Move("the parent's gate closes", state._replace(gate=False))
        if state.child == CLOSED and state.child_gate:
            yield Move("the child's gate closes", state._replace(child_gate=False))
        if state.child == CLOSED and not state.child_gate:
            spent = 0 if self.without("all-comes-back") else state.child_used
            yield Move("the child is terminal", state._replace(child=DONE, returns=(*state.returns, spent)))
        below = state.child in (OPEN, CLOSED) and not self.without("parent-before-child")
        if state.parent == CLOSED and not state.gate and not below:
            yield Move("the parent is terminal", state._replace(parent=DONE))
        for place, spent in enumerate(state.returns):
            left = state.returns[:place] + state.returns[place + 1 :]
            after = self._give_back(state, spent)
            yield Move("a slice comes back", after._replace(returns=left))
            if state.told <= REPEATS:
                yield Move("a slice comes back, and will again", after._replace(told=state.told + 1), fair=False)

    def _give_back(self, state: Tree, spent: int) -> Tree:
        if state.slice == NONE:
            return state._replace(slice=BACK)
        if state.slice == BACK and not self.without("returned-twice"):
            return state
        return state._replace(slice=BACK, delegated=state.delegated - SLICE + spent)

    def broken(self, state: Tree) -> str:
        if state.used + state.child_used > state.granted:
            return "more is used than was granted"
        if state.delegated < 0:
            return "more came back than was given"
        if state.parent == DONE and state.child in (OPEN, CLOSED):
            return "the parent is terminal and its child is not"
        if state.child == OPEN and state.child_may and not state.parent_may:
            return "the child may do what was taken from its parent"
        if state.parent != OPEN and state.child == OPEN:
            return "an orphan: nobody will end the child"
        return ""

    def goals(self) -> Mapping[str, Any]:
        return {"all is settled and the envelope sums": self._settled}

    @staticmethod
    def _settled(state: Tree) -> bool:
        over = state.parent == DONE and state.child in (DONE, REFUSED) and not state.judging and not state.returns
        return over and state.delegated == (state.child_used if state.child == DONE else 0)
