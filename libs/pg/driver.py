"""Authoritative for one shortcut in the driver: how it tells that an element of an array is not itself an array.

For each element of each array it asks twice whether the element is an instance of an abstract collection. A step of a run
writes eighty such values: that was a tenth of the services processor time. Our arrays are lists and tuples of plain values, so
the driver is told that nothing else is a collection; any other collection is made a list before it gets there.

Can go wrong: a driver that looks elsewhere in its next version. Then nothing is changed (it is slower, never wrong), and a test
says so.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from asyncpg.protocol import protocol

_LISTS = (list, tuple)
_COLLECTIONS: Mapping[str, Any] = {"IterableABC": _LISTS, "SizedABC": _LISTS, "MappingABC": dict}
_TEXTS = (str, bytes, bytearray, memoryview)


def arrays_are_lists() -> bool:
    """Tells the driver; whether it had what we expected."""
    if not all(hasattr(protocol, name) for name in _COLLECTIONS):
        return False
    for name, kind in _COLLECTIONS.items():
        setattr(protocol, name, kind)
    return True


def plain(arguments: Iterable[Any]) -> list[Any]:
    """The arguments of a statement, each collection a list."""
    return [argument if type(argument) is list else _listed(argument) for argument in arguments]


def _listed(argument: Any) -> Any:
    if isinstance(argument, (*_TEXTS, int, tuple)) or not isinstance(argument, Collection):
        return argument
    return list(argument)
