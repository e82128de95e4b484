"""What a point's answer says of a pause: only that of a gate that drains. A pause keeps the epoch of the resume before it."""

from uuid import UUID

import pytest

from libs.kernel.epochs import Mode
from services.launch.domain.closing import Receipt, apply_receipts
from services.launch.domain.run import RunHead, RunState

RUN = UUID(int=7)


def head(state: RunState, *, revoking: bool = False) -> RunHead:
    return RunHead(RUN, "t", "p", state, "", 5, 1, 0b101, 0, 0, (), 0, 0, paused_ms=1, revoking=revoking)


@pytest.mark.requirement("run.pause")
@pytest.mark.parametrize("state", [RunState.PAUSING, RunState.PAUSED])
def test_a_late_answer_to_a_resume_confirms_no_pause(state: RunState) -> None:
    late = Receipt(RUN, 0b001, 5, False, mode=Mode.OPEN)
    assert apply_receipts(head(state, revoking=True), [late]) is None
    told = apply_receipts(head(state, revoking=True), [late, Receipt(RUN, 0b100, 5, True, mode=Mode.DRAINING)])
    assert told is not None
    assert (told.enforced, told.quiesced, told.state) == (0b100, 0b100, state)


@pytest.mark.requirement("run.pause")
def test_a_run_is_paused_by_answers_of_gates_that_drain() -> None:
    both = [Receipt(RUN, bit, 5, True, mode=Mode.DRAINING) for bit in (0b001, 0b100)]
    told = apply_receipts(head(RunState.PAUSING), both)
    assert told is not None
    assert told.state is RunState.PAUSED


@pytest.mark.requirement("child.bounded")
def test_what_is_taken_from_a_run_that_goes_on_is_confirmed_by_an_open_gate() -> None:
    told = apply_receipts(head(RunState.RUNNING, revoking=True), [Receipt(RUN, 0b001, 5, False, mode=Mode.OPEN)])
    assert told is not None
    assert told.enforced == 0b001
