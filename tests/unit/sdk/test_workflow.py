"""Functions become contracts: edges from parameters, conditions, contracts, mistakes said at definition."""

from datetime import timedelta

import pytest
from pydantic import BaseModel
from runway.launch.v1 import workflow_pb2
from runway_sdk import Context, InvalidRequest, Retry, StepFailed, ToolFailed, WorkflowError, step, workflow
from runway_sdk.arguments import arguments_of
from runway_sdk.reporting import failure_of
from runway_sdk.values import from_value, to_value


class Order(BaseModel):
    item: str
    pieces: int = 1


@step
def first(run: Order) -> int:
    """Counts."""
    return run.pieces


@step(key="audit-all", tools=["git.push"], timeout=timedelta(seconds=5), retry=Retry(max_attempts=2))
async def audit(ctx: Context, first: int) -> list[str]:
    return []


@step(needs={"audit-all": "failure"}, any_need=True)
def mend(first: int) -> str:
    return "mended"


@step
def last(run: Order, audit_all: list[str], mend: str = "nothing") -> str:
    return mend


FLOW = workflow("shop", build="7", steps=[first, audit, mend, last], input=Order, output=last, deadline=timedelta(hours=2))


def test_parameters_name_edges_and_contracts_travel() -> None:
    spec = FLOW.spec()
    by_key = {item.key: item for item in spec.steps}
    assert (spec.name, spec.build, spec.output_step, spec.default_deadline.seconds) == ("shop", "7", "last", 7200)
    assert [(need.step, need.when) for need in by_key["mend"].needs] == [
        ("first", workflow_pb2.CONDITION_SUCCESS),
        ("audit-all", workflow_pb2.CONDITION_FAILURE),
    ]
    assert by_key["mend"].join == workflow_pb2.JOIN_ANY
    assert (list(by_key["audit-all"].tools), by_key["audit-all"].timeout.seconds) == (["git.push"], 5)
    assert by_key["audit-all"].retry.max_attempts == 2
    assert by_key["first"].description == "Counts."
    assert spec.input_schema["properties"]["item"]["type"] == "string"
    assert set(FLOW.handlers) == {"shop.first@7", "shop.audit-all@7", "shop.mend@7", "shop.last@7"}


def test_arguments_are_validated_and_optional_ones_may_be_missing() -> None:
    given = {"run": {"item": "tea", "pieces": 3}, "steps": {"audit-all": ["x"]}}
    arguments = arguments_of(last, given)
    assert arguments == {"run": Order(item="tea", pieces=3), "audit_all": ["x"]}
    with pytest.raises(ValueError, match="valid integer"):
        arguments_of(first, {"run": {"item": "tea", "pieces": "many"}})


def test_a_step_is_still_a_function() -> None:
    assert first(Order(item="tea", pieces=4)) == 4


def test_mistakes_are_said_when_the_workflow_is_defined() -> None:
    @step
    def lost(nowhere: int) -> int:
        return nowhere

    with pytest.raises(WorkflowError, match="names no step"):
        workflow("w", steps=[lost])
    with pytest.raises(WorkflowError, match="one key"):
        workflow("w", steps=[first, first])
    needing = step(needs=["ghost"])(lambda: 1)
    with pytest.raises(WorkflowError, match="ghost"):
        workflow("w", steps=[needing])


def test_values_travel_unchanged_and_what_cannot_is_refused() -> None:
    data = {"a": [1, 2.5, None, True, "x"], "b": {"c": -(2**53)}}
    assert from_value(to_value(data)) == data
    nested = {"orders": [Order(item="tea")], "child": {"input": Order(item="milk", pieces=2)}}
    plain = {"orders": [{"item": "tea", "pieces": 1}], "child": {"input": {"item": "milk", "pieces": 2}}}
    assert from_value(to_value(nested)) == plain, "models are taken wherever they are"
    with pytest.raises(InvalidRequest) as refused:
        to_value({"n": [1, 2**53 + 1]}, "input")
    assert refused.value.field == "input.n[1]"
    with pytest.raises(InvalidRequest):
        to_value(object())
    with pytest.raises(InvalidRequest):
        to_value(float("nan"))


@pytest.mark.requirement("step.retry")
@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (StepFailed("no", "policy"), "policy"),
        (ToolFailed("no", "transient", "Http503"), "transient"),
        (RuntimeError("boom"), "attempt"),
        (InvalidRequest("bad"), "validation"),
    ],
)
def test_failures_carry_a_class_that_policy_knows(error: Exception, failure_class: str) -> None:
    assert failure_of(error).failure_class == failure_class


@pytest.mark.parametrize("keys", [("a-b", "a_b"), ("run", "other")])
def test_steps_that_would_be_one_parameter_are_refused(keys: tuple[str, str]) -> None:
    def nothing() -> None:
        return None

    with pytest.raises(WorkflowError, match="one parameter"):
        workflow("twins", steps=[step(key=key)(nothing) for key in keys])
