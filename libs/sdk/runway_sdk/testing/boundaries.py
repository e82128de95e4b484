"""The boundaries at which a test may end or pause a process. Authoritative for their names and for what dies there.

Can go wrong: a boundary that a workflow never reaches. It then never strikes; whoever armed it has to notice.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Boundary:
    """A fault point, what is done to the process that reaches it, and what that process is."""

    point: str
    victim: str
    text: str
    action: str = "kill"

    @property
    def of_worker(self) -> bool:
        """Whether a worker is struck, not the installation."""
        return self.victim == "worker"

    @property
    def knows_step(self) -> bool:
        """Whether it happens to one step at a time, so that one can choose which."""
        return self.victim != "scheduler"


CATALOGUE: Mapping[str, Boundary] = {
    "before_intent": Boundary(
        "gateway.before_intent", "gateway", "the gateway dies as a tool or model is called, before anything is written down"
    ),
    "after_intent": Boundary(
        "gateway.after_intent", "gateway", "the gateway dies with the intent written down, before anything is sent"
    ),
    "after_call": Boundary(
        "gateway.after_call", "gateway", "the gateway dies when the provider has answered, before the answer is written down"
    ),
    "after_receipt": Boundary(
        "gateway.after_receipt", "gateway", "the gateway dies with the answer written down, before the step has it"
    ),
    "before_completion": Boundary(
        "worker.before_completion", "worker", "the worker dies when a step's code has ended, before that is reported"
    ),
    "during_step": Boundary(
        "worker.during_step", "worker", "the worker dies with a step's lease in hand, as the step's code begins"
    ),
    "before_tool": Boundary("worker.before_intent", "worker", "the worker dies inside a step, as it calls a tool or model"),
    "zombie_tool": Boundary(
        "worker.before_intent",
        "worker",
        "the worker is paused as it calls a tool or model, until its lease is lost; it then goes on, and must be refused",
        "pause",
    ),
    "zombie_completion": Boundary(
        "worker.before_completion",
        "worker",
        "the worker is paused before it reports a step, until its lease is lost; it then goes on, and must be refused",
        "pause",
    ),
    "before_grant": Boundary(
        "scheduler.before_grant",
        "scheduler",
        "all services but the gateway die before a step is given to a worker",
    ),
    "after_grant": Boundary(
        "scheduler.after_grant",
        "scheduler",
        "all services but the gateway die with a step given to a worker that was not told",
    ),
    "after_complete": Boundary(
        "scheduler.after_complete",
        "scheduler",
        "all services but the gateway die with a step's end written down, the worker not told",
    ),
}
"""Every boundary that can be armed."""

BOUNDARIES: Mapping[str, str] = {
    name: CATALOGUE[name].point
    for name in ("before_intent", "after_intent", "after_call", "after_receipt", "before_completion")
}
"""The five around one effect → the fault point that it is."""
