"""Runs and their children, as a caller sees them: who came of whom, what each may use, a raise of a budget, what is taken from
them.

Authoritative for nothing. Can go wrong: a change whose answer is lost. It is named by its request_id, so that the
repeat is the same.
"""

import secrets
from collections.abc import Sequence

from runway.gateway.v1 import meter_service_pb2, meter_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2, launch_service_pb2_grpc, tree_service_pb2, tree_service_pb2_grpc

from runway_sdk.connection import Connection


class Trees:
    """`Client.trees`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = connection.stub("launch", tree_service_pb2_grpc.TreeServiceStub)
        self._meter = connection.stub("gateway", meter_service_pb2_grpc.MeterServiceStub)
        self._launch = connection.stub_of_control("launch", launch_service_pb2_grpc.LaunchServiceStub)
        self._control = connection.stub_of_control("launch", tree_service_pb2_grpc.TreeServiceStub)

    async def children(
        self, run_id: str, *, step_key: str = "", group: str = "", outputs: bool = False
    ) -> list[tree_service_pb2.Child]:
        """Children of a run, in the order in which they were spawned."""
        request = tree_service_pb2.ListChildrenRequest(run_id=run_id, step_key=step_key, group=group, outputs=outputs)
        found: list[tree_service_pb2.Child] = []
        while True:
            answer = await self._connection.call(self._stub.ListChildren, request)
            found += answer.children
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    async def tree(self, run_id: str) -> list[tree_service_pb2.TreeNode]:
        """A run and everything below it, parents before their children."""
        request = tree_service_pb2.GetTreeRequest(run_id=run_id, page_size=500)
        found: list[tree_service_pb2.TreeNode] = []
        while True:
            answer = await self._connection.call(self._stub.GetTree, request)
            found += answer.nodes
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    async def raise_budget(
        self, run_id: str, micros: int, *, reason: str = "", request_id: str = "", expected_version: int | None = None
    ) -> launch_service_pb2.Run:
        """The run with so much more money; what waits for its budget goes on."""
        request = tree_service_pb2.RaiseBudgetRequest(
            request_id=request_id or secrets.token_hex(16),
            run_id=run_id,
            micros=micros,
            reason=reason,
            expected_version=expected_version,
        )
        answer: tree_service_pb2.RaiseBudgetResponse = await self._connection.call(self._control.RaiseBudget, request)
        return answer.run

    async def revoke(
        self,
        run_id: str,
        capabilities: Sequence[str],
        reason: str,
        *,
        request_id: str = "",
        expected_version: int | None = None,
    ) -> launch_service_pb2.RevokeCapabilitiesResponse:
        """Takes capabilities (`tool:git.push`, `model:*`) from a run and all below it that does not outlive it."""
        request = launch_service_pb2.RevokeCapabilitiesRequest(
            run_id=run_id,
            capabilities=capabilities,
            reason=reason,
            request_id=request_id or secrets.token_hex(16),
            expected_version=expected_version,
        )
        answer: launch_service_pb2.RevokeCapabilitiesResponse = await self._connection.call(
            self._launch.RevokeCapabilities, request
        )
        return answer

    async def meter(self, run_id: str = "") -> list[meter_service_pb2.MeterEvent]:
        """What calls used, event by event, oldest first."""
        request = meter_service_pb2.ListMeterEventsRequest(run_id=run_id, page_size=1000)
        found: list[meter_service_pb2.MeterEvent] = []
        while True:
            answer = await self._connection.call(self._meter.ListMeterEvents, request)
            found += answer.events
            if not answer.more:
                return found
            request.page_token = answer.next_page_token

    async def tenant_budget(self) -> tree_service_pb2.GetTenantBudgetResponse:
        """What the caller's tenant may use, has reserved and has spent."""
        request = tree_service_pb2.GetTenantBudgetRequest()
        answer: tree_service_pb2.GetTenantBudgetResponse = await self._connection.call(self._stub.GetTenantBudget, request)
        return answer
