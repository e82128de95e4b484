"""What runs have used, by the gateway's account: replaces what was known; a settled run gets an adjustment."""

from collections.abc import Sequence

from services.launch.domain.facts import Usage
from services.launch.domain.run import TERMINAL
from services.launch.ports import Ports, Tx


async def record_usage(ports: Ports, usage: Sequence[Usage]) -> None:
    """Applies the newest report of each run; an older one changes nothing."""
    newest: dict[object, Usage] = {}
    for report in usage:
        known = newest.get(report.run_id)
        if known is None or known.sequence < report.sequence:
            newest[report.run_id] = report
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> None:
        heads = await tx.lock_heads(sorted(report.run_id for report in newest.values()))
        settled = sorted({head.tenant for head in heads.values() if head.state in TERMINAL})
        if settled:  # adjusted in one statement, which takes them in any order
            await tx.lock_accounts(settled)
        await tx.apply_usage(list(newest.values()), now)

    await ports.db.run(work)
