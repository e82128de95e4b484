"""Explanations of steps for launch: read, decide, translate. Authoritative for nothing.

Can go wrong: a run that was launched a moment ago, or is forgotten. It is answered as not known.
"""

from collections.abc import Sequence
from uuid import UUID

from runway.internal.readiness.v1 import readiness_internal_pb2 as pb

from libs.kernel.blockers import Blocker
from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal
from libs.rpc.explained import blocker_to
from services.readiness import translate
from services.readiness.domain.explain import BROUGHT_BY_PEOPLE, child_asks, explain, shown_slots
from services.readiness.domain.state import RunView
from services.readiness.ports import Question, StepReads, Versions

DEFAULT_PAGE = 100
MOST_BELOW = 100
STEPS_SHOWN = 20
"""Steps of a run that are named to who named none of them."""


class Explanations:
    """Answers `ExplainSteps`."""

    def __init__(self, reads: StepReads, versions: Versions, clock: Clock) -> None:
        self._clock = clock
        self._reads = reads
        self._versions = versions

    async def steps(self, request: pb.ExplainStepsRequest) -> pb.ExplainStepsResponse:
        """A page of steps that are not over, or the one that is named."""
        found = await self._reads.read_steps(UUID(bytes=request.run_id))
        if found is None:
            return pb.ExplainStepsResponse(known=False)
        run, steps = found
        graph = (await self._versions.graphs([run.digest]))[run.digest]
        view = RunView(run.run_id, graph, steps)
        if request.step_key:
            if request.step_key not in steps:
                raise _no_step(run.run_id, view, request.step_key)
            await self._name_waits(view, [request.step_key])
            return pb.ExplainStepsResponse(known=True, steps=[_explained(view, request.step_key)])
        size = request.page_size or DEFAULT_PAGE
        open_ = [
            (place, step.key)
            for place, step in enumerate(translate.ordered(view), 1)
            if place > request.after and not step.over
        ]
        await self._name_waits(view, [key for _, key in open_[:size]])
        page = [_explained(view, key) for _, key in open_[:size]]
        asks = await self._reads.open_below(run.run_id, self._clock.now_ms(), MOST_BELOW)
        below = [blocker_to(_asks(question)) for question in asks]
        after = open_[size - 1][0] if len(open_) > size else 0
        return pb.ExplainStepsResponse(known=True, steps=page, next_after=after, below=below)

    async def _name_waits(self, view: RunView, keys: Sequence[str]) -> None:
        """Reads what people can bring to these steps, so that the command to do it can be said whole."""
        steps = [view.steps[key] for key in keys if view.steps[key].wait_reason in BROUGHT_BY_PEOPLE]
        slots = [(step.key, slot) for step in steps for slot in shown_slots(step)]
        if slots:
            view.waits |= {wait.key: wait for wait in await self._reads.read_waits(view.run_id, slots)}


def _no_step(run_id: UUID, view: RunView, asked: str) -> Refusal:
    names = [step.key for step in translate.ordered(view)]
    shown = ", ".join(names[:STEPS_SHOWN]) + (f" and {len(names) - STEPS_SHOWN} more" if len(names) > STEPS_SHOWN else "")
    return Refusal(Reason.NOT_FOUND, f"run {run_id} has no step {asked!r}", remedy=f"its steps are {shown}")


def _explained(view: RunView, key: str) -> pb.StepExplained:
    step = view.steps[key]
    return pb.StepExplained(
        step_key=key,
        state=step.state.name.lower(),
        blockers=[blocker_to(found) for found in explain(view, key)],
        attempts=step.attempts,
        ticket_sequence=step.ticket_sequence,
    )


def _asks(question: Question) -> Blocker:
    shown = translate.input_message(question, 0)
    return child_asks(str(question.run_id), question.wait, shown.prompt[: translate.PROMPT_CHARS])
