"""What a tree of runs should be after what was done to it. Knows none of the product's code.

A spawn is made whole or refused; a slice is out while its child is open, and what is left of it comes back once; who ends takes
with it all below that does not outlive it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MOST_CHILDREN, MOST_DEPTH, MOST_ACTIVE = 5, 2, 4
"""Of a run, below the root, of the tenant."""


@dataclass(eq=False)
class Node:
    """A run. `given`: to children, in all; `back`: what came back of it; `holds`: what may be revoked from it."""

    run_id: str
    budget: int
    parent: "Node | None" = None
    independent: bool = False
    slot: str = ""
    used: int = 0
    given: int = 0
    back: int = 0
    outcome: str = ""
    holds: bool = True
    children: "list[Node]" = field(default_factory=list)

    @property
    def open(self) -> bool:
        return not self.outcome

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def free(self) -> int:
        return self.budget - self.used - self.given + self.back

    def all(self) -> "Iterator[Node]":
        """It and everything below it."""
        yield self
        for child in self.children:
            yield from child.all()

    def bound(self) -> "Iterator[Node]":
        """What ends with it, while it is open."""
        for child in self.children:
            if child.open and not child.independent:
                yield child
                yield from child.bound()

    def kin(self) -> "Iterator[Node]":
        """Everything below it that did not outlive its parent, or would not."""
        for child in self.children:
            if not child.independent:
                yield child
                yield from child.kin()

    def end(self, outcome: str) -> None:
        """Leaves first; what is left goes to the parent, where that has not ended before."""
        for child in self.children:
            if child.open and not child.independent:
                child.end("cancelled")
        self.outcome = outcome
        if self.parent is not None and self.parent.open:
            self.parent.back += self.free

    def why_not(self, slices: Sequence[int], active: int) -> set[str]:
        """Every reason to refuse such children; `active`: child runs of the tenant."""
        if not self.open:
            return {"PARENT_CLOSED"}
        count = len(slices)
        told = {
            "DEPTH_EXCEEDED": self.depth + 1 > MOST_DEPTH,
            "FANOUT_EXCEEDED": len(self.children) + count > MOST_CHILDREN,
            "QUOTA_EXCEEDED": active + count > MOST_ACTIVE,
            "BUDGET_EXHAUSTED": sum(slices) > self.free,
        }
        return {why for why, so in told.items() if so}

    def born(self, run_ids: Sequence[str], slices: Sequence[int], slot: str, independent: bool) -> None:
        """Children of one command."""
        for run_id, micros in zip(run_ids, slices, strict=True):
            self.children.append(Node(run_id, micros, self, independent, slot, holds=self.holds))
            self.given += micros


@dataclass(eq=False)
class Join:
    """What a step waits for: all children of a command, or the first that succeeds; `refused`: its spawn was, with so many."""

    node: Node
    slot: str
    of: str
    first: bool
    refused: int
    told: tuple[bool, int, int] | None = None

    def judged(self) -> bool:
        """Answers if it can; whether losers were cancelled by that."""
        if self.told is not None or not self.node.open:
            return False
        mine = [child for child in self.node.children if child.slot == self.of]
        won = sum(child.outcome == "succeeded" for child in mine)
        over = all(not child.open for child in mine)
        total = len(mine) + self.refused
        if self.first and won:
            losers = [child for child in mine if child.open]
            for child in losers:
                child.end("cancelled")
            self.told = (True, total, won)
            return bool(losers)
        if over:
            self.told = (not self.first and won == total, total, won)
        return False
