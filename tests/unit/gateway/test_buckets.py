"""Token buckets: never more than flows in, whoever asks in whatever order; shared by weight; right across clock jumps."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.kernel.refusal import Refusal
from services.gateway.domain.bucket_changes import BucketAsk, Change, check_name, next_bucket
from services.gateway.domain.buckets import (
    SKEW_MS,
    Bucket,
    Name,
    Standing,
    Want,
    filled,
    give_back,
    over,
    take,
    wait_ms,
)

NAME = Name("provider", "loop", "calls")
START = 1_000_000


def bucket(capacity: int = 10, per_minute: int = 600, level: float | None = None) -> Bucket:
    return Bucket(NAME, capacity, per_minute, float(capacity) if level is None else level, START)


ASKS = st.lists(
    st.tuples(
        st.integers(0, 3_000),  # later by
        st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 15), st.floats(0, 5)), max_size=4),
        st.tuples(st.sampled_from("abc"), st.floats(0, 2)),
    ),
    max_size=40,
)


@pytest.mark.requirement("gw.rate")
@given(ASKS, st.integers(1, 20), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None)
def test_nobody_ever_gets_more_than_was_in_it_and_flowed_in(asks: list, capacity: int, per_minute: int) -> None:  # type: ignore[type-arg]
    standing, now_ms, given_out = Standing(bucket(capacity, per_minute), {}), START, 0.0
    held = dict.fromkeys("abc", 0.0)
    for later, wants, (who, share) in asks:
        now_ms += later
        standing, got = take(standing, {"a": 3}, [Want(t, least, least + more) for t, least, more in wants], now_ms)
        for (tenant, least, more), answer in zip(wants, got, strict=True):
            assert answer.units == 0 or min(least, capacity) - 1e-9 <= answer.units <= least + more + 1e-9
            assert (answer.wait_ms > 0) == (answer.units == 0)
            given_out += answer.units
            held[tenant] += answer.units
        back = min(share, held[who])
        held[who] -= back
        given_out -= back
        standing = give_back(standing, who, back, now_ms)
        assert -1e-6 <= standing.bucket.level <= capacity + 1e-6
        assert given_out <= capacity + per_minute * (now_ms - START) / 60_000 + 1e-6
        assert all(use.taken >= 0 for use in standing.uses.values())


@pytest.mark.requirement("gw.rate")
def test_who_takes_all_there_is_shares_by_weight_once_another_wants_some() -> None:
    """A hundred a second, three tenants of weights 1, 1 and 2 that want everything; one of them had it alone before."""
    standing, now_ms = Standing(bucket(100, 6_000, level=0.0), {}), START
    got = dict.fromkeys("abc", 0.0)
    for round_ in range(1_200):
        now_ms += 50
        tenants = "a" if round_ < 400 else "abc"
        standing, answers = take(standing, {"c": 2}, [Want(t, 1, 5) for t in tenants], now_ms)
        for tenant, answer in zip(tenants, answers, strict=True):
            got[tenant] += answer.units if round_ < 400 or round_ >= 800 else 0
        if round_ == 399:
            assert got["a"] == pytest.approx(2_000, rel=0.03), "alone it has everything"
            got = dict.fromkeys("abc", 0.0)
    whole = sum(got.values())
    assert whole == pytest.approx(2_000, rel=0.05), "nothing is left lying"
    assert [got[t] / whole for t in "abc"] == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


def test_the_order_of_asking_does_not_matter_for_the_parts() -> None:
    shuffled = random.Random(7)
    standing, now_ms, got = Standing(bucket(20, 1_200, level=0.0), {}), START, dict.fromkeys("abcd", 0.0)
    for _ in range(1_500):
        now_ms += 100
        tenants = sorted("abcd", key=lambda _: shuffled.random())
        standing, answers = take(standing, {}, [Want(t, 1, 1) for t in tenants], now_ms)
        for tenant, answer in zip(tenants, answers, strict=True):
            got[tenant] += answer.units
    assert max(got.values()) / min(got.values()) < 1.05


def test_who_stopped_asking_does_not_hold_others_back() -> None:
    standing = Standing(bucket(), {})
    standing, _ = take(standing, {}, [Want("a", 5, 5), Want("b", 1, 1)], START)
    assert over(standing.bucket, standing.uses, {}, START) == {"a"}
    _, (kept,) = take(standing, {}, [Want("a", 1, 1)], START)
    assert kept.units == 0, "b may want some"
    _, (free,) = take(standing, {}, [Want("a", 8, 8)], START + standing.bucket.window_ms + 1_000)
    assert free.units == 8


def test_a_jump_of_the_clock_back_never_fills_it_twice_and_dries_it_only_once() -> None:
    early = replace(bucket(10, 60, level=0.0), at_ms=START + 7_200_000)
    assert filled(early, START) == early, "another process may simply be ahead"
    first = filled(early, START, first_touch=True)
    assert (first.level, first.at_ms) == (0.0, START)
    near = replace(early, at_ms=START + SKEW_MS)
    assert filled(near, START, first_touch=True) == near
    assert filled(first, START + 5_000).level == pytest.approx(5.0)
    assert filled(first, START + 7_200_000).level == 10.0, "a jump ahead fills it once"


def test_a_call_larger_than_the_bucket_takes_a_whole_one() -> None:
    standing, (got,) = take(Standing(bucket(10), {}), {}, [Want("a", 50, 50)], START)
    assert got.units == 10
    _, (none,) = take(standing, {}, [Want("a", 50, 50)], START)
    assert none.units == 0
    assert none.wait_ms == 1_000


def test_what_was_used_beyond_is_owed_and_a_debt_beyond_a_bucket_forgiven() -> None:
    standing, _ = take(Standing(bucket(10), {}), {}, [Want("a", 4, 4)], START)
    standing = give_back(standing, "a", -9, START)
    assert standing.bucket.level == -3
    assert standing.uses["a"].taken == pytest.approx(13)
    assert give_back(standing, "a", -1_000, START).bucket.level == -10


def test_the_time_to_wait_is_the_time_it_takes_to_fill() -> None:
    slow = bucket(10, 60, level=0.0)
    assert wait_ms(slow, 0.5, 1.0) == 500
    assert wait_ms(bucket(10, 0), 0, 1) == 60_000
    standing, (got,) = take(Standing(slow, {}), {}, [Want("a", 2, 2)], START)
    assert got.wait_ms == 2_000
    _, (later,) = take(standing, {}, [Want("a", 2, 2)], START + got.wait_ms)
    assert later.units == 2


def test_a_new_bucket_is_full_and_a_smaller_one_keeps_what_fits() -> None:
    made = next_bucket(None, NAME, BucketAsk(10, 60), 2, START, 5)
    assert (made.level, made.version, made.changed_ms) == (10, 2, 5)
    smaller = next_bucket(made, NAME, BucketAsk(4, 60), 3, START, 6)
    assert (smaller.level, smaller.capacity, smaller.version) == (4, 4, 3)
    larger = next_bucket(replace(made, level=1), NAME, BucketAsk(40, 600), 3, START + 1_000, 6)
    assert larger.level == pytest.approx(2), "what flowed in so far did so as before"


@pytest.mark.parametrize(("capacity", "per_minute"), [(0, 1), (-1, 1), (2_000_000_000, 1), (1, -1), (1, 2_000_000_000)])
def test_what_no_bucket_can_be_is_refused(capacity: int, per_minute: int) -> None:
    with pytest.raises(Refusal, match="must be between"):
        next_bucket(None, NAME, BucketAsk(capacity, per_minute), 2, START, 5)


def test_tools_have_no_tokens_and_nobody_changes_without_a_reason() -> None:
    with pytest.raises(Refusal, match="tokens"):
        check_name(Name("tool", "git.push", "tokens"))
    with pytest.raises(Refusal, match="printed"):
        check_name(Name("tool", "git\x1bpush", "calls"))
    with pytest.raises(Refusal, match="reason"):
        Change("me", "  ").check()
