"""A run that came to nothing says on stderr how to find out why, and how it goes on; one that did what it should says nothing."""

import pytest
from runway.launch.v1 import launch_service_pb2 as pb

from libs.cli.commands.runs import _say_what_next
from tests.unit.pasted import commands


@pytest.mark.requirement("run.retry-fork")
@pytest.mark.parametrize("outcome", ["failed", "expired", "succeeded", "cancelled", "denied", ""])
def test_what_came_to_nothing_says_what_is_next(outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    _say_what_next(pb.Run(run_id="r-1", outcome=outcome))
    said = capsys.readouterr()
    wanted = [["explain", "r-1"], ["run", "retry", "r-1"]] if outcome in ("failed", "expired") else []
    assert (commands(said.err), said.out) == (wanted, "")
