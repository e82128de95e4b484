"""Answers to what steps ask people: the first one wins, in the run's lock; it must fit the question's schema.

Children ask through the root of their tree: who answers a root that asks nothing itself, and names no step, answers the only
question that is open below it. Can go wrong: two people answer at once, or one after the deadline. The second is told what
stands, unless it says the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from libs.kernel.ids import NIL
from libs.kernel.refusal import Reason, Refusal, invalid_field, not_found
from libs.kernel.values import value
from services.readiness.app.apply_facts import save_views, views_of
from services.readiness.domain.steps import RunView, answered
from services.readiness.domain.waits import Wait, WaitState, answer
from services.readiness.ports import ACTIVE, Ports, Question, RunFacts, StepReads, UnknownVersions

MOST_LOOKED_AT = 1_000
"""Questions below a root, of which the one that is open is looked for."""


@value(frozen=True, slots=True)
class AnswerAsk:
    """What somebody says; `step_key` and `slot` empty: to the only question there is."""

    tenant: str
    project: str
    run_id: UUID
    step_key: str
    slot: str
    result: bytes
    by: str
    misfit: Callable[[bytes], Refusal | None]
    """Given what was asked: why this is no answer to it."""


@value(frozen=True, slots=True)
class Answered:
    """The question as it is now; `replayed`: the same answer had been given."""

    question: Question
    replayed: bool


async def through_root(reads: StepReads, ask: AnswerAsk, now_ms: int) -> AnswerAsk:
    """The ask, named: to the only question below, where nothing is named and the run asks nothing itself."""
    if ask.step_key or ask.slot:
        return ask
    owner = await reads.owner(ask.run_id)
    if owner is None or owner[0] != ask.tenant or (ask.project and owner[1] != ask.project):
        return ask  # what is not there for the caller is refused where its run is locked
    found = await reads.page_inputs(ask.run_id, (NIL, "", ""), MOST_LOOKED_AT)
    if any(one.run_id == ask.run_id for one in found):
        return ask
    if len(found) >= MOST_LOOKED_AT:
        raise invalid_field(
            "run_id", f"has {MOST_LOOKED_AT} questions below it or more", "name the child that asks, step and slot"
        )
    asking = [one for one in found if one.run_open and one.wait.state == WaitState.OPEN and not one.wait.overdue(now_ms)]
    only = asking or found
    if len(only) > 1:
        names = ", ".join(f"{one.run_id}: {one.wait.step_key}/{one.wait.slot}" for one in only[:5])
        raise invalid_field(
            "run_id", f"does not say which question below it this answers ({names})", "name the child that asks, step and slot"
        )
    return replace(ask, run_id=only[0].run_id, step_key=only[0].wait.step_key, slot=only[0].wait.slot) if only else ask


async def answer_inputs(ports: Ports, asks: Sequence[AnswerAsk]) -> list[Answered | Refusal]:
    """One outcome per answer, in order."""
    while True:
        try:
            return await _answer_all(ports, asks)
        except UnknownVersions as unknown:
            await ports.versions.graphs(unknown.digests)


async def _answer_all(ports: Ports, asks: Sequence[AnswerAsk]) -> list[Answered | Refusal]:
    now_ms = ports.clock.now_ms()
    named = sorted({ask.run_id for ask in asks})
    committed: list[tuple[RunFacts, RunView]] = []
    try:
        async with ports.db.tx() as tx:
            runs = await tx.lock_runs(named)
            questions = await tx.inputs_of(sorted(runs)) if runs else {}
            by_run = {run_id: {wait.key: wait for wait in questions.get(run_id, [])} for run_id in runs}
            views = await views_of(ports, tx, [run for run in runs.values() if run.state == ACTIVE])
            outcomes = [_judge(ask, runs, by_run, views, now_ms) for ask in asks]
            committed = await save_views(ports, tx, runs, views, set(), now_ms)
    except BaseException:
        for run_id in named:
            ports.cache.drop(run_id)
        raise
    for run, view in committed:
        if run.state == ACTIVE:
            ports.cache.put(run.run_id, run.version, view.steps)
    return outcomes


def _judge(
    ask: AnswerAsk,
    runs: Mapping[UUID, RunFacts],
    by_run: Mapping[UUID, dict[tuple[str, str], Wait]],
    views: Mapping[UUID, RunView],
    now_ms: int,
) -> Answered | Refusal:
    run = runs.get(ask.run_id)
    if run is None or run.tenant != ask.tenant or (ask.project and run.project != ask.project):
        return not_found("run")
    found = _named(ask, by_run[ask.run_id].values(), now_ms)
    if isinstance(found, Refusal):
        return found
    if found.state != WaitState.OPEN or found.overdue(now_ms):
        if found.state == WaitState.DONE and found.result == ask.result:
            return Answered(Question(run.run_id, found, run.state == ACTIVE, run.root_run_id), True)
        return _closed(found)
    if run.state != ACTIVE:
        return Refusal(Reason.RUN_CLOSED, "the run is over: nobody waits for this answer", remedy="look at the run")
    no = ask.misfit(found.payload)
    if no is not None:
        return no
    done = answer(found, ask.result, ask.by, now_ms)
    by_run[ask.run_id][done.key] = done
    answered(views[ask.run_id], done)
    return Answered(Question(run.run_id, done, True, run.root_run_id), False)


def _named(ask: AnswerAsk, waits: Collection[Wait], now_ms: int) -> Wait | Refusal:
    """The question that is named; where none is, the only one that is open, or the only one there is."""
    fits = [w for w in waits if (not ask.step_key or w.step_key == ask.step_key) and (not ask.slot or w.slot == ask.slot)]
    if len(fits) > 1:
        fits = [wait for wait in fits if wait.state == WaitState.OPEN and not wait.overdue(now_ms)]
        if len(fits) != 1:
            names = ", ".join(f"{wait.step_key}/{wait.slot}" for wait in fits[:5]) or "none of them is open"
            return invalid_field(
                "slot", f"does not say which of the run's questions this answers ({names})", "name step and slot"
            )
    return fits[0] if fits else not_found("question")


def _closed(wait: Wait) -> Refusal:
    expired = wait.state != WaitState.DONE
    return Refusal(
        Reason.INPUT_CLOSED,
        "the question's deadline has passed" if expired else "the question was answered otherwise; the first answer stands",
        remedy="look at the question: `runway run inputs`",
        detail={"state": "expired" if expired else "answered", "answered_by": wait.ended_by},
    )
