"""The order to begin anew after etcd lost its memory: for a while, the leaders that it elects may raise generations.

Authoritative for how long. Can go wrong: an order where etcd lost nothing. It does nothing then: a generation is raised only of
a shard whose row is ahead of all that etcd has ever said.
"""

from typing import Protocol

from libs.kernel.clock import Clock
from libs.kernel.refusal import invalid_field
from libs.telemetry.logs import get_logger

log = get_logger(__name__)
ORDER_MS = 120_000
"""Some terms of an election: whoever was refused campaigns again within seconds."""


class ResetOrders(Protocol):
    """Where orders are kept."""

    async def order_reset(self, actor: str, reason: str, now_ms: int, until_ms: int) -> None:
        """Lets leaders raise generations for a while."""
        ...


async def reset_shards(orders: ResetOrders, clock: Clock, actor: str, reason: str, *, etcd_lost: bool) -> int:
    """Until when the order holds."""
    if not etcd_lost:
        raise invalid_field("etcd_lost", "is false", "say that etcd lost its memory: nothing else is a reason")
    if not reason.strip():
        raise invalid_field("reason", "is empty", "say what happened to etcd: it is kept")
    now_ms = clock.now_ms()
    await orders.order_reset(actor, reason, now_ms, now_ms + ORDER_MS)
    log.warning("leaders may raise generations: an operator says that etcd was lost", actor=actor, reason=reason)
    return now_ms + ORDER_MS
