"""Apply what happened: launches, ends of attempts, what they ask, outcomes of effects, closings, backoffs and timers that
passed.

One transaction for a whole delivery: runs are locked in order, each run's steps are decided in memory by the domain, and
what changed is written with the events that follow. Can go wrong: a run whose version is not known yet (its graph is asked
of launch before the transaction begins; no RPC is awaited inside).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from services.readiness.app.check_output import as_promised
from services.readiness.app.take_waits import Waited, load_waits, lock_asked, save_waits, take_asked, take_told
from services.readiness.domain.forking import Fork, take_over
from services.readiness.domain.graph import Graph, base_of
from services.readiness.domain.joins import warns
from services.readiness.domain.steps import (
    TERMINAL,
    AttemptFact,
    RunView,
    Step,
    begin,
    begin_roots,
    close,
    end_of,
    finish_attempt,
    needs_ticket,
    refuse_oversized,
    resolve_effect,
    retry_due,
    too_early,
    unmade,
)
from services.readiness.domain.waits import WaitKey
from services.readiness.ports import ACTIVE, CLOSED, FINISHED, Facts, Notice, Ports, RunFacts, Tx, UnknownVersions


@dataclass(slots=True)
class Left:
    """What must be told again."""

    unknown: set[UUID] = field(default_factory=set)
    """Launched runs whose version launch does not know (yet)."""
    unended: set[UUID] = field(default_factory=set)
    """Launched runs that continue one whose end, or launch, did not come yet."""
    early: set[tuple[UUID, str, int]] = field(default_factory=set)
    """Run, step and ticket of attempts that ended, where the launch, or the end before, or what they asked did not come yet
    (again)."""
    unborn: set[WaitKey] = field(default_factory=set)
    """Run, step and slot of what attempts asked, where the launch, or what made the step, did not come yet (again)."""
    due: int = 0
    """Steps whose backoff or timer had passed."""


async def apply_facts(ports: Ports, facts: Facts) -> Left:
    """Applies a delivery; repeats and late facts change nothing. What could not be applied yet must be told again."""
    graphs = await ports.versions.graphs(sorted({run.digest for run in facts.launched}))
    known = replace(facts, launched=[run for run in facts.launched if run.digest in graphs])
    try:
        left = await _apply(ports, known)
    except UnknownVersions as unknown:
        await ports.versions.graphs(unknown.digests)
        left = await _apply(ports, known)
    left.unknown = {run.run_id for run in facts.launched if run.digest not in graphs}
    return left


async def _apply(ports: Ports, facts: Facts) -> Left:
    left = Left()
    now = ports.clock.now_ms()
    named = {run_id for run_id, _ in (*facts.attempts, *facts.effects, *facts.asked, *facts.told)} | set(facts.closed)
    committed: list[tuple[RunFacts, RunView]] = []
    try:
        async with ports.db.tx() as tx:
            await lock_asked(tx, facts.asked)
            due = await tx.take_due(now, facts.due_limit) if facts.due_limit else []
            left.due = len(due)
            named |= {run_id for run_id, _ in due}
            views = await _begin(ports, tx, facts, left, now)
            if named:
                committed = await _move(ports, tx, facts, due, named, left, now)
    except BaseException:
        for run_id in named:
            ports.cache.drop(run_id)
        raise
    for run, view in [*views, *committed]:
        if run.state == ACTIVE:
            ports.cache.put(run.run_id, run.version, view.steps)
        else:
            ports.cache.drop(run.run_id)
    return left


async def _begin(ports: Ports, tx: Tx, facts: Facts, left: Left, now: int) -> list[tuple[RunFacts, RunView]]:
    """Stores new runs with their steps and first tickets; those closed before they came are born closed."""
    if not facts.launched:
        return []
    sources = await _sources(ports, tx, facts, left, now)
    launched = [run for run in facts.launched if run.run_id not in left.unended]
    graphs = ports.versions.known(sorted({run.digest for run in launched}))
    new = await tx.add_runs(sorted({run.run_id: run for run in launched}.values(), key=lambda run: run.run_id))
    early = await tx.closed_early(sorted(new))
    former = await _former(tx, sources, [run for run in launched if run.run_id in new], facts.forks)
    views: list[tuple[RunFacts, RunView]] = []
    notices: list[Notice] = []
    for run in launched:
        if run.run_id not in new:
            continue
        new.discard(run.run_id)
        view = view_of(ports, run, graphs[run.digest], begin(graphs[run.digest]))
        if run.run_id in early:
            close(view)
            run = replace(run, state=CLOSED, version=run.version + 1)
        else:
            if (fork := facts.forks.get(run.run_id)) is not None:
                take_over(view, former.get(fork.of), fork.from_steps)
            else:
                begin_roots(view)
            refuse_oversized(view, len(run.input), ports.ticket_limit_bytes)
            if view.finished:  # nothing of it is to be done
                run = replace(run, state=FINISHED, version=run.version + 1)
            notices += _notices(ports, run, view, {}, view.finished, now, view.steps)
        views.append((run, view))
    await tx.add_steps([(run.run_id, step) for run, view in views for step in view.steps.values()])
    await tx.save([run for run, _ in views if run.state != ACTIVE], [])
    await tx.send(notices, now)
    return views


async def _sources(ports: Ports, tx: Tx, facts: Facts, left: Left, now: int) -> Mapping[UUID, RunFacts]:
    """Ended runs that new ones continue, locked. Launch may have ended one before its last facts came here, or its launch: who
    continues it must not take that for steps that did not succeed."""
    forks = {run.run_id: facts.forks[run.run_id].of for run in facts.launched if run.run_id in facts.forks}
    if not forks:
        return {}
    sources = await tx.lock_runs(sorted(set(forks.values())))
    going = {of for of in forks.values() if of in sources and sources[of].state == ACTIVE}
    going |= {of for of in forks.values() if of not in sources and now - launched_ms(of) < ports.retention_ms}
    waiting = {run_id for run_id, of in forks.items() if of in going}
    left.unended = waiting - await tx.known_runs(sorted(waiting)) if waiting else set()
    return sources


async def _former(
    tx: Tx, sources: Mapping[UUID, RunFacts], runs: Sequence[RunFacts], forks: Mapping[UUID, Fork]
) -> Mapping[UUID, Mapping[str, Step]]:
    """Steps of the ended runs that these continue, where they are known here and of the same tenant and version."""
    wanted = {forks[run.run_id].of: run for run in runs if run.run_id in forks}
    there = {of: sources[of] for of in wanted if of in sources}
    same = [of for of, was in there.items() if (was.tenant, was.digest) == (wanted[of].tenant, wanted[of].digest)]
    return await tx.load_steps(same) if same else {}


async def _move(
    ports: Ports, tx: Tx, facts: Facts, due: Sequence[tuple[UUID, str]], named: set[UUID], left: Left, now: int
) -> list[tuple[RunFacts, RunView]]:
    """Applies facts to runs that are known."""
    runs = await tx.lock_runs(sorted(named))
    if unknown := sorted({run_id for run_id in facts.closed if run_id not in runs}):
        await tx.wait_for_births()  # or its launch, under way elsewhere, would miss the note that is made here
        runs |= await tx.lock_runs(unknown)
        await tx.remember_closed([run_id for run_id in unknown if run_id not in runs], now)
    if facts.effects:
        await tx.save_resolutions(facts.effects)
    active = {run_id: run for run_id, run in runs.items() if run.state == ACTIVE}
    views = await views_of(ports, tx, active.values())
    if facts.asked:
        await take_asked(tx, ports.notices, active, views, facts.asked, now)
    if facts.told:
        await take_told(tx, active, views, facts.told, now)
    left.unborn = {key for key in facts.wait_keys if key[0] not in runs and now - launched_ms(key[0]) < ports.retention_ms}
    left.unborn |= {key for key in facts.wait_keys if key[0] in views and unmade(views[key[0]], key[1])}
    await load_waits(tx, views, facts.attempts, due)
    doubtful = [(run_id, fact.step_key) for run_id, fact in facts.attempts if fact.unresolved]
    resolved = await tx.resolutions(doubtful) if doubtful else {}
    left.early = _finish(views, facts.attempts, resolved, now)
    left.early |= {
        (run_id, fact.step_key, fact.ticket_sequence)
        for run_id, fact in facts.attempts
        if run_id not in runs and now - launched_ms(run_id) < ports.retention_ms
    }
    for run_id, effect in facts.effects:
        if run_id in views:
            resolve_effect(views[run_id], effect)
    for run_id, key in due:
        if run_id in views:
            retry_due(views[run_id], key, now)
    for run_id in facts.closed:
        if run_id in views:
            close(views[run_id])
    return await save_views(ports, tx, active, views, set(facts.closed), now)


def _finish(
    views: Mapping[UUID, RunView],
    attempts: Sequence[tuple[UUID, AttemptFact]],
    resolved: Mapping[tuple[UUID, str], Mapping[str, int]],
    now: int,
) -> set[tuple[UUID, str, int]]:
    """Applies ends of attempts; those of a successor after its predecessor's, however they came. What came too early."""
    waiting = [(run_id, fact) for run_id, fact in attempts if run_id in views and base_of(fact.step_key) in views[run_id].steps]
    while True:
        early = []
        for run_id, fact in waiting:
            view = views[run_id]
            if too_early(view, fact):
                early.append((run_id, fact))
                continue
            promised = as_promised(view.node(fact.step_key), fact)
            finish_attempt(view, promised, resolved.get((run_id, fact.step_key), {}), now)
        if not early or len(early) == len(waiting):
            return {(run_id, fact.step_key, fact.ticket_sequence) for run_id, fact in early}
        waiting = early


async def views_of(ports: Ports, tx: Tx, runs: Iterable[RunFacts]) -> dict[UUID, RunView]:
    """Each run's steps: as this process last committed them, where the run has not moved since; else from the rows."""
    runs = list(runs)
    known = {run.run_id: ports.cache.get(run.run_id, run.version) for run in runs}
    missing = [run_id for run_id, steps in known.items() if steps is None]
    loaded = await tx.load_steps(missing) if missing else {}
    graphs = ports.versions.known(sorted({run.digest for run in runs}))
    views = {}
    for run in runs:
        steps = known[run.run_id]
        views[run.run_id] = view_of(ports, run, graphs[run.digest], loaded[run.run_id] if steps is None else dict(steps))
    return views


def view_of(ports: Ports, run: RunFacts, graph: Graph, steps: dict[str, Step]) -> RunView:
    """A run's steps with what decides about them."""
    most = min(ports.max_steps, graph.max_steps or ports.max_steps)
    return RunView(run.run_id, graph, steps, run_input=run.input, expressions=ports.expressions, max_steps=most)


async def save_views(
    ports: Ports, tx: Tx, runs: dict[UUID, RunFacts], views: dict[UUID, RunView], closed: set[UUID], now: int
) -> list[tuple[RunFacts, RunView]]:
    """Writes what changed, with the events that follow from it."""
    saved: list[tuple[RunFacts, RunView]] = []
    notices: list[Notice] = []
    waited = await save_waits(tx, views)
    for run_id, view in views.items():
        if not view.touched and run_id not in closed:
            continue
        run = runs[run_id]
        sizes = {key: sum(wait.told_bytes for wait in waits) for (of, key), waits in waited.items() if of == run_id}
        refuse_oversized(view, len(run.input), ports.ticket_limit_bytes, sizes)
        done = view.finished
        state = FINISHED if done else CLOSED if run_id in closed else ACTIVE
        moved = replace(run, state=state, version=run.version + 1)
        notices += _notices(ports, moved, view, waited, done, now, view.touched)
        saved.append((moved, view))
    if saved:
        changed = [(run.run_id, step, key in view.born) for run, view in saved for key, step in view.touched.items()]
        await tx.add_steps([(run_id, step) for run_id, step, born in changed if born])
        await tx.save([run for run, _ in saved], [(run_id, step) for run_id, step, born in changed if not born])
        await tx.send(notices, now)
    return saved


def launched_ms(run_id: UUID) -> int:
    """When a run was launched: its id begins with that."""
    return run_id.int >> 80


def _notices(
    ports: Ports, run: RunFacts, view: RunView, waited: Waited, done: bool, now: int, changed: Mapping[str, Step]
) -> list[Notice]:
    ended: list[Step] = [step for step in changed.values() if step.state in TERMINAL]
    warned = [step for step in changed.values() if warns(view, step)]
    if done:
        return [ports.notices.graph_finished(run, view, end_of(view.graph, view.steps), ended, warned, now)]
    notices = [ports.notices.finished(run, view, ended, warned, now)] if ended or warned else []
    notices += [ports.notices.revoked(run, key, sequence, now) for key, sequence in view.revoked.items()]
    if ports.keeps_events:
        view.ticketed.clear()
    ready = [step for step in changed.values() if needs_ticket(view, step)]
    return notices + [ports.notices.ready(run, view, step, waited.get((run.run_id, step.key), ()), now) for step in ready]


async def fire_retries(ports: Ports, limit: int = 1000) -> int:
    """Readies steps whose backoff or timer has passed; how many were due."""
    return (await apply_facts(ports, Facts(due_limit=limit))).due
