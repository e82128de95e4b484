"""Two worker processes of one name: the leaving of the old one takes nothing of the new one. No service runs."""

import pytest

from services.scheduler.app.roll import Heard, Left, Name, has_left, leave, see

NAME: Name = ("a", "w1")
OLD, NEW = b"old", b"new"
HANDLERS = frozenset({"f@1"})
pytestmark = pytest.mark.requirement("sched.switch")


class Roll:
    """What one process has heard."""

    def __init__(self) -> None:
        self.workers: dict[Name, Heard] = {}
        self.left: dict[Name, Left] = {}
        self.now_ms = 0

    def claims(self, process: bytes) -> None:
        self.now_ms += 1
        see(self.workers, self.left, Heard("a", "", "w1", HANDLERS, frozenset(), self.now_ms, process=process))

    def beats(self, process: bytes) -> None:
        self.now_ms += 1
        see(self.workers, self.left, Heard("a", "", "w1", frozenset(), frozenset(), self.now_ms, process=process))

    def leaves(self, process: bytes, *, last: bool = False) -> None:
        self.now_ms += 1
        leave(self.workers, self.left, NAME, Left(self.now_ms, process), last=last)

    @property
    def at_work(self) -> bytes | None:
        return self.workers[NAME].process if NAME in self.workers else None


def test_an_old_process_that_drains_takes_nothing_of_its_namesake() -> None:
    roll = Roll()
    roll.claims(OLD)
    roll.leaves(OLD)
    assert roll.at_work is None
    roll.claims(NEW)
    for _ in range(3):
        roll.leaves(OLD)
        assert roll.at_work == NEW
    roll.leaves(OLD, last=True)
    assert (roll.at_work, has_left(roll.left, NAME, NEW)) == (NEW, False)
    roll.leaves(NEW)
    assert (roll.at_work, has_left(roll.left, NAME, NEW)) == (None, True)


def test_a_process_says_once_that_it_leaves_and_is_not_written_down_anew_with_each_beat() -> None:
    roll = Roll()
    roll.claims(OLD)
    roll.leaves(OLD)
    first = roll.left[NAME]
    roll.leaves(OLD)
    assert roll.left[NAME] == first
    roll.leaves(OLD, last=True)
    assert roll.left[NAME].at_ms > first.at_ms, "beats that come late are told from it for a while longer"


def test_a_claim_that_comes_late_makes_nobody_a_worker_again() -> None:
    roll = Roll()
    roll.claims(OLD)
    roll.leaves(OLD)
    roll.claims(OLD)
    roll.beats(OLD)
    assert roll.at_work is None


def test_beats_of_a_namesake_do_not_keep_the_other_one_at_work() -> None:
    roll = Roll()
    roll.claims(NEW)
    seen_ms = roll.workers[NAME].seen_ms
    roll.beats(OLD)
    assert roll.workers[NAME].seen_ms == seen_ms
    roll.beats(NEW)
    assert roll.workers[NAME].seen_ms > seen_ms


def test_processes_that_do_not_say_which_they_are_are_taken_for_one() -> None:
    roll = Roll()
    roll.claims(b"")
    roll.leaves(b"")
    assert (roll.at_work, has_left(roll.left, NAME, NEW)) == (None, True)
    roll.claims(b"")
    assert roll.at_work == b""
    roll.leaves(OLD)
    assert roll.at_work is None
