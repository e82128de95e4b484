"""A set that forgets: what a process need not know for ever. Memory, bounded; authoritative for nothing.

Can go wrong: what was forgotten is asked again. It costs a read, and decides nothing.
"""

from collections import OrderedDict

REMEMBERED = 50_000


class Recent:
    """A set that forgets its oldest members."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._items: OrderedDict[object, None] = OrderedDict()

    def add(self, item: object) -> None:
        """Remembers."""
        self._items[item] = None
        self._items.move_to_end(item)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def discard(self, item: object) -> None:
        """Forgets."""
        self._items.pop(item, None)

    def clear(self) -> None:
        """Forgets everything."""
        self._items.clear()

    def __contains__(self, item: object) -> bool:
        return item in self._items
