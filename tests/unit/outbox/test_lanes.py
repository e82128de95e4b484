"""What waits in memory for one receiver, and when it may be sent."""

from uuid import UUID

from libs.outbox import Outgoing, RelaySettings
from libs.outbox.lanes import GRAIN_S, Lane, pause


def event(number: int, size: int = 1) -> Outgoing:
    return Outgoing(UUID(int=number), "readiness", "run_launched", UUID(int=0), b"x" * size)


def lane_of(settings: RelaySettings, *events: Outgoing) -> Lane:
    lane = Lane("readiness", "event", settings)
    for each in events:
        lane.admit(each)
    return lane


def test_batches_are_bounded_in_number_and_bytes() -> None:
    lane = lane_of(RelaySettings(batch_events=2, batch_bytes=10), event(1), event(2), event(3, 9), event(4, 5), event(5, 50))
    sizes = []
    while batch := lane.take(0):
        sizes.append([len(each.payload) for each in batch])
    assert sizes == [[1, 1], [9], [5], [50]]


def test_two_batches_are_in_flight_and_no_more() -> None:
    lane = lane_of(RelaySettings(batch_events=1), event(1), event(2), event(3))
    for _ in range(2):
        assert lane.take(0)
        lane.in_flight += 1
    assert lane.take(0) == []
    lane.in_flight -= 1
    assert [each.event_id.int for each in lane.take(0)] == [3]


def test_a_failing_receiver_is_left_alone_longer_each_time_and_tried_at_once_after_an_answer() -> None:
    settings = RelaySettings(retry_first_ms=50, retry_longest_ms=300)
    lane = lane_of(settings, event(1))
    assert [lane.failed(10.0) for _ in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]
    assert lane.take(10.2) == []
    assert lane.take(10.31)
    lane.again([event(1)])
    lane.failed(20.0)
    lane.succeeded()
    assert lane.take(20.0)
    assert pause(10_000, settings) == 0.3


def test_room_is_counted_until_an_event_leaves() -> None:
    lane = lane_of(RelaySettings(lane_events=2), event(1), event(2))
    assert lane.full
    lane.take(0)
    assert lane.full, "what is in flight still takes room"
    lane.leave(event(1))
    assert not lane.full
    assert lane_of(RelaySettings(lane_bytes=10), event(1, 10)).full


def test_raises_have_a_lane_of_their_own() -> None:
    assert event(1).lane == "event"
    assert Outgoing(UUID(int=1), "gateway", "raise_fences", UUID(int=0), b"").lane == "raise"


def test_at_every_moment_a_lane_gives_a_batch_or_says_how_long_it_waits() -> None:
    settings = RelaySettings(spacing_ms=20, retry_first_ms=50)
    began_s = 6869.393  # here began + 0.02 - (began + 0.02) is not 0 in floating point
    for failed in (False, True):
        for step in range(80):
            lane = lane_of(settings, event(1), event(2))
            assert lane.take(began_s)
            if failed:
                lane.failed(began_s)
            lane.again([event(3)])
            now_s = round(began_s + step / 1000, 3)
            waits_s = lane.waits_s(now_s)
            assert bool(lane.take(now_s)) != bool(waits_s), (failed, step)
            assert waits_s == 0 or waits_s > GRAIN_S


def test_a_wait_that_a_timer_cannot_measure_is_over() -> None:
    lane = lane_of(RelaySettings(spacing_ms=20), event(1), event(2))
    lane.take(6869.393)
    lane.again([event(3)])
    assert 6869.393 + 0.02 - 6869.413 > 0, "a clock of whole milliseconds reads 20 ms later, and a sum of floats does not"
    assert lane.take(6869.413)


def test_as_many_as_are_worth_a_batch_wait_for_no_company() -> None:
    lane = lane_of(RelaySettings(spacing_ms=20, worth_events=3), event(1), event(2))
    assert lane.take(10.0)
    lane.again([event(3), event(4)])
    assert lane.take(10.001) == []
    lane.again([event(5)])
    assert len(lane.take(10.001)) == 3


def patient(number: int, key: int) -> Outgoing:
    return Outgoing(UUID(int=number), "readiness", "attempt_finished", UUID(int=key), b"x", patient=True)


def urgent(number: int, key: int) -> Outgoing:
    return Outgoing(UUID(int=number), "readiness", "attempt_finished", UUID(int=key), b"x")


def numbers(batch: list[Outgoing]) -> list[int]:
    return [each.event_id.int for each in batch]


def test_patient_events_wait_for_others_under_load_and_go_by_their_keys() -> None:
    lane = lane_of(RelaySettings(spacing_ms=20, patience_ms=200, lone_patience_ms=0), patient(1, 7), patient(2, 8))
    assert numbers(lane.take(10.0)) == [1, 2], "what came before was lonely: nothing is gained by waiting"
    for each in (patient(3, 7), patient(4, 8), patient(5, 7)):
        lane.admit(each)
    assert lane.take(10.1) == []
    assert round(lane.waits_s(10.1), 3) == 0.1
    assert numbers(lane.take(10.2)) == [3, 5, 4]
    assert lane.waits_s(10.2) == 0


def test_a_lonely_patient_event_waits_a_little_from_when_it_came() -> None:
    lane = lane_of(RelaySettings(patience_ms=200, lone_patience_ms=25), patient(1, 7))
    assert lane.take(10.0) == []
    assert round(lane.waits_s(10.01), 3) == 0.015
    assert numbers(lane.take(10.025)) == [1]
    assert lane.waits_s(10.5) == 0
    lane.admit(patient(2, 7))
    assert (lane.take(11.0), round(lane.waits_s(11.0), 3)) == ([], 0.025), "each waits by itself"
    lane.admit(urgent(3, 7))
    assert numbers(lane.take(11.01)) == [2, 3]
    lane.admit(patient(4, 8))
    assert (lane.take(12.0), round(lane.waits_s(12.0), 3)) == ([], 0.025), "what went along waits no more"


def test_an_event_takes_along_what_waits_of_its_key_and_never_overtakes_it() -> None:
    lane = lane_of(RelaySettings(spacing_ms=20, patience_ms=200, lone_patience_ms=0), patient(1, 7), patient(2, 8))
    lane.take(10.0)
    for each in (patient(3, 7), patient(4, 8), urgent(5, 7)):
        lane.admit(each)
    assert numbers(lane.take(10.02)) == [3, 5]
    assert round(lane.waits_s(10.02), 3) == 0.18, "the other key has its own patience"
    assert numbers(lane.take(10.2)) == [4]


def test_patient_events_of_a_lane_that_is_emptied_are_gone_with_the_others() -> None:
    lane = lane_of(RelaySettings(patience_ms=200), patient(1, 7), urgent(2, 8))
    lane.clear()
    assert (lane.take(10.0), lane.waits_s(10.0)) == ([], 0)


def test_a_lane_with_patient_events_alone_gives_a_batch_or_says_how_long_it_waits() -> None:
    settings = RelaySettings(spacing_ms=20, patience_ms=50, lone_patience_ms=0, retry_first_ms=30)
    began_s = 6869.393
    for failed in (False, True):
        for step in range(120):
            lane = lane_of(settings, patient(1, 7), patient(2, 7))
            assert lane.take(began_s)
            if failed:
                lane.failed(began_s)
            lane.admit(patient(3, 7))
            now_s = round(began_s + step / 1000, 3)
            waits_s = lane.waits_s(now_s)
            assert bool(lane.take(now_s)) != bool(waits_s), (failed, step)
