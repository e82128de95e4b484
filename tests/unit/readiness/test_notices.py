"""What every ticket of a step says is kept, within bounds, and is the same however often it was forgotten."""

import pytest

from libs.testkit.ids import SeededIds
from services.readiness.clients import notices
from services.readiness.clients.notices import EventNotices
from services.readiness.domain.graph import When
from tests.unit.readiness.test_steps import graph, node

CHAIN = graph(node("a"), node("b", ("a", When.SUCCESS)), node("c", ("b", When.SUCCESS)))


def test_templates_weigh_no_more_than_they_may_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = EventNotices(SeededIds(), 1_000)
    first = made._template(b"0", CHAIN, "a")
    assert [after.step_key for after in first.successors.steps] == ["b"]
    assert made._template(b"0", CHAIN, "a") is first
    monkeypatch.setattr(notices, "REMEMBERED_BYTES", 3 * first.ByteSize())
    for number in range(1, 20):
        made._template(b"%d" % number, CHAIN, "a")
    assert made._bytes == sum(size for _, size in made._same.values()) <= notices.REMEMBERED_BYTES
    assert (b"0", "a") not in made._same
    assert (b"19", "a") in made._same
    again = made._template(b"0", CHAIN, "a")
    assert again is not first
    assert again == first


def test_a_ticket_says_whether_anything_else_follows() -> None:
    split = graph(
        node("a"),
        node("b", ("a", When.SUCCESS)),
        node("c", ("a", When.FAILURE)),
        node("d", ("b", When.SUCCESS), ("c", When.ALWAYS)),
    )
    made = EventNotices(SeededIds(), 1_000)
    assert made._template(b"0", CHAIN, "a").successors.whole
    beside = made._template(b"1", split, "a").successors
    assert [after.step_key for after in beside.steps] == ["b"]
    assert not beside.whole, "c waits for readiness to hear that a did not fail"
