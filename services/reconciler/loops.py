"""The reconciler's loops: look-ups, woken by events; the sweep for lost events; and what does not move."""

import asyncio

from runway.internal.inbox.v1 import inbox_pb2

from libs.runtime.service import Every, Loop
from services.reconciler.app.look_up import look_up
from services.reconciler.app.open_cases import sweep_unknown
from services.reconciler.domain.cases import CaseState
from services.reconciler.ports import Ports
from services.reconciler.settings import ReconcilerSettings

IDLE_SHARE = 10
"""How much more seldom the other workers look by themselves, in case the watching one hangs."""
QUIET_SHARE = 10
"""How much more seldom the watching one looks while nothing is due sooner: another replica may have opened a case."""


class Wake:
    """Wakes every worker."""

    def __init__(self, workers: int) -> None:
        self.events = [asyncio.Event() for _ in range(workers)]

    def __call__(self) -> None:
        """Somebody may be due."""
        for event in self.events:
            event.set()


def loops(ports: Ports, wake: Wake, settings: ReconcilerSettings) -> list[Loop | Every]:
    """What runs while the reconciler serves."""

    def worker(place: int, woken: asyncio.Event) -> Loop:
        # One of them watches for what becomes due by time, and wakes the others when there is something.
        watches = place == 0

        async def pause_s() -> float:
            if not watches:
                return settings.poll_interval_ms / 1000 * IDLE_SHARE
            due_ms = await ports.cases.next_due()
            left_ms = due_ms - ports.clock.now_ms() if due_ms is not None else settings.poll_interval_ms * QUIET_SHARE
            return min(max(left_ms, settings.poll_interval_ms), settings.poll_interval_ms * QUIET_SHARE) / 1000

        async def run() -> None:
            while True:
                woken.clear()
                while await look_up(ports):
                    if watches:
                        wake()
                try:
                    async with asyncio.timeout(await pause_s()):
                        await woken.wait()
                except TimeoutError:
                    continue

        return Loop("look_up", run)

    async def sweep() -> None:
        if await sweep_unknown(ports):
            wake()

    return [
        *[worker(place, event) for place, event in enumerate(wake.events)],
        Every(settings.sweep_interval_ms, sweep, "sweep_unknown"),
    ]


class ReconcilerStuck:
    """What of the reconciler does not move; answers `ListStuck`."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        """Undecided cases."""
        before = self._ports.clock.now_ms() - request.older_than_ms
        items = []
        for case in await self._ports.cases.waiting(before, request.limit or 200):
            asks = "look-ups go on" if case.state is CaseState.OPEN else "a person must decide"
            detail = f"{case.tool} in slot {case.slot} of step {case.step_key}: {asks}. {case.evidence}"
            items.append(
                inbox_pb2.StuckItem(
                    kind="undecided_case", run_id=case.run_id.bytes, since_ms=case.opened_ms, detail=detail.strip()
                )
            )
        return inbox_pb2.ListStuckResponse(items=items)
