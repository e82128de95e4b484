"""Joins of child runs: asked for by steps, judged whenever a child has ended, answered once.

Always behind the parent's lock, in the transaction that counts what ended. What a join goes on without is ended after that, in
a transaction that locks those children without any lock before theirs; a decided join stays decided, and `mend_trees` finds one
whose rest nobody came to end. Can go wrong: a join that comes before its spawns, as events may: it names them, and is not
judged before they are known.
"""

from collections.abc import Sequence
from uuid import UUID

from services.launch.app.decide_outcomes import decide_and_store
from services.launch.domain.children import TOLD_CHILDREN, WARNED, BudgetWait, JoinedFacts, told, warning_of
from services.launch.domain.closing import Closing
from services.launch.domain.joining import Counts, Join, JoinAsk, Move, move, of_groups
from services.launch.domain.run import DECIDED, RunEventFacts
from services.launch.ports import Ports, Tx


async def ask_joins(ports: Ports, asks: Sequence[JoinAsk]) -> None:
    """Stores what steps wait for and answers what is decided already. A repeat changes nothing."""
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> set[UUID]:
        heads = await tx.lock_heads(sorted({ask.join.run_id for ask in asks}))
        mine = [ask for ask in asks if ask.join.run_id in heads and heads[ask.join.run_id].state not in DECIDED]
        unread = [ask for ask in mine if ask.problem]
        await tx.send([ports.notices.refused_join(ask.join, ask.problem, now) for ask in unread], now)
        joins = [ask.join for ask in mine if not ask.problem]
        await tx.put_joins(joins, now)
        return await judge_joins(ports, tx, sorted({join.run_id for join in joins}), now) if joins else set()

    await end_rest(ports, sorted(await ports.db.run(work)))


async def end_rest(ports: Ports, run_ids: Sequence[UUID]) -> None:
    """Cancels what joins of these runs go on without. A repeat finds nothing left."""
    if not run_ids:
        return
    now = ports.clock.now_ms()
    why = "enough of its siblings have ended"

    async def work(tx: Tx) -> list[UUID]:
        rest = await tx.rest_of(run_ids)
        if rest:
            await decide_and_store(ports, tx, [Closing(run_id, "cancelled", b"", None, "join", why) for run_id in rest], now)
        return rest

    ports.hub.poke(await ports.db.run(work))


async def judge_joins(ports: Ports, tx: Tx, run_ids: Sequence[UUID], now: int) -> set[UUID]:
    """Decides joins of these runs, which are locked and open, and answers what is done; runs with joins whose rest need not go
    on, for `end_rest` after the commit."""
    standing = await tx.open_joins(run_ids)
    if not standing:
        return set()
    groups = await tx.groups_of(run_ids)
    became: list[Join] = []
    ending: set[UUID] = set()
    done: dict[tuple[UUID, str, str], tuple[Join, Counts]] = {}
    for stored, join, unenforced in standing:
        counts = of_groups(join, groups.get(join.run_id, ()))
        after, what = move(join, counts, unenforced)
        if after != stored:
            became.append(after)
        if what is Move.CANCEL_REST:
            ending.add(after.run_id)
        elif what is Move.ANSWER:
            done[after.key] = (after, counts)
    await tx.save_joins(became, now)
    if done:
        await _answer(ports, tx, done, now)
    return ending


async def _answer(ports: Ports, tx: Tx, done: dict[tuple[UUID, str, str], tuple[Join, Counts]], now: int) -> None:
    children = await tx.joined(list(done), TOLD_CHILDREN + 1)
    denied = await tx.denied_of(list(done))
    answers = []
    for key, (join, counts) in done.items():
        first = told(children[key])
        whole = len(first) == len(children[key])
        answers.append(ports.notices.joined(JoinedFacts(join, counts, first, denied[key], whole), now))
    await tx.send(answers, now)
    warning = {key: counts for key, (join, counts) in done.items() if join.warns and counts.failures}
    if warning:
        failed = await tx.failed_of(list(warning), WARNED)
        entries = [warning_of(key, counts, failed[key], denied[key]) for key, counts in warning.items()]
        await tx.append_events(
            [
                RunEventFacts(run_id, 0, now, "step.join_warning", 0, step_key, "launch", detail)
                for (run_id, step_key, _), detail in zip(warning, entries, strict=True)
            ]
        )


async def wait_for_budgets(ports: Ports, waits: Sequence[BudgetWait]) -> None:
    """Stores steps that wait for a greater budget; one that was raised meanwhile is told at once."""
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> None:
        heads = await tx.lock_heads(sorted({wait.run_id for wait in waits}))
        mine = [wait for wait in waits if wait.run_id in heads and heads[wait.run_id].state not in DECIDED]
        await tx.put_budget_waits(mine)
        await tell_budgets(ports, tx, sorted({wait.run_id for wait in mine}), now)

    await ports.db.run(work)


async def tell_budgets(ports: Ports, tx: Tx, run_ids: Sequence[UUID], now: int) -> None:
    """Ends waits of these runs, which are locked, whose budget is another than their step knew."""
    if run_ids:
        ended = await tx.end_budget_waits(run_ids, now)
        await tx.send([ports.notices.budget_told(wait, micros, now) for wait, micros in ended], now)
