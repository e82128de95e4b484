"""Adopts the tries of processes that are proved dead, and voids those of this one that it never made.

Can go wrong: taking silence for death. A process that cannot be proved dead keeps its tries, and `ListStuck` shows them.
"""

from libs.telemetry.logs import get_logger
from services.gateway.app.record_receipts import record_receipts
from services.gateway.app.run_calls import Calls, lost_pure
from services.gateway.domain.effect import Failed, Outcome, Receipt, ReplayClass, State
from services.gateway.ports import Left, Ports

DIED = Outcome(State.UNKNOWN, cause="process_died", evidence="the gateway process died before the answer was recorded")
VOID = Outcome(
    State.NOT_SENT,
    failure=Failed("infrastructure", "the intent's commit was not confirmed, so nothing was sent", "NOT_SENT"),
    evidence="void: the process that committed it never sent it",
    void=True,
)
log = get_logger(__name__)


async def adopt_tries(ports: Ports) -> int:
    """Tries of dead processes become unknown (or failed, where they are pure); how many."""
    me = ports.machine.me(ports.process)
    await ports.processes.register(me, ports.clock.now_ms())
    dead = [other.process for other in await ports.processes.others(me.process) if ports.machine.dead(other, me)]
    if not dead:
        return 0
    await ports.processes.end(dead, ports.clock.now_ms())
    left = await ports.processes.tries_of(dead, ports.limits.adopt_rows)
    log.warning("adopting the tries of gateway processes that died", processes=len(dead), tries=len(left))
    await record_receipts(ports, [_receipt(item, _died(item)) for item in left])
    return len(left)


async def say_ended(ports: Ports) -> None:
    """At the end of this process, once its last call is over or cut: what it left may be adopted, also while its pid lives."""
    await ports.processes.end([ports.process], ports.clock.now_ms())


async def void_own(ports: Ports, calls: Calls) -> int:
    """Tries of this process that it neither makes nor will make: their intent's commit was not confirmed; how many.

    A call may end between the read and the look at what is alive. Its own receipt is committed by then, and stands.
    """
    own = await ports.processes.tries_of([ports.process], ports.limits.adopt_rows)
    void = [item for item in own if not calls.alive(item.attempt.nonce)]
    if void:
        await record_receipts(ports, [_receipt(item, VOID) for item in void])
    return len(void)


def _died(left: Left) -> Outcome:
    return lost_pure(DIED, left.attempt.held) if left.replay_class is ReplayClass.PURE else DIED


def _receipt(left: Left, outcome: Outcome) -> Receipt:
    return Receipt(left.attempt.name, left.attempt.n, left.attempt.nonce, outcome)
