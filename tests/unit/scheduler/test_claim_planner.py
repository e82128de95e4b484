"""The claim planner: what it promises for any polls and tickets, and the order of tickets."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.planner import Candidate, Poll, fits, in_turn, plan, urgency

TENANTS, HANDLERS, LABELS = ["a", "b"], ["f", "g"], ["gpu", "big"]


def ticket(number: int, **more: object) -> Candidate:
    values: dict[str, object] = {
        "key": (UUID(int=number), "s"),
        "tenant": "a",
        "project": "p",
        "run_class": 2,
        "priority": 0,
        "deadline_ms": 0,
        "handler": "f",
        "requires": frozenset[str](),
        "order": number,
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
    return Poll(**(values | more))  # type: ignore[arg-type]


tickets_ = st.lists(
    st.builds(
        lambda tenant, project, run_class, priority, deadline, handler, requires: {
            "tenant": tenant,
            "project": project,
            "run_class": run_class,
            "priority": priority,
            "deadline_ms": deadline,
            "handler": handler,
            "requires": requires,
        },
        st.sampled_from(TENANTS),
        st.sampled_from(["p", "q"]),
        st.integers(0, 4),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from(HANDLERS),
        st.frozensets(st.sampled_from(LABELS)),
    ),
    max_size=20,
).map(lambda found: [ticket(number, **values) for number, values in enumerate(found)])
polls_ = st.lists(
    st.builds(
        lambda tenant, project, handlers, labels, slots: {
            "tenant": tenant,
            "project": project,
            "handlers": handlers,
            "labels": labels,
            "slots": slots,
        },
        st.sampled_from([*TENANTS, ""]),
        st.sampled_from(["", "p"]),
        st.frozensets(st.sampled_from(HANDLERS), min_size=1),
        st.frozensets(st.sampled_from(LABELS)),
        st.integers(1, 3),
    ),
    max_size=6,
).map(lambda found: [poll(number, **values) for number, values in enumerate(found)])


@given(polls_, tickets_)
def test_a_plan_is_lawful_and_leaves_nothing_that_fits(polls: list[Poll], tickets: list[Candidate]) -> None:
    grants = plan(polls, tickets)
    by_key = {ticket.key: ticket for ticket in tickets}
    by_number = {poll.number: poll for poll in polls}
    assert len({grant.key for grant in grants}) == len(grants)
    used = dict.fromkeys(by_number, 0)
    for grant in grants:
        assert fits(by_number[grant.poll], by_key[grant.key])
        used[grant.poll] += 1
    assert all(used[number] <= poll.slots for number, poll in by_number.items())
    left = [ticket for ticket in tickets if ticket.key not in {grant.key for grant in grants}]
    free = [poll for number, poll in by_number.items() if used[number] < poll.slots]
    assert not any(fits(poll, ticket) for poll in free for ticket in left)


@given(tickets_)
def test_no_ticket_goes_before_a_more_urgent_one(tickets: list[Candidate]) -> None:
    ordered = in_turn(tickets)
    assert sorted(ordered, key=lambda t: t.order) == tickets
    assert [urgency(t) for t in ordered] == sorted(urgency(t) for t in tickets)


@given(polls_, tickets_, st.randoms(use_true_random=False))
def test_the_order_of_the_snapshot_does_not_matter(polls: list[Poll], tickets: list[Candidate], random: object) -> None:
    shuffled = list(tickets)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan(polls, shuffled) == plan(polls, tickets)


def test_class_then_priority_then_deadline_then_tenants_in_turn_then_order() -> None:
    ordered = [
        ticket(9, run_class=1),
        ticket(8, run_class=4),
        ticket(7, priority=5),
        ticket(6, deadline_ms=10),
        ticket(5, deadline_ms=20),
        ticket(0),
        ticket(2, tenant="b"),
        ticket(1),
        ticket(3, tenant="b"),
        ticket(4, run_class=3, priority=9),
    ]
    assert in_turn(reversed(ordered)) == ordered


def test_work_spreads_over_the_workers_that_wait() -> None:
    polls = [poll(1, slots=4), poll(2, slots=4)]
    grants = plan(polls, [ticket(n) for n in range(4)])
    assert sorted(grant.poll for grant in grants) == [1, 1, 2, 2]


def test_a_key_of_one_project_gets_only_its_tickets() -> None:
    grants = plan([poll(1, slots=9, project="q")], [ticket(1), ticket(2, project="q")])
    assert [grant.key for grant in grants] == [(UUID(int=2), "s")]


def test_an_answer_has_room_for_so_many_bytes_and_always_for_a_first_ticket() -> None:
    large = [ticket(number, size_bytes=60) for number in range(3)]
    granted = plan([poll(1, slots=9, room_bytes=100)], [*large, ticket(3, size_bytes=40), ticket(4, size_bytes=1)])
    assert [grant.key[0].int for grant in granted] == [0, 3]  # what does not fit stays ready, what fits is not held up by it
    assert len(plan([poll(1, slots=9, room_bytes=10)], large)) == 1
    assert [grant.poll for grant in plan([poll(1, slots=9, room_bytes=10), poll(2, room_bytes=10)], large)] == [1, 2]
