"""How much can be taken from a run: many capabilities by name, and always all of a kind."""

from uuid import UUID

import pytest

from libs.fence.grants import Revoked, allows
from libs.kernel.refusal import Reason, Refusal
from services.launch.domain.revoking import MOST_EXCEPTIONS, decide_revocation
from services.launch.domain.run import RunHead, RunState


def head(grant: tuple[str, ...]) -> RunHead:
    return RunHead(UUID(int=1), "acme", "web", RunState.RUNNING, "", 1, 1, 7, 0, 0, grant, 0, 0)


def taken(*capabilities: str) -> list[Revoked]:
    return [Revoked(capability, 1, "ops") for capability in capabilities]


@pytest.mark.requirement("child.bounded")
def test_when_no_more_can_be_taken_by_name_all_of_a_kind_still_can() -> None:
    names = [f"tool:t{number}" for number in range(MOST_EXCEPTIONS + 2)]
    first = decide_revocation(head((*names, "model:m")), taken(*names[:MOST_EXCEPTIONS]), 1)
    assert first is not None
    with pytest.raises(Refusal) as no:
        decide_revocation(first.head, taken(names[-1]), 1)
    assert (no.value.reason, no.value.remedy) == (Reason.QUOTA_EXCEEDED, "take all of a kind: tool:*")
    second = decide_revocation(first.head, taken("tool:*"), 1)
    assert second is not None
    assert not any(allows(second.head.capabilities, name) for name in names)
    third = decide_revocation(second.head, taken("model:*"), 1)
    assert third is not None
    assert not allows(third.head.capabilities, "model:m")
    assert decide_revocation(third.head, taken(names[-1]), 1) is None, "it is gone with its kind"
