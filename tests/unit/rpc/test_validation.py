"""No text with a NUL gets past the door, wherever in a message it is; trees of values may hold one."""

import pytest
from google.protobuf.message import Message
from runway.common.v1 import common_pb2
from runway.events.v1 import events_pb2
from runway.launch.v1 import launch_service_pb2 as la
from runway.launch.v1 import workflow_pb2 as wf
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway_sdk.values import to_value

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.validation import check_message

NUL = "n\0l"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (la.LaunchRunRequest(workflow=NUL), "workflow"),
        (wk.ClaimAttemptsRequest(claim_id=bytes(16), worker_id="w", slots=1, handlers=["a", NUL]), "handlers[1]"),
        (la.LaunchRunRequest(workflow="w", labels={NUL: "a"}), "labels"),
        (la.LaunchRunRequest(workflow="w", labels={"a": NUL}), "labels"),
        (la.LaunchRunsRequest(launches=[la.LaunchRunRequest(workflow="w"), la.LaunchRunRequest(workflow=NUL)]), "launches[1]"),
        (
            la.PublishWorkflowVersionRequest(
                spec=wf.WorkflowSpec(name="w", build="1", steps=[wf.StepSpec(key="a", needs=[wf.Need(step=NUL)])])
            ),
            "spec.steps[0].needs[0].step",
        ),
    ],
)
def test_a_nul_is_refused_by_its_path_and_not_echoed(message: Message, field: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_message(message)
    assert refused.value.reason is Reason.INVALID_FIELD
    assert refused.value.field.startswith(field)
    assert "\0" not in refused.value.message


def test_bytes_values_and_failures_may_hold_one() -> None:
    completion = wk.Completion(lease_token=b"t", failure=common_pb2.Failure(failure_class="attempt", message=NUL, type=NUL))
    check_message(wk.CompleteAttemptsRequest(completions=[completion]))
    check_message(la.LaunchRunRequest(workflow="w", input=to_value({NUL: NUL}, "input")))
    check_message(events_pb2.Event(event_id=bytes(16)))
