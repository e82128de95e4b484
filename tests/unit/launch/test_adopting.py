"""What a promoted launch makes of a run, case by case."""

from uuid import UUID

import pytest

from libs.kernel.epochs import Mode, make_epoch
from services.launch.domain.adopting import Held, adopt, close_orphan, settle_told, tell_again
from services.launch.domain.closing import Closing
from services.launch.domain.run import RunHead, RunState

RUN = UUID(int=7)
OLD, NEW = 256, 257


def head(state: RunState = RunState.RUNNING, outcome: str = "", epoch: int = make_epoch(OLD, 1), **more: object) -> RunHead:
    facts: dict[str, object] = {"enforced": 0, "quiesced": 0, "awaits": False} | more
    return RunHead(
        RUN, "acme", "default", state, outcome, epoch, 3, 7, capabilities=(), budget_micros=5, used_micros=0, **facts
    )  # type: ignore[arg-type]


def held(counter: int = 1, mode: Mode = Mode.OPEN, outcome: str = "", incarnation: int = OLD) -> Held:
    return Held(RUN, make_epoch(incarnation, counter), mode, outcome)


@pytest.mark.parametrize("outcome", ["cancelled", "succeeded", "failed", "expired"])
def test_a_closed_gate_brings_its_outcome(outcome: str) -> None:
    adopted = adopt(head(), held(2, Mode.CLOSED, outcome), NEW)
    assert adopted is not None
    assert (adopted.outcome, adopted.found, adopted.epoch) == (outcome, True, make_epoch(NEW, 3))
    assert adopted.state == (RunState.CANCELLING if outcome == "cancelled" else RunState.CLOSING)
    assert adopted.awaits == (outcome in ("succeeded", "failed"))
    assert (adopted.failure is not None) == (outcome == "expired")


def test_a_gate_closed_without_an_outcome_is_never_opened_again() -> None:
    adopted = adopt(head(), held(2, Mode.CLOSED), NEW)
    assert adopted is not None
    assert adopted.outcome == "cancelled"


def test_the_outcome_that_launch_has_stands() -> None:
    adopted = adopt(head(RunState.CLOSING, "failed"), held(2, Mode.CLOSED, "cancelled"), NEW)
    assert adopted is not None
    assert (adopted.outcome, adopted.state, adopted.found, adopted.awaits) == ("failed", RunState.CLOSING, False, False)


@pytest.mark.parametrize("mode", [Mode.OPEN, Mode.DRAINING])
def test_an_open_run_keeps_its_state_under_an_epoch_above_everything_held(mode: Mode) -> None:
    adopted = adopt(head(), held(9, mode, incarnation=NEW + 1), NEW)
    assert adopted is not None
    assert (adopted.state, adopted.outcome) == (RunState.RUNNING, "")
    assert adopted.epoch > make_epoch(NEW + 1, 9), "a point held what an incarnation issued that was lost altogether"


@pytest.mark.parametrize("known", [head(RunState.SUCCEEDED, "succeeded"), head(epoch=make_epoch(NEW, 1))])
def test_what_is_terminal_or_adopted_is_left_alone(known: RunHead) -> None:
    assert adopt(known, held(5, Mode.CLOSED, "cancelled"), NEW) is None


def test_the_end_is_told_again_once_and_only_the_same() -> None:
    awaiting = head(RunState.CLOSING, "succeeded", enforced=7, quiesced=7, awaits=True)
    ask = Closing(RUN, "succeeded", b"out", None, "readiness", "")
    assert tell_again(awaiting, ask) is ask
    assert tell_again(awaiting, Closing(RUN, "failed", b"", None, "readiness", "")) is None
    assert tell_again(head(RunState.CLOSING, "succeeded"), ask) is None
    settled = settle_told(awaiting)
    assert settled is not None
    assert (settled.state, settled.head.version, settled.head.awaits) == (RunState.SUCCEEDED, 4, False)
    assert settle_told(head(RunState.CLOSING, "succeeded", enforced=7, quiesced=3, awaits=True)) is None


def test_an_orphan_is_closed_unless_it_is_young_or_closed() -> None:
    orphan = close_orphan(held(4), NEW)
    assert orphan is not None
    assert orphan.epoch == make_epoch(NEW, 5)
    assert close_orphan(held(4, Mode.CLOSED, "failed"), NEW) is None
    assert close_orphan(held(1, incarnation=NEW), NEW) is None
