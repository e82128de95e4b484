"""The driver's shortcut holds for the version that is locked, and every collection still gets there as an array."""

from asyncpg.protocol import protocol

from libs.pg.driver import arrays_are_lists, plain


def test_the_locked_driver_has_what_is_replaced() -> None:
    assert arrays_are_lists()
    assert (protocol.IterableABC, protocol.SizedABC, protocol.MappingABC) == ((list, tuple), (list, tuple), dict)


def test_collections_become_lists_and_values_stay() -> None:
    given = [1, "text", b"bytes", (1, 2), {3}, frozenset({4}), {"key": 5}.keys(), {"key": 6}.values(), None, [7]]
    assert plain(given) == [1, "text", b"bytes", (1, 2), [3], [4], ["key"], [6], None, [7]]
