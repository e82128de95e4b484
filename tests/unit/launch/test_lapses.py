"""A limit that had passed when somebody looked is judged again as the run stands: for every state, and whatever moved since."""

from uuid import UUID

import pytest

from libs.kernel.epochs import make_epoch
from services.launch.domain.closing import Closing, Lapse, Limit, decide_closing
from services.launch.domain.run import RunHead, RunState

NOW = 1_000
MAY: dict[Limit, set[RunState]] = {
    Limit.DEADLINE: {RunState.ACCEPTED, RunState.QUEUED, RunState.RUNNING, RunState.WAITING},
    Limit.START: {RunState.ACCEPTED, RunState.QUEUED},
    Limit.PAUSE: {RunState.PAUSING, RunState.PAUSED},
}


def decided(limit: Limit, state: RunState, deadline_ms: int = NOW, pause_until_ms: int = NOW) -> bool:
    head = RunHead(
        run_id=UUID(int=7), tenant="a", project="p", state=state, outcome="", epoch=make_epoch(256, 1), version=3, points=7,
        enforced=0, quiesced=0, capabilities=(), budget_micros=0, used_micros=0, deadline_ms=deadline_ms,
        pause_until_ms=pause_until_ms,
    )  # fmt: skip
    ask = Closing(head.run_id, "expired", b"", None, "deadline", "why", Lapse(limit, NOW))
    return decide_closing(head, ask, 256) is not None


@pytest.mark.requirement("run.expire")
@pytest.mark.parametrize("limit", list(Limit))
@pytest.mark.parametrize("state", list(RunState))
def test_a_run_expires_only_in_states_in_which_the_limit_counts(limit: Limit, state: RunState) -> None:
    assert decided(limit, state) == (state in MAY[limit])


@pytest.mark.requirement("run.expire")
def test_a_limit_that_was_moved_since_has_not_passed() -> None:
    assert not decided(Limit.DEADLINE, RunState.RUNNING, deadline_ms=NOW + 1)
    assert not decided(Limit.PAUSE, RunState.PAUSED, pause_until_ms=NOW + 1)
