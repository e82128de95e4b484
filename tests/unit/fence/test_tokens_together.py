"""Many tokens under one signature: each verifies by itself, and nothing passes that was not among what was signed."""

from itertools import pairwise

import pytest
from runway.internal.fence.v1 import lease_pb2

from libs.fence.claims import MAX_TOKEN_BYTES, Token
from libs.fence.token import Signer, Verifier
from libs.fence.tree import DEEPEST, Way, grow, leaf, root_of
from libs.kernel.refusal import Reason
from libs.testkit.clocks import ManualClock
from tests.unit.fence.test_lease_token import Rows, claims, refused


def verifier(*signers: Signer) -> Verifier:
    return Verifier(Rows(*signers), ManualClock(now_ms=1_000_000), audience="here")


def together(signer: Signer, count: int, first: int = 0) -> list[Token]:
    made = signer.sign_many([claims(step_key=f"s{number}") for number in range(first, first + count)])
    return [token for token in made if token is not None]


def parts(token: Token) -> lease_pb2.LeaseToken:
    return lease_pb2.LeaseToken.FromString(token)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 9, 33, 200])
async def test_each_of_them_verifies_by_itself(count: int) -> None:
    signer = Signer()
    tokens = together(signer, count)
    assert len(tokens) == count
    assert len({parts(token).signature for token in tokens}) == 1
    judge = verifier(signer)
    assert [(await judge.verify(token)).step_key for token in tokens] == [f"s{number}" for number in range(count)]
    assert (await verifier(signer).verify(tokens[-1])).step_key == f"s{count - 1}", "also where no other was seen"
    assert all(len(token) < MAX_TOKEN_BYTES for token in tokens)


async def test_a_lonely_one_and_one_that_is_too_large_beside_its_way_are_signed_by_themselves() -> None:
    signer = Signer()
    assert signer.sign_many([]) == []
    assert signer.sign_many([claims()]) == [None]
    large = claims(tools=tuple(f"tool-{number:03}" for number in range(75)))
    assert MAX_TOKEN_BYTES - 100 < len(signer.sign(large)) < MAX_TOKEN_BYTES
    small, none, *_ = signer.sign_many([claims(), large, *(claims(step_key=f"s{n}") for n in range(60))])
    assert small is not None
    assert none is None


@pytest.mark.parametrize("where", range(0, 700, 7))
async def test_any_flipped_byte_is_refused(where: int) -> None:
    signer = Signer()
    token = bytearray(together(signer, 9)[3])
    token[where % len(token)] ^= 0x41
    judge = verifier(signer)
    await judge.verify(together(signer, 9)[3])
    assert await refused(judge, bytes(token)) is Reason.LEASE_INVALID


async def test_claims_that_were_not_signed_find_no_way_to_the_root() -> None:
    signer = Signer()
    mine, others = together(signer, 8), together(signer, 8, first=100)
    judge = verifier(signer)
    for token in (*mine, *others):
        await judge.verify(token)
    forged = parts(mine[0])
    forged.claims = claims(step_key="s0", tenant="rival").to_bytes()
    assert await refused(judge, forged.SerializeToString()) is Reason.LEASE_INVALID
    swapped = parts(mine[0])
    swapped.signature = parts(others[0]).signature
    assert await refused(judge, swapped.SerializeToString()) is Reason.LEASE_INVALID
    for one, other in pairwise(parts(token) for token in mine):
        moved = lease_pb2.LeaseToken()
        moved.CopyFrom(one)
        moved.neighbours, moved.left = other.neighbours, other.left
        assert await refused(judge, moved.SerializeToString()) is Reason.LEASE_INVALID


async def test_a_root_of_ones_own_needs_a_signature_of_the_scheduler() -> None:
    signer, thief = Signer(), Signer()
    judge = verifier(signer)
    real = together(signer, 4)
    for token in real:
        await judge.verify(token)
    for token in together(thief, 4, first=50):
        said = parts(token)
        said.key_id = signer.public.key_id
        assert await refused(judge, said.SerializeToString()) is Reason.LEASE_INVALID
        said.signature = parts(real[0]).signature
        assert await refused(judge, said.SerializeToString()) is Reason.LEASE_INVALID


async def test_a_signature_of_one_kind_is_none_of_the_other() -> None:
    signer = Signer()
    raws = [claims(step_key=f"s{number}").to_bytes() for number in range(2)]
    root, _ = grow(raws)
    of_root = parts(together(signer, 2)[0])
    as_claims = lease_pb2.LeaseToken(claims=root, signature=of_root.signature, key_id=of_root.key_id)
    assert await refused(verifier(signer), as_claims.SerializeToString()) is Reason.LEASE_INVALID
    bare = parts(together(signer, 2)[0])
    bare.ClearField("neighbours")
    bare.ClearField("left")
    assert await refused(verifier(signer), bare.SerializeToString()) is Reason.LEASE_INVALID
    single = parts(signer.sign(claims()))
    single.left = 1
    assert await refused(verifier(signer), single.SerializeToString()) is Reason.LEASE_INVALID


def test_an_inner_node_is_no_leaf() -> None:
    raws = [bytes([number]) * 40 for number in range(4)]
    root, ways = grow(raws)
    assert all(root_of(raw, way) == root for raw, way in zip(raws, ways, strict=True))
    leaves = [leaf(raw) for raw in raws]
    uncle = Way(ways[0].neighbours[32:], ways[0].left >> 1)
    assert root_of(leaves[0] + leaves[1], uncle) != root
    assert root_of(b"\x01" + leaves[0] + leaves[1], uncle) != root


def test_a_way_has_whole_digests_its_own_sides_and_an_end() -> None:
    _, (way, *_) = grow([b"a", b"b"])
    assert root_of(b"a", way) is not None
    for wrong in (
        Way(b"", 0),
        Way(way.neighbours[:-1], way.left),
        Way(way.neighbours, way.left | 2),
        Way(b"\0" * 32 * (DEEPEST + 1), 0),
    ):
        assert root_of(b"a", wrong) is None
