"""Authoritative for who may call which method where. The policy is the method option in the proto, read from the descriptors
when a server is built; a method without one is denied.

Can go wrong: comparing secrets with `==`, or saying which part of a credential was wrong. A key that is unknown and one that
is malformed get the same answer.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from google.protobuf import descriptor_pool
from runway.common.v1 import policy_pb2

from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.rpc.identity import (
    SCOPE_BULK,
    SCOPE_OPERATOR,
    Caller,
    CallerDirectory,
    LeaseVerifier,
    VerifiedLease,
)
from libs.rpc.shedding import Criticality

KEY_METADATA = "authorization"
LEASE_METADATA = "runway-lease-bin"
SECRET_METADATA = "runway-service-secret"  # noqa: S105 - the name of a header
KEY_PREFIX = "rk_"
MIGRATION = 3
"""The class of runs whose calls under a lease are bulk."""
_LONGEST_KEY = 512
_LONGEST_LEASE = 4096
_KEYED = (policy_pb2.FENCE_CALLER, policy_pb2.FENCE_WORKER, policy_pb2.FENCE_OPERATOR, policy_pb2.FENCE_LEASE)
_SECRET = (policy_pb2.FENCE_SERVICE, policy_pb2.FENCE_SERVICE_OR_CALLER)
_SERVES: Mapping[int, tuple[int, ...]] = {
    policy_pb2.PORT_PUBLIC: (policy_pb2.PORT_PUBLIC, policy_pb2.PORT_CONTROL),
    policy_pb2.PORT_CONTROL: (policy_pb2.PORT_CONTROL,),
    policy_pb2.PORT_LEAF: (policy_pb2.PORT_LEAF,),
}
"""Methods of which ports each port's server serves."""
_PORT_NAMES: Mapping[int, str] = {
    policy_pb2.PORT_PUBLIC: "public",
    policy_pb2.PORT_CONTROL: "control",
    policy_pb2.PORT_LEAF: "leaf",
}


@dataclass(frozen=True, slots=True)
class MethodPolicy:
    """What the proto says about one method."""

    method: str
    service: str
    fence: int
    port: int
    criticality: Criticality = Criticality.VITAL
    lasting: bool = False
    roles: frozenset[str] = frozenset()

    def served_on(self, port: int) -> bool:
        """Whether the server of this port may serve it."""
        return self.port in _SERVES[port]


@dataclass(frozen=True, slots=True)
class Access:
    """Who can tell whether a credential is good. `leases` is asked by the full name of the gRPC service called."""

    secret: str | None = None
    callers: CallerDirectory | None = None
    leases: Callable[[str], LeaseVerifier | None] = lambda _service: None


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whom a policy let in."""

    caller: Caller | None = None
    lease: VerifiedLease | None = None
    lease_token: bytes = b""


def read_policies(services: Iterable[str]) -> dict[str, MethodPolicy]:
    """Policies of every method of these gRPC services (full names), by the path that a call names."""
    pool = descriptor_pool.Default()
    found: dict[str, MethodPolicy] = {}
    for service in services:
        for method in pool.FindServiceByName(service).methods:
            options = method.GetOptions()
            path = f"/{service}/{method.name}"
            port = options.Extensions[policy_pb2.port] or policy_pb2.PORT_PUBLIC
            fence = options.Extensions[policy_pb2.fence]
            own = port != policy_pb2.PORT_PUBLIC or fence in _SECRET
            said = options.Extensions[policy_pb2.criticality]
            matters = Criticality(said) if said else Criticality.VITAL if own else Criticality.BULK
            lasting = options.Extensions[policy_pb2.lasting] or method.client_streaming or method.server_streaming
            roles = frozenset(options.Extensions[policy_pb2.roles])
            found[path] = MethodPolicy(path, service, fence, port, matters, lasting, roles)
    return found


def criticality_of(policy: MethodPolicy, admitted: Admitted) -> Criticality:
    """What a call is worth by records alone: the method's option, the key's scopes, the class of the run in its ticket."""
    said, caller = policy.criticality, admitted.caller
    bulk = caller is not None and SCOPE_BULK in caller.scopes
    if said is Criticality.INTERACTIVE:
        migrates = admitted.lease is not None and admitted.lease.run_class == MIGRATION
        return Criticality.BULK if bulk or migrates else said
    if said is Criticality.BULK and caller is not None and caller.has(SCOPE_OPERATOR) and not bulk:
        return Criticality.INTERACTIVE
    return said


def key_digest(key: str) -> bytes:
    """What is stored and looked up instead of a key."""
    return hashlib.sha256(key.encode()).digest()


async def admit(policy: MethodPolicy, metadata: Mapping[str, str | bytes], access: Access) -> Admitted:
    """Whom the call comes from, or the refusal that its policy demands."""
    if policy.fence == policy_pb2.FENCE_OPEN:
        return Admitted()
    by_key = KEY_METADATA in metadata and SECRET_METADATA not in metadata
    either = policy.fence == policy_pb2.FENCE_SERVICE_OR_CALLER and by_key
    if policy.fence in _SECRET and not either:
        _check_secret(metadata, access)
        return Admitted()
    if policy.fence not in _KEYED and not either:
        raise _denied(policy, "has no policy", "this is a fault of the installation: report it")
    caller = await _caller(metadata, access)
    if not policy.roles & caller.roles:
        if not policy.roles:
            raise _denied(policy, "is for no role", "this is a fault of the installation: report it")
        named = ", ".join(sorted(policy.roles))
        raise _denied(
            policy,
            f"is for keys with one of the roles {named}",
            f"use a key with the role {named}" if len(policy.roles) == 1 else "use a key with one of them",
        )
    if policy.fence != policy_pb2.FENCE_LEASE:
        return Admitted(caller)
    token, lease = await _lease(policy, metadata, access)
    caller = caller.acting_for(lease)
    if lease.tenant != caller.tenant:
        raise Refusal(
            Reason.LEASE_INVALID, "the lease is of another tenant than the key", remedy="use the key that claimed the attempt"
        )
    return Admitted(caller, lease, token)


def _check_secret(metadata: Mapping[str, str | bytes], access: Access) -> None:
    given = metadata.get(SECRET_METADATA, "")
    sent = given.encode() if isinstance(given, str) else given
    if not access.secret or not hmac.compare_digest(sent, access.secret.encode()):
        raise Refusal(
            Reason.UNAUTHENTICATED,
            "this method is for services of the installation",
            remedy=f"send the installation's secret in `{SECRET_METADATA}` (RUNWAY_SERVICE_SECRET of both sides must be equal)",
        )


async def _caller(metadata: Mapping[str, str | bytes], access: Access) -> Caller:
    header = metadata.get(KEY_METADATA, "")
    scheme, _, key = header.partition(" ") if isinstance(header, str) else ("", "", "")
    if scheme.lower() == "bearer" and key.startswith(KEY_PREFIX) and len(key) <= _LONGEST_KEY:
        if access.callers is None:
            raise unreachable("the directory of API keys")
        caller = await access.callers.resolve(key_digest(key))
        if caller is not None:
            return caller
    raise Refusal(
        Reason.UNAUTHENTICATED,
        "no valid API key came with the call",
        remedy="send a key that was not revoked in the metadata `authorization`: `Bearer`, a blank and the key",
    )


async def _lease(policy: MethodPolicy, metadata: Mapping[str, str | bytes], access: Access) -> tuple[bytes, VerifiedLease]:
    token = metadata.get(LEASE_METADATA, b"")
    if not isinstance(token, bytes) or not token or len(token) > _LONGEST_LEASE:
        raise Refusal(
            Reason.LEASE_INVALID,
            "no lease token came with the call",
            remedy=f"send the token of the claimed attempt in `{LEASE_METADATA}`",
        )
    verifier = access.leases(policy.service)
    if verifier is None:
        raise unreachable("the keys that sign leases")
    return token, await verifier.verify(token)


def _denied(policy: MethodPolicy, why: str, remedy: str) -> Refusal:
    return Refusal(Reason.METHOD_DENIED, f"{policy.method} {why}", remedy=remedy)


def not_served_here(policy: MethodPolicy) -> Refusal:
    """METHOD_DENIED: the method lives on another port."""
    name = _PORT_NAMES[policy.port]
    return _denied(policy, f"is served on the {name} port", f"call the {name} address of the process")
