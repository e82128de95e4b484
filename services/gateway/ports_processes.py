"""What the gateway's verbs need to know of its own processes and those that died, as Protocols."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from libs.kernel.values import value
from services.gateway.domain.effect import ReplayClass, Try
from services.gateway.domain.process import ProcessIdentity


@value(frozen=True, slots=True)
class Left:
    """A try under way of some process, and its effect's class and tool."""

    attempt: Try
    replay_class: ReplayClass
    tool: str


class Processes(Protocol):
    """Rows of gateway processes."""

    async def register(self, me: ProcessIdentity, now_ms: int) -> None:
        """Says that this process may have tries."""
        ...

    async def others(self, me: UUID) -> list[ProcessIdentity]:
        """Other processes that have tries under way."""
        ...

    async def tries_of(self, processes: Sequence[UUID], limit: int) -> list[Left]:
        """Their tries under way."""
        ...

    async def end(self, processes: Sequence[UUID], now_ms: int) -> None:
        """They are over."""
        ...

    async def forget(self, before_ms: int) -> None:
        """Drops rows of processes that ended long ago and left nothing."""
        ...


class Machine(Protocol):
    """The machine this process runs on."""

    def me(self, process: UUID) -> ProcessIdentity:
        """This process."""
        ...

    def dead(self, other: ProcessIdentity, me: ProcessIdentity) -> bool:
        """Whether another process is proved dead."""
        ...
