"""Whether an attempt's output is what its step promised: a misfit is a failure of class validation, told as such.

Can go wrong: trusting the worker to check. It may be another build, or not our SDK at all.
"""

from dataclasses import replace

from libs.rpc.schemas import Misfit, check
from services.readiness.domain.graph import Node
from services.readiness.domain.steps import AttemptFact, End, FailureFacts


def as_promised(node: Node, fact: AttemptFact) -> AttemptFact:
    """The fact as it came; where a success does not fit the step's schema, the failure that it is."""
    if fact.end != End.SUCCEEDED or not node.output_schema or fact.read is None:
        return fact
    try:
        check(node.output_schema, fact.read(), "output")
    except Misfit as misfit:
        failure = FailureFacts("validation", f"{misfit.path} does not fit the step's schema: {misfit.problem}", "OUTPUT_MISFIT")
        return replace(fact, end=End.FAILED, output=b"", failure=failure)
    return fact
