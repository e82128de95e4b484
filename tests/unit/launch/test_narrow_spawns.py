"""A child of a run from which something was taken, where the run was granted all of a kind: no more than the run."""

from uuid import UUID

import pytest

from libs.fence.grants import Revoked, allows, narrowed
from services.launch.domain.facts import Version
from services.launch.domain.run import RunHead, RunState
from services.launch.domain.spawning import ChildAsk, SpawnAsk, child_of
from services.launch.domain.workflow import StepSpec, WorkflowSpec

RUN = UUID(int=1)


@pytest.mark.requirement("child.bounded")
def test_a_child_inherits_the_exception() -> None:
    grant = narrowed(("tool:*",), [Revoked("tool:a", 5, "key:olga")])
    parent = RunHead(RUN, "acme", "web", RunState.RUNNING, "", 1, 1, 7, 0, 0, grant, 0, 0)
    step = StepSpec("act", "h@1", (), 1, 0, 1.0, 0, (), 0, 0, ("a", "b"), (), False, ())
    spec = WorkflowSpec("child", "1", (step,), "act", 0)
    version = Version("acme", "web", "child", 1, b"d" * 32, b"", 0, spec)
    ask = SpawnAsk(RUN, "act", "s", "s", False, (ChildAsk("x", "child", b""),))
    child = child_of(parent, ask, 0, version, UUID(int=2), b"", 8, 0, 1000)
    assert (allows(child.capabilities, "tool:a"), allows(child.capabilities, "tool:b")) == (False, True)
