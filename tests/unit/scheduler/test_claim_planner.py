"""The claim planner: what it promises for any polls, tickets and standing."""

import random
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.lines import Candidate, queued
from services.scheduler.domain.planner import Grant, Standing, plan
from services.scheduler.domain.polls import Poll, fits
from services.scheduler.domain.rank import AUTOMATION, INTERACTIVE, MIGRATION
from services.scheduler.domain.resources import UNKNOWN, Capacity, amounts, covers
from services.scheduler.domain.shares import Part, Policy, Used

NEEDS = [(), (), (), (("gpu", 1),), (("gpu", 2), ("memory_mb", 3))]
BOUNDED = ["p", "q", "@ann", "@ben"]
TENANTS, HANDLERS, LABELS = ["a", "b"], ["f", "g"], ["gpu", "big"]
NO_RESERVE = Policy(reserve_permille=0, migration_permille=1000)


def ticket(number: int, **more: object) -> Candidate:
    values: dict[str, object] = {
        "key": (UUID(int=number), "s"),
        "tenant": "a",
        "project": "p",
        "run_class": AUTOMATION,
        "handler": "f",
        "requires": frozenset[str](),
        "rank_ms": number,
        "size_bytes": 1,
    }
    return Candidate(**(values | more))  # type: ignore[arg-type]


def poll(number: int, slots: int = 1, **more: object) -> Poll:
    values: dict[str, object] = {
        "number": number,
        "tenant": "a",
        "project": "",
        "handlers": frozenset({"f"}),
        "labels": frozenset[str](),
        "slots": slots,
    }
    return Poll(**{name: one for name, one in (values | more).items() if name != "has"})  # type: ignore[arg-type]


def planned(polls: list[Poll], tickets: list[Candidate], standing: Standing | None = None) -> list[Grant]:
    return plan(polls, queued(tickets), standing)


def granted(polls: list[Poll], tickets: list[Candidate], standing: Standing | None = None) -> dict[str, int]:
    """Grants by tenant and class."""
    by_key = {t.key: t for t in tickets}
    counts: dict[str, int] = {}
    for grant in planned(polls, tickets, standing):
        found = by_key[grant.key]
        name = f"{found.tenant}{found.run_class}"
        counts[name] = counts.get(name, 0) + 1
    return counts


tickets_ = st.lists(
    st.fixed_dictionaries(
        {
            "tenant": st.sampled_from(TENANTS),
            "project": st.sampled_from(["p", "q"]),
            "run_class": st.integers(0, 4),
            "rank_ms": st.integers(-3, 3),
            "handler": st.sampled_from(HANDLERS),
            "requires": st.frozensets(st.sampled_from(LABELS)),
            "last_worker": st.sampled_from(["", "w1", "w2"]),
            "resources": st.sampled_from(NEEDS),
            "user": st.sampled_from(["", "ann", "ben"]),
        }
    ),
    max_size=20,
).map(lambda found: [ticket(number, **values) for number, values in enumerate(found)])
has_ = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3), st.integers(0, 5)).map(
    lambda of: {
        "total": amounts({"gpu": of[0], "memory_mb": of[1]}),
        "free": amounts({"gpu": min(of[0], of[2]), "memory_mb": min(of[1], of[3])}),
    }
)
polls_ = st.lists(
    st.fixed_dictionaries(
        {
            "tenant": st.sampled_from(["", *TENANTS]),
            "project": st.sampled_from(["", "p"]),
            "handlers": st.frozensets(st.sampled_from(HANDLERS), min_size=1),
            "labels": st.frozensets(st.sampled_from(LABELS)),
            "slots": st.integers(1, 3),
            "has": has_,
        }
    ),
    max_size=6,
).map(lambda found: [poll(n, worker_id=f"w{n}", **(one | one["has"])) for n, one in enumerate(found)])  # type: ignore[arg-type]
parts_ = st.builds(Part, st.integers(1, 8), st.one_of(st.none(), st.integers(0, 4)))
standings_ = st.builds(
    Standing,
    policy=st.builds(Policy, st.integers(0, 1000), st.integers(0, 1000)),
    parts=st.dictionaries(st.sampled_from(TENANTS), parts_),
    projects=st.dictionaries(st.tuples(st.sampled_from(TENANTS), st.sampled_from(BOUNDED)), parts_),
    used=st.dictionaries(st.sampled_from(TENANTS), st.builds(Used, st.integers(0, 5), st.floats(0, 5))),
    project_leases=st.dictionaries(st.tuples(st.sampled_from(TENANTS), st.sampled_from(BOUNDED)), st.integers(0, 3)),
    shared_leases=st.dictionaries(st.integers(1, 4), st.integers(0, 5)),
    capacity=st.sampled_from([UNKNOWN, Capacity(8, {"gpu": 2}), Capacity(8, {"gpu": 4, "memory_mb": 6})]),
    overdue_ms=st.sampled_from([-(2**62), -1, 2]),
)


@given(polls_, tickets_, standings_)
def test_a_plan_is_lawful(polls: list[Poll], tickets: list[Candidate], standing: Standing) -> None:
    grants = planned(polls, tickets, standing)
    by_key = {t.key: t for t in tickets}
    by_number = {p.number: p for p in polls}
    assert len({grant.key for grant in grants}) == len(grants)
    used = dict.fromkeys(by_number, 0)
    for grant in grants:
        assert fits(by_number[grant.poll], by_key[grant.key].line)
        used[grant.poll] += 1
    assert all(used[number] <= p.slots for number, p in by_number.items())
    for number, p in by_number.items():
        given_away: Counter[str] = Counter()
        for grant in grants:
            given_away.update(dict(by_key[grant.key].resources) if grant.poll == number else {})
        assert covers(dict(p.free), amounts(given_away)), "nothing is given away twice"
    for tenant, part in standing.parts.items():
        if part.most_leases is not None:
            more = sum(by_key[grant.key].tenant == tenant for grant in grants)
            assert not more or standing.used.get(tenant, Used()).running + more <= part.most_leases
    for project, part in standing.projects.items():
        if part.most_leases is not None:
            more = sum(project in by_key[grant.key].line.bounds for grant in grants)
            assert not more or standing.project_leases.get(project, 0) + more <= part.most_leases


@given(polls_, tickets_, standings_)
def test_the_reserve_is_left_to_interactive_runs(polls: list[Poll], tickets: list[Candidate], standing: Standing) -> None:
    by_key = {t.key: t for t in tickets}
    shared = {p.number for p in polls if not p.tenant}
    others = [g for g in planned(polls, tickets, standing) if g.poll in shared and by_key[g.key].run_class != INTERACTIVE]
    capacity = sum(standing.shared_leases.values()) + sum(p.slots for p in polls if not p.tenant)
    held = sum(count for run_class, count in standing.shared_leases.items() if run_class != INTERACTIVE)
    assert not others or held + len(others) <= capacity - standing.policy.reserve(capacity)


@given(polls_, tickets_)
def test_nothing_that_fits_is_left_where_no_rule_keeps_it(polls: list[Poll], tickets: list[Candidate]) -> None:
    grants = planned(polls, tickets, Standing(policy=NO_RESERVE))
    taken = {grant.key for grant in grants}
    used = {p.number: sum(grant.poll == p.number for grant in grants) for p in polls}
    left = {p.number: Counter(dict(p.free)) for p in polls}
    by_key = {t.key: t for t in tickets}
    for grant in grants:
        left[grant.poll].subtract(dict(by_key[grant.key].resources))
    free = [p for p in polls if used[p.number] < p.slots]
    waiting = [t for t in tickets if t.key not in taken]
    assert not any(fits(p, t.line) and covers(left[p.number], t.resources) for p in free for t in waiting)


@given(polls_, tickets_, standings_, st.randoms(use_true_random=False))
def test_the_order_in_which_tickets_arrive_does_not_matter(
    polls: list[Poll], tickets: list[Candidate], standing: Standing, chance: random.Random
) -> None:
    shuffled = list(tickets)
    chance.shuffle(shuffled)
    assert planned(polls, shuffled, standing) == planned(polls, tickets, standing)


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 8))
def test_more_weight_is_never_less(slots: int, weight: int, more: int) -> None:
    tickets = [ticket(number, tenant=TENANTS[number % 2]) for number in range(40)]
    polls = [poll(1, slots, tenant="")]

    def got(parts: Mapping[str, Part]) -> int:
        return granted(polls, tickets, Standing(policy=NO_RESERVE, parts=parts)).get("a2", 0)

    assert got({"a": Part(weight + more)}) >= got({"a": Part(weight)})


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(20, 200))
def test_slots_are_shared_by_weight(weights: list[int], slots: int) -> None:
    names = [f"t{number}" for number in range(len(weights))]
    tickets = [ticket(at * 300 + number, tenant=name) for at, name in enumerate(names) for number in range(slots)]
    parts = {name: Part(weight) for name, weight in zip(names, weights, strict=True)}
    got = granted([poll(1, slots, tenant="")], tickets, Standing(policy=NO_RESERVE, parts=parts))
    for name, weight in zip(names, weights, strict=True):
        assert abs(got.get(f"{name}{AUTOMATION}", 0) - slots * weight / sum(weights)) <= len(weights)


def test_who_had_more_yields_and_a_newcomer_gets_no_more_than_twice_its_share() -> None:
    used = {"a": Used(50, 50.0)}
    tickets = [ticket(number, tenant=TENANTS[number % 2]) for number in range(400)]
    got = granted([poll(1, 50, tenant="")], tickets, Standing(policy=NO_RESERVE, used=used))
    assert got == {"b2": 50}
    got = granted([poll(1, 150, tenant="")], tickets, Standing(policy=NO_RESERVE, used=used))
    assert got["b2"] <= 2 * (50 + 150) / 2, "all of it is shared by two of equal weight"


def test_a_flood_leaves_the_reserve_and_the_turns_of_others() -> None:
    flood = [ticket(number, tenant="a", run_class=MIGRATION) for number in range(500)]
    standing = Standing(policy=Policy(reserve_permille=100, migration_permille=500))
    shared = [poll(1, 100, tenant="")]
    assert granted(shared, flood, standing) == {"a3": 90}, "idle capacity is borrowed, the reserve is not"
    waiting = [*flood, *(ticket(1_000 + number, tenant="b") for number in range(60))]
    assert granted(shared, waiting, standing) == {"a3": 45, "b2": 45}
    waiting = [*flood, *(ticket(1_000 + number, tenant="b") for number in range(20))]
    assert granted(shared, waiting, standing) == {"a3": 70, "b2": 20}
    one = [*flood, ticket(1_000, tenant="b", run_class=INTERACTIVE)]
    assert granted(shared, one, standing)["b1"] == 1
    full = Standing(policy=standing.policy, used={"a": Used(90, 90.0)}, shared_leases={MIGRATION: 90})
    assert granted([poll(1, 10, tenant="")], one, full) == {"b1": 1}


def test_the_reserve_is_taken_first_where_only_some_workers_carry_what_is_interactive() -> None:
    tickets = [ticket(n, tenant="b", handler=handler) for n, handler in enumerate("fffffggggg")]
    tickets.append(ticket(100, run_class=INTERACTIVE))
    polls = [poll(1, 5, tenant=""), poll(2, 5, tenant="", handlers=frozenset({"g"}))]
    got = granted(polls, tickets, Standing(policy=Policy(reserve_permille=100), used={"a": Used(50, 50.0)}))
    assert got == {"a1": 1, "b2": 9}, "although its tenant had more, and others would fill the only worker that fits"


def test_migrations_stay_under_their_cap_while_others_wait() -> None:
    standing = Standing(policy=Policy(reserve_permille=0, migration_permille=200))
    tickets = [ticket(n, run_class=MIGRATION) for n in range(50)] + [ticket(100 + n) for n in range(50)]
    assert granted([poll(1, 50, tenant="")], tickets, standing) == {"a3": 10, "a2": 40}
    tickets = [ticket(n, run_class=MIGRATION) for n in range(50)] + [ticket(100 + n, tenant="b") for n in range(50)]
    assert granted([poll(1, 50, tenant="")], tickets, standing) == {"a3": 10, "b2": 40}


def test_a_tenants_own_workers_know_no_reserve_and_come_before_shared_ones() -> None:
    standing = Standing(policy=Policy(reserve_permille=500, migration_permille=0))
    assert granted([poll(1, 4)], [ticket(n, run_class=MIGRATION) for n in range(9)], standing) == {"a3": 4}
    grants = planned([poll(1, 4, tenant=""), poll(2, 2)], [ticket(n) for n in range(3)], standing)
    assert [grant.poll for grant in grants] == [2, 2, 1]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_quota_of_a_project_holds_up_nobody_else(most: int) -> None:
    tickets = [ticket(n, project="p") for n in range(5)] + [ticket(10 + n, project="q") for n in range(5)]
    standing = Standing(projects={("a", "p"): Part(most_leases=most + 1)}, project_leases={("a", "p"): 1})
    by_key = {t.key: t.project for t in tickets}
    got = [by_key[grant.key] for grant in planned([poll(1, 8)], tickets, standing)]
    assert (got.count("p"), got.count("q")) == (most, min(5, 8 - most))


def test_work_spreads_over_the_workers_that_wait() -> None:
    polls = [poll(1, slots=4), poll(2, slots=4)]
    grants = planned(polls, [ticket(n) for n in range(4)])
    assert sorted(grant.poll for grant in grants) == [1, 1, 2, 2]


def test_a_step_goes_back_to_the_worker_that_had_it_if_that_has_room() -> None:
    polls = [poll(1, slots=9, worker_id="w1"), poll(2, worker_id="w2")]
    grants = planned(polls, [ticket(n, last_worker="w2") for n in range(2)])
    assert [grant.poll for grant in grants] == [2, 1]


def test_a_key_of_one_project_gets_only_its_tickets() -> None:
    grants = planned([poll(1, slots=9, project="q")], [ticket(1), ticket(2, project="q")])
    assert [grant.key for grant in grants] == [(UUID(int=2), "s")]


def test_an_answer_has_room_for_so_many_bytes_and_always_for_a_first_ticket() -> None:
    large = [ticket(number, size_bytes=60) for number in range(3)]
    tickets = [*large, ticket(3, size_bytes=40), ticket(4, size_bytes=1)]
    assert [grant.key[0].int for grant in planned([poll(1, slots=9, room_bytes=100)], tickets)] == [0, 3]
    assert len(planned([poll(1, slots=9, room_bytes=10)], large)) == 1
    assert [grant.poll for grant in planned([poll(1, slots=9, room_bytes=10), poll(2, room_bytes=10)], large)] == [1, 2]
