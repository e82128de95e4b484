"""Records receipts: facts, never fenced, each keyed by its try's nonce.

In one transaction: the gates' locks, the slots and tries, what each receipt does (`domain.effect.land`), the new values, and
what others must hear: that an outcome is unknown, that one is known again, that a run is quiet. Can go wrong: a receipt that
comes twice or after a newer one. It changes nothing it may not change.
"""

from collections.abc import Sequence
from uuid import UUID

from libs.kernel.refusal import Refusal
from libs.telemetry.catalogue import DUPLICATE_EFFECTS
from libs.telemetry.logs import get_logger
from services.gateway.domain.effect import DOUBTFUL, Effect, EffectName, Landed, Receipt, State, land
from services.gateway.ports import Attended, Notice, Ports, Transaction

log = get_logger(__name__)


async def record_receipts(ports: Ports, receipts: Sequence[Receipt]) -> list[Effect | Refusal | None]:
    """The slot of each receipt as it stands afterwards; None where no such try is stored."""
    now = ports.clock.now_ms()

    async def work(tx: Transaction) -> tuple[list[Landed], dict[EffectName, Effect]]:
        await tx.lock([receipt.name.run_id for receipt in receipts])
        effects = await tx.effects([receipt.name for receipt in receipts])
        tries = await tx.tries([(receipt.name, receipt.n) for receipt in receipts])
        landed = _land(receipts, effects, tries, now)
        causes = {(r.name, r.n): r.outcome.cause for r in receipts}
        await tx.save(landed, causes, now)
        await tx.send(_notices(ports, landed, tries, causes, now), now)
        runs = {item.effect.name.run_id for item in landed}
        if runs:
            used = {item.effect.name.run_id for item in landed if item.used or item.tokens}
            await tx.settle(sorted(runs), sorted(used), ports.notices, now)
        return landed, effects

    landed, effects = await ports.store.run(work)
    for item in landed:
        if item.duplicate:
            DUPLICATE_EFFECTS.labels(item.effect.tool).inc()
            log.error("an effect happened twice", run_id=item.effect.name.run_id, slot=item.effect.name.slot)
    return [effects.get(receipt.name) for receipt in receipts]


def _land(
    receipts: Sequence[Receipt],
    effects: dict[EffectName, Effect],
    tries: dict[tuple[EffectName, int], Attended],
    now_ms: int,
) -> list[Landed]:
    """One after the other: a later receipt of a slot meets what an earlier one made of it; `effects` ends with the last."""
    landed: list[Landed] = []
    done: set[UUID] = set()
    for receipt in receipts:
        known = tries.get((receipt.name, receipt.n))
        if known is None or known.attempt.nonce != receipt.nonce or receipt.nonce in done:
            continue
        item = land(effects[receipt.name], known.attempt, receipt, now_ms)
        if item is not None:
            done.add(receipt.nonce)
            effects[receipt.name] = item.effect
            landed.append(item)
    return landed


def _notices(
    ports: Ports,
    landed: Sequence[Landed],
    tries: dict[tuple[EffectName, int], Attended],
    causes: dict[tuple[EffectName, int], str],
    now_ms: int,
) -> list[Notice]:
    """Somebody may wait for an outcome that was in doubt, or whose attempt is over: readiness, and the reconciler's case."""
    notices: list[Notice] = []
    for item in landed:
        key = (item.attempt.name, item.attempt.n)
        if not item.moved:
            continue
        if item.effect.state is State.UNKNOWN:
            notices += ports.notices.unknown(item.effect, causes[key], now_ms)
        elif item.before.state in DOUBTFUL or item.before.state is State.ABSENT or not tries[key].attended:
            notices += ports.notices.resolved(item.effect, now_ms)
    return notices
