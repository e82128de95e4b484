"""Adopts the tries of processes that are proved dead; and of this one those that it never made, or whose receipt is gone.

Can go wrong: taking silence for death. A process that cannot be proved dead keeps its tries, and `ListStuck` shows them. And
taking a try for void because no call is under way: a database that was promoted without its last commits has lost receipts of
calls that were made. Void is only what this process gave up itself.
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
LOST = Outcome(
    State.UNKNOWN, cause="receipt_lost", evidence="a call was made, and the database has lost what was recorded of it"
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
    await record_receipts(ports, [_receipt(item, _lost(item, DIED)) for item in left])
    return len(left)


async def say_ended(ports: Ports) -> None:
    """At the end of this process, once its last call is over or cut: what it left may be adopted, also while its pid lives."""
    await ports.processes.end([ports.process], ports.clock.now_ms())


async def mend_own(ports: Ports, calls: Calls) -> int:
    """Tries of this process that are under way by their rows alone; how many.

    Void where their intent's commit was not confirmed and they were given up; else their receipt was recorded, and is recorded
    again, or their outcome is unknown where it is not remembered. A call may end between the read and the look at what is
    alive: its own receipt is committed by then, and stands.
    """
    own = await ports.processes.tries_of([ports.process], ports.limits.adopt_rows)
    idle = [item for item in own if not calls.alive(item.attempt.nonce)]
    if idle:
        await record_receipts(ports, [_of_own(item, calls) for item in idle])
    return len(idle)


def _of_own(left: Left, calls: Calls) -> Receipt:
    if calls.void(left.attempt.nonce):
        return _receipt(left, VOID)
    return calls.receipt(left.attempt.nonce) or _receipt(left, _lost(left, LOST))


def _lost(left: Left, outcome: Outcome) -> Outcome:
    return lost_pure(outcome, left.attempt.held) if left.replay_class is ReplayClass.PURE else outcome


def _receipt(left: Left, outcome: Outcome) -> Receipt:
    return Receipt(left.attempt.name, left.attempt.n, left.attempt.nonce, outcome)
