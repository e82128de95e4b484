"""Shards that an operator gives to a member, and members that resign, on a real etcd: who leads then, and for how long."""

import pytest

from libs.authority import preferred
from libs.testkit.waiting import wait_until
from tests.store.authority.test_shard_elections import ALL, Candidate, Field, field_

__all__ = ["field_"]


async def pair(field: Field) -> tuple[Candidate, Candidate]:
    one, two = field.join("one"), field.join("two")
    mine = {shard for shard in ALL if preferred(shard, ["one", "two"]) == "one"}
    await wait_until(lambda: (one.shards, two.shards) == (mine, ALL - mine))
    return one, two


@pytest.mark.requirement("sched.authority")
async def test_a_shard_goes_to_the_member_it_is_given_to_and_stays(field_: Field) -> None:
    one, two = await pair(field_)
    given = sorted(one.shards)[:3]
    assert await two.elections.hand_over(dict.fromkeys(given, "two")) == set(given)  # any member may say it
    await wait_until(lambda: set(given) <= two.shards)
    assert not set(given) & one.shards
    for shard in given:
        before = max(epoch for found, epoch in one.won if found == shard)
        assert (two.elections.leads(shard) or 0) > before
    assert all(one.still_mine)  # `on_lost` ended before the key was given back
    three = field_.join("three")
    await wait_until(lambda: len(three.shards) > 5)
    assert set(given) <= two.shards  # somebody new changes nothing for them


@pytest.mark.requirement("sched.authority")
async def test_what_was_given_goes_back_by_a_word_or_with_the_member(field_: Field) -> None:
    one, two = await pair(field_)
    given = sorted(s for s in ALL if preferred(s, ["one", "two"]) == "one")[:4]
    await one.elections.hand_over(dict.fromkeys(given, "two"))
    await wait_until(lambda: set(given) <= two.shards)
    assert await one.elections.take_back(given[:2]) == set(given[:2])
    assert await one.elections.take_back(given[:2]) == set()
    await wait_until(lambda: set(given[:2]) <= one.shards)
    assert set(given[2:]) <= two.shards
    await two.stop()
    await wait_until(lambda: one.shards == ALL)
    await wait_until(lambda: not one.elections.board.moves, what="the moves ended with their member")


@pytest.mark.requirement("sched.authority")
async def test_nothing_is_given_to_who_is_not_there(field_: Field) -> None:
    one, _ = await pair(field_)
    before = one.shards
    assert await one.elections.hand_over({sorted(before)[0]: "nobody"}) == set()
    assert one.shards == before
    assert not one.elections.board.moves


@pytest.mark.requirement("sched.authority")
async def test_who_resigns_leaves_everything_at_once_and_still_sees_who_leads(field_: Field) -> None:
    one, two = await pair(field_)
    assert await one.elections.resign()
    await wait_until(lambda: two.shards == ALL)
    await wait_until(lambda: all((found := one.elections.leader(s)) is not None and found.member_id == "two" for s in ALL))
    assert one.shards == set()
    assert one.elections.session_alive


@pytest.mark.requirement("sched.authority")
async def test_the_only_member_resigns_from_nothing(field_: Field) -> None:
    one = field_.join("one")
    await wait_until(lambda: one.shards == ALL)
    assert not await one.elections.resign()
    assert one.shards == ALL


@pytest.mark.requirement("sched.authority")
async def test_who_resigns_leaves_what_it_was_given_too(field_: Field) -> None:
    one, two = await pair(field_)
    given = sorted(one.shards)[:3]
    await one.elections.hand_over(dict.fromkeys(given, "two"))
    await wait_until(lambda: set(given) <= two.shards)
    assert await two.elections.resign()
    await wait_until(lambda: one.shards == ALL)
