"""Authoritative for the order in which waiting calls start and are shed, over any traffic, and for when they come again.

Can go wrong: an example that agrees with the code by chance; so the properties are stated over a plain list of who waits.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.rpc.shedding import RANKS, Bounds, Criticality, Pacer, Port, Waiting

BULK, INTERACTIVE, WORK = Criticality.BULK, Criticality.INTERACTIVE, Criticality.WORK
BOUNDS = st.builds(Bounds, places=st.integers(1, 8), least_places=st.just(1), waiting=st.integers(0, 6))
MOVES = st.lists(
    st.tuples(st.sampled_from(("come", "end", "cancel", "pass")), st.sampled_from(RANKS), st.sampled_from("abc")), max_size=60
)


def _room(port: Port, rank: Criticality) -> bool:
    """Whether one more of this kind may be under way, said plainly."""
    share, own = {BULK: 0.5, INTERACTIVE: 0.75, WORK: 1.0}, {BULK: 0.5, INTERACTIVE: 0.625, WORK: 1.0}
    if port.under_way[rank] >= port.places * own[rank]:
        return False
    return all(
        sum(n for kind, n in port.under_way.items() if kind <= most) < port.places * share[most]
        for most in RANKS
        if most >= rank
    )


@settings(max_examples=300, deadline=None)
@given(BOUNDS, MOVES)
def test_every_call_has_one_fate_and_who_matters_less_goes_first(
    bounds: Bounds, moves: list[tuple[str, Criticality, str]]
) -> None:
    port, now_ms, waiting, under_way = Port(bounds), 0, dict[int, Waiting](), list[Criticality]()
    for number, (move, rank, tenant) in enumerate(moves):
        if move == "come":
            free = _room(port, rank)
            if port.begin(rank):
                assert free
                assert not any(call.criticality is rank for call in waiting.values())
                under_way.append(rank)
            else:
                waiting[number] = Waiting(number, rank, tenant, now_ms)
                port.wait(waiting[number])
        elif move == "end" and rank in under_way:
            under_way.remove(rank)
            port.end(rank)
        elif move == "cancel" and waiting:
            gone = next(iter(waiting.values()))
            assert port.line.remove(waiting.pop(gone.number))
            assert not port.line.remove(gone)
        elif move == "pass":
            now_ms += 400
        while (call := port.starting()) is not None:
            for other in waiting.values():
                assert other.criticality <= call.criticality or not _room(port, other.criticality), (
                    "one that matters more waited"
                )
                assert (other.criticality, other.tenant) != (call.criticality, call.tenant) or other.number >= call.number
            under_way.append(waiting.pop(call.number).criticality)
        over = len(waiting) - bounds.waiting
        while (call := port.shed(now_ms)) is not None:
            assert over > 0 or now_ms - call.since_ms > bounds.hurried_ms[call.criticality - 1], "nobody had to go"
            if over > 0:
                counts = {name: sum(other.tenant == name for other in waiting.values()) for name in "abc"}
                greedy = [name for name, count in counts.items() if count * 2 > len(waiting)]
                could = [other for other in waiting.values() if not greedy or other.tenant == greedy[0]]
                assert call.criticality is min(other.criticality for other in could)
                same = [other for other in could if other.criticality is call.criticality]
                mine = [other.number for other in same if other.tenant == call.tenant]
                assert all(len([o for o in same if o.tenant == name]) <= len(mine) for name in "abc"), "not of who has most"
                assert call.number == (min(mine) if call.criticality is BULK else max(mine))
            del waiting[call.number]
            over -= 1
        assert len(port.line) == len(waiting) <= bounds.waiting
        assert {rank: under_way.count(rank) for rank in RANKS} == port.under_way
        assert not any(_room(port, call.criticality) for call in waiting.values()), "a place stays free while one waits"


def test_what_ends_work_finds_a_place_however_many_others_came() -> None:
    port = Port(Bounds(places=8, least_places=8))
    assert [port.begin(BULK) for _ in range(5)] == [True] * 4 + [False]
    assert [port.begin(INTERACTIVE) for _ in range(3)] == [True] * 2 + [False]
    assert [port.begin(WORK) for _ in range(3)] == [True] * 2 + [False]


def test_a_flood_of_what_is_urgent_leaves_a_place_for_anothers_bulk_and_pays_itself() -> None:
    port = Port(Bounds(places=8, least_places=8, waiting=10))
    assert [port.begin(INTERACTIVE) for _ in range(6)] == [True] * 5 + [False]
    assert port.begin(BULK)
    for number in range(10):
        port.wait(Waiting(number, INTERACTIVE, "a", 0))
    port.wait(Waiting(10, BULK, "b", 0))
    shed = port.shed(0)
    assert shed is not None
    assert (shed.tenant, shed.number) == ("a", 9)


def test_tenants_take_turns() -> None:
    port = Port(Bounds(places=2, least_places=2))
    assert port.begin(BULK)
    assert not port.begin(BULK)
    for number, tenant in enumerate("aaaab"):
        port.wait(Waiting(number, BULK, tenant, 0))
    order = []
    for _ in range(3):
        port.end(BULK)
        call = port.starting()
        assert call is not None
        order.append(call.tenant)
    assert order == ["a", "b", "a"]


def test_a_line_that_stands_makes_everybody_less_patient_bulk_first() -> None:
    bounds = Bounds(places=2, least_places=2)
    port = Port(bounds)
    assert port.begin(WORK)
    assert port.begin(WORK)
    for number, rank in enumerate(RANKS):
        port.wait(Waiting(number, rank, "a", 0))
    gone = []
    for now_ms in range(0, 6_000, 50):
        while (call := port.shed(now_ms)) is not None:
            gone.append((call.criticality, now_ms))
    assert gone == [(BULK, 500), (INTERACTIVE, 1_050), (WORK, 5_050)]


def test_a_line_that_empties_now_and_then_is_patient() -> None:
    port = Port(Bounds(places=2, least_places=2))
    assert port.begin(BULK)
    for now_ms in range(0, 4_000, 400):
        port.wait(Waiting(now_ms, BULK, "a", now_ms))
        assert port.shed(now_ms + 399) is None
        port.end(BULK)
        assert port.starting() is not None


def test_a_late_event_loop_costs_places_only_when_it_stays_late_and_is_busy_with_us() -> None:
    port = Port(Bounds(places=100, least_places=10))
    for now_ms, lag_ms in ((1_000, 900.0), (1_300, 0.0), (1_600, 900.0)):
        port.weigh(lag_ms, now_ms)
    assert port.places == 100, "one late turn is none"
    port.weigh(900.0, 1_900)
    assert port.places == 100, "what makes it late is not ours"
    for turn in range(30):
        for _ in range(30):
            if port.begin(WORK):
                port.end(WORK)
        port.weigh(900.0, 2_200 + 300 * turn)
    assert port.places == 10
    for turn in range(10):
        port.weigh(0.0, 20_000 + 300 * turn)
    assert port.places == 100


@given(st.integers(1, 3_000))
def test_who_was_sent_away_comes_again_at_a_rate_and_never_all_at_once(callers: int) -> None:
    pacer = Pacer(per_s=500, least_ms=100, most_ms=30_000)
    delays = [pacer.delay_ms("a", 1_000) for _ in range(callers)]
    assert all(100 <= delay <= 37_500 for delay in delays)
    for begin in range(0, 8_000, 1_000):
        there = sum(begin <= delay < begin + 1_000 for delay in delays)
        assert there <= 500 * 1.3 + 50 + (50 if begin == 0 else 0)


def test_one_tenants_crowd_does_not_put_off_another() -> None:
    pacer = Pacer(per_s=500)
    crowd = max(pacer.delay_ms("a", 1_000) for _ in range(10_000))
    assert crowd > 15_000
    assert Pacer(per_s=500).delay_ms("a", 0, slower=8.0) < Pacer(per_s=5).delay_ms("a", 0, slower=8.0)
    assert pacer.delay_ms("b", 1_000) < 200


def test_of_bulk_the_oldest_goes_and_of_the_rest_the_latest() -> None:
    for rank, expected in ((BULK, [0, 1]), (INTERACTIVE, [4, 3]), (WORK, [4, 3])):
        port = Port(Bounds(places=1, least_places=1, waiting=3))
        for number in range(5):
            port.wait(Waiting(number, rank, "a", 0))
        gone = [call.number for call in (port.shed(0), port.shed(0)) if call is not None]
        assert (gone, port.shed(0)) == (expected, None)
