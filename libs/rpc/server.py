"""Authoritative for the server of one port: which methods it serves, its interceptor, health, reflection, limits and drain.

A public server serves methods of the public and the control port, a control server those of the control port, a leaf server
those of the leaf port.

Can go wrong: two processes sharing one port without knowing (`SO_REUSEPORT`); it is off, so that the second one fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server
from runway.common.v1 import policy_pb2

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal
from libs.rpc.admission import Admission, Limits
from libs.rpc.bulkhead import Bulkhead
from libs.rpc.health import HealthBoard
from libs.rpc.policy import Access, read_policies

PORTS = {"public": policy_pb2.PORT_PUBLIC, "control": policy_pb2.PORT_CONTROL, "leaf": policy_pb2.PORT_LEAF}
_PENDING = 50_000
"""Calls that gRPC keeps until we look at them; beyond it they are cancelled without a word. A burst of thousands is ours to
refuse, with a time to come again."""
_BACKSTOP = 4
"""gRPC's own size limit is this many times ours: what lies between is refused by us, with a type."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A gRPC servicer: `Mounted(add_LaunchServiceServicer_to_server, servicer, "runway.launch.v1.LaunchService")`.

    It is put on each port for which its methods' policies ask.
    """

    add: Callable[[Any, Any], None]
    servicer: object
    full_name: str


class Gate:
    """Whether calls to a gRPC service may pass now; starting and draining refuse with a reason that says to come again."""

    def __init__(self) -> None:
        self._starting: dict[str, str] = {}
        self._draining = False

    def starting(self, service: str, grpc_names: Sequence[str]) -> None:
        """Calls are refused until `started`."""
        self._starting.update(dict.fromkeys((service, *grpc_names), service))

    def started(self, service: str) -> None:
        """Calls pass."""
        self._starting = {name: owner for name, owner in self._starting.items() if owner != service}

    def drain(self) -> None:
        """Nothing new passes any more."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether the process is on its way out."""
        return self._draining

    def check(self, name: str) -> None:
        """Refuses what may not pass; `name` is a full gRPC name or a short service name."""
        if self._draining:
            raise Refusal(
                Reason.DRAINING,
                "the process is draining; nothing was decided",
                remedy="repeat the same call; another process will take it",
                retry_after_ms=500,
            )
        if name in self._starting:
            raise Refusal(
                Reason.AUTHORITY_UNREACHABLE,
                f"{self._starting[name]} is still starting",
                remedy="repeat the same call; nothing was decided",
                retry_after_ms=200,
            )


class PortServer:
    """One gRPC server."""

    def __init__(self, port: str, server: Any, address: str) -> None:
        self.port = port
        self.address = address
        self._server = server

    async def start(self) -> None:
        """Begins to take calls."""
        await self._server.start()

    async def stop(self, grace_ms: int) -> None:
        """Takes no new calls, waits for those under way, then cancels what is left."""
        await self._server.stop(grace_ms / 1000)


def serve(
    port: str,
    bind: str,
    *,
    mounted: Sequence[Mounted],
    access: Access,
    health_board: HealthBoard,
    clock: Clock,
    gate: Gate | None = None,
    limits: Limits | None = None,
    bulkhead: Bulkhead | None = None,
) -> PortServer:
    """Builds and binds the server of one port (`public`, `control`, `leaf`); it takes calls once it is started."""
    limits = limits or Limits()
    number = PORTS[port]
    policies = read_policies(item.full_name for item in mounted)
    here = [
        item
        for item in mounted
        if any(policy.served_on(number) for policy in policies.values() if policy.service == item.full_name)
    ]
    admission = Admission(number, port, policies, access, limits, clock, (gate or Gate()).check, bulkhead)
    server = grpc.aio.server(interceptors=(admission,), options=_options(limits))
    for item in here:
        item.add(item.servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_board.servicer, server)
    names = [item.full_name for item in here]
    reflected = ReflectionServicer((*names, health.SERVICE_NAME, reflection.SERVICE_NAME))
    add_ServerReflectionServicer_to_server(reflected, server)
    host = bind.rpartition(":")[0]
    return PortServer(port, server, f"{host}:{server.add_insecure_port(bind)}")


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes * _BACKSTOP),
        ("grpc.max_send_message_length", limits.message_bytes * _BACKSTOP),
        ("grpc.max_metadata_size", limits.metadata_bytes * _BACKSTOP),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes * _BACKSTOP),
        ("grpc.so_reuseport", 0),
        ("grpc.server.max_pending_requests", _PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
