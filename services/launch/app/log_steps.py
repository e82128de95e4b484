"""Terminal steps into the run's log, once each, told before or with the end of the graph; and what a child asks people, into
its root's."""

from collections.abc import Sequence

from services.launch.domain.beginning import begun
from services.launch.domain.run import DECIDED, RunEventFacts
from services.launch.ports import Ports, Tx


async def log_steps(ports: Ports, steps: Sequence[RunEventFacts]) -> None:
    """Appends entries of runs that exist; a repeat changes nothing."""
    run_ids = sorted({step.run_id for step in steps})
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> None:
        heads = await tx.lock_heads(run_ids)
        known = [step for step in steps if step.run_id in heads]
        first = begun(known, heads)
        if first:
            await tx.start_runs(sorted(entry.run_id for entry in first), now)
        await tx.append_events([*first, *known], once=True)

    await ports.db.run(work)
    ports.hub.poke(run_ids, state=False)


async def log_asked(ports: Ports, asked: Sequence[RunEventFacts]) -> None:
    """Questions of children, into the logs of roots that go on; a repeat changes nothing."""
    run_ids = sorted({entry.run_id for entry in asked})

    async def work(tx: Tx) -> None:
        heads = await tx.lock_heads(run_ids)
        going = [entry for entry in asked if entry.run_id in heads and heads[entry.run_id].state not in DECIDED]
        await tx.append_events(going, once=True, words=True)

    await ports.db.run(work)
    ports.hub.poke(run_ids, state=False)
