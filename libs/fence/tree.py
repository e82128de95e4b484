"""Authoritative for how one signature vouches for many claims: it is over the root of a tree of their digests, and each carries
the way from its own leaf to that root.

Leaves and inner nodes are hashed under different first bytes, so that no inner node passes for claims. Nothing is learned from
a way but digests of neighbours. Can go wrong: a way that is followed in the wrong order, or is as long as a sender likes. Each
step says on which side the neighbour is, and there are at most `DEEPEST`.
"""

import hashlib
from collections.abc import Sequence

from libs.kernel.values import value

DEEPEST = 12
"""4,096 claims under one root: more than one commit grants."""
_LEAF, _NODE = b"\x00", b"\x01"


@value(frozen=True, slots=True)
class Way:
    """From a leaf to the root: its neighbours, the nearest first, and which of them are to the left (bit by bit)."""

    neighbours: bytes
    left: int


def leaf(claims: bytes) -> bytes:
    """The digest that claims enter with."""
    return hashlib.sha256(_LEAF + claims).digest()


def grow(claims: Sequence[bytes]) -> tuple[bytes, list[Way]]:
    """The root over these claims, and each one's way to it. A node without a neighbour goes up as it is."""
    sha256 = hashlib.sha256
    level = [leaf(raw) for raw in claims]
    neighbours: list[list[bytes]] = [[] for _ in level]
    left = [0] * len(level)
    below = [[place] for place in range(len(level))]
    while len(level) > 1:
        above, under = [], []
        for at in range(0, len(level) - 1, 2):
            one, other = level[at], level[at + 1]
            for place in below[at]:
                neighbours[place].append(other)
            for place in below[at + 1]:
                left[place] |= 1 << len(neighbours[place])
                neighbours[place].append(one)
            above.append(sha256(_NODE + one + other).digest())
            under.append(below[at] + below[at + 1])
        if len(level) % 2:
            above.append(level[-1])
            under.append(below[-1])
        level, below = above, under
    return level[0], [Way(b"".join(found), side) for found, side in zip(neighbours, left, strict=True)]


def root_of(claims: bytes, way: Way) -> bytes | None:
    """Where the way of these claims ends; None where it is no way."""
    count, rest = divmod(len(way.neighbours), 32)
    if rest or not 0 < count <= DEEPEST or way.left >> count:
        return None
    node = leaf(claims)
    for at in range(count):
        neighbour = way.neighbours[32 * at : 32 * at + 32]
        pair = neighbour + node if way.left >> at & 1 else node + neighbour
        node = hashlib.sha256(_NODE + pair).digest()
    return node
