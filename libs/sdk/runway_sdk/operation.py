"""What those who run an installation ask: shards, workers, effects in doubt, what does not move."""

from abc import ABC, abstractmethod
from typing import Any

from runway.reconciler.v1 import reconciler_service_pb2 as rc
from runway.scheduler.v1 import scheduler_service_pb2 as sc

from runway_sdk.values import to_value


class Operation(ABC):
    """What of a client is about the installation."""

    _scheduler: Any
    _reconciler: Any

    @abstractmethod
    async def _call(self, method: Any, request: Any) -> Any:
        """One call, with the client's key."""

    @abstractmethod
    async def _pages(self, method: Any, make: Any, field: str) -> list[Any]:
        """All pages of a list."""

    async def shards(self) -> list[sc.Shard]:
        """The scheduler's shards."""
        return list((await self._call(self._scheduler.ListShards, sc.ListShardsRequest())).shards)

    async def workers(self) -> list[sc.Worker]:
        """Worker processes seen lately."""
        return await self._pages(self._scheduler.ListWorkers, lambda token: sc.ListWorkersRequest(page_token=token), "workers")

    async def cases(self, run_id: str = "") -> list[rc.Case]:
        """Effects whose outcome is or was unknown."""
        return await self._pages(
            self._reconciler.ListCases, lambda token: rc.ListCasesRequest(run_id=run_id, page_token=token), "cases"
        )

    async def resolve_case(self, case_id: str, *, happened: bool, reason: str, result: Any = None) -> rc.Case:
        """An operator's decision about an effect that no look-up decides."""
        state = rc.CASE_STATE_OBSERVED if happened else rc.CASE_STATE_ABSENT
        request = rc.ResolveCaseRequest(case_id=case_id, state=state, reason=reason)
        if happened:
            request.result.CopyFrom(to_value(result, "result"))
        case: rc.Case = (await self._call(self._reconciler.ResolveCase, request)).case
        return case

    async def stuck(self, older_than_ms: int = 60_000) -> rc.ListStuckWorkResponse:
        """What stopped moving, by every service's own account."""
        request = rc.ListStuckWorkRequest(older_than_ms=older_than_ms)
        answer: rc.ListStuckWorkResponse = await self._call(self._reconciler.ListStuckWork, request)
        return answer
