"""Authoritative for what a step takes of its worker besides a slot, and for what a lease weighs among tenants. Pure.

Amounts are integers by name (`gpu`, `memory_mb`): declared by a step's version, said by a worker with each claim. Nothing here
knows what a name means. A lease on a shared worker weighs as many slots as the greatest part of something that it takes is of
all shared slots: who takes half of all GPUs counts as who takes half of the slots.

Can go wrong: a worker that says more than it has. It is the only one that knows, and its own steps suffer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field

from libs.kernel.values import value

Amounts = tuple[tuple[str, int], ...]
"""Names and amounts, by name; none twice, none 0."""


def amounts(given: Mapping[str, int]) -> Amounts:
    """In the one order, without what is 0."""
    return tuple(sorted((name, amount) for name, amount in given.items() if amount > 0)) if given else ()


def text_of(need: Amounts) -> str:
    """As a column holds it: `name amount`, a line each."""
    return "\n".join(f"{name} {amount}" for name, amount in need)


def parse(text: str) -> Amounts:
    """What a column holds."""
    if not text:
        return ()
    return tuple((name, int(amount)) for name, _, amount in (line.rpartition(" ") for line in text.split("\n")))


def covers(has: Mapping[str, int], need: Amounts) -> bool:
    """Whether there is enough of everything."""
    return all(has.get(name, 0) >= amount for name, amount in need)


def words(need: Amounts) -> str:
    """For people."""
    return ", ".join(f"{name} {amount}" for name, amount in need) or "nothing declared"


@value(frozen=True, slots=True)
class Capacity:
    """What shared workers heard of lately have together."""

    slots: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)

    def weight(self, need: Amounts) -> float:
        """What a lease weighs, in slots: at least one, at most all of them. Of what nobody is known to have, nothing."""
        parts = [amount / has for name, amount in need if (has := self.amounts.get(name, 0))]
        return max(1.0, min(1.0, max(parts)) * self.slots) if parts else 1.0

    @staticmethod
    def of(workers: Iterable[tuple[int, Amounts]]) -> "Capacity":
        """Slots and amounts of each worker, together."""
        slots, together = 0, dict[str, int]()
        for count, has in workers:
            slots += count
            for name, amount in has:
                together[name] = together.get(name, 0) + amount
        return Capacity(slots, together)


UNKNOWN = Capacity()
"""Of workers that say nothing of what they have."""
