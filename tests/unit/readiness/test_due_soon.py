"""What a process keeps in mind of steps that wait: only what is near."""

import pytest

from services.readiness.store.due import LOOK_EVERY_MS, DueSoon


@pytest.mark.requirement("step.wait")
def test_what_is_due_later_costs_no_memory_and_is_found_by_looking() -> None:
    due = DueSoon()
    assert not due.look(1_000_000, 0)
    due.note(range(1_010_000, 1_210_000))
    assert len(due) == 0
    assert due.look(1_000_001, LOOK_EVERY_MS), "now and then the rows are asked"


def test_what_is_near_is_looked_for_at_its_time_and_once() -> None:
    due = DueSoon()
    assert not due.look(1_000_000, 0)
    due.note([1_000_200, 1_000_100, 1_000_100])
    assert not due.look(1_000_099, 0)
    assert due.look(1_000_100, 0)
    assert not due.look(1_000_101, 0)
    assert due.look(1_000_900, 0)
    assert len(due) == 0
