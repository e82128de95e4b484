"""Authoritative for what a lease token says, and for what is believed after its signature was checked.

Can go wrong: taking a verified token for a permission. It only says who is asking; whether that one may still act is
decided by the fences, in the transaction that commits. Can also go wrong: a token printed in a log, so it hides its bytes.
"""

from uuid import UUID

from runway.internal.fence.v1 import lease_pb2

from libs.kernel.epochs import StepFence
from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value

MAX_TOKEN_BYTES = 1024
"""It rides in the metadata of every call; HTTP/2 peers cut headers at a few KiB in total."""


class Token(bytes):
    """A serialized LeaseToken that does not print itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<lease token of {len(self)} bytes>"

    __str__ = __repr__


@value(frozen=True, slots=True)
class Claims:
    """What the scheduler signs at a grant or a renewal."""

    tenant: str
    project: str
    run_id: UUID
    step_key: str
    fence: StepFence
    epoch: int
    points: tuple[str, ...]
    region: str
    audience: str
    issued_at_ms: int
    expires_at_ms: int
    handler: str
    tools: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    workflow_digest: bytes = b""
    run_class: int = 0

    def to_bytes(self) -> bytes:
        """The bytes that are signed."""
        return lease_pb2.LeaseClaims(
            tenant=self.tenant,
            project=self.project,
            run_id=self.run_id.bytes,
            step_key=self.step_key,
            authority_epoch=self.fence.authority_epoch,
            lease_epoch=self.fence.lease_epoch,
            attempt_id=self.fence.attempt_id.bytes,
            epoch=self.epoch,
            points=self.points,
            region=self.region,
            audience=self.audience,
            issued_at_ms=self.issued_at_ms,
            expires_at_ms=self.expires_at_ms,
            handler=self.handler,
            tools=self.tools,
            models=self.models,
            workflow_digest=self.workflow_digest,
            run_class=self.run_class,
        ).SerializeToString(deterministic=True)

    @staticmethod
    def from_bytes(raw: bytes) -> "Claims":
        """Reads signed claims. Only for bytes whose signature was checked."""
        said = lease_pb2.LeaseClaims.FromString(raw)
        return Claims(
            tenant=said.tenant,
            project=said.project,
            run_id=uuid_from_bytes(said.run_id, "run_id"),
            step_key=said.step_key,
            fence=StepFence(said.authority_epoch, said.lease_epoch, uuid_from_bytes(said.attempt_id, "attempt_id")),
            epoch=said.epoch,
            points=tuple(said.points),
            region=said.region,
            audience=said.audience,
            issued_at_ms=said.issued_at_ms,
            expires_at_ms=said.expires_at_ms,
            handler=said.handler,
            tools=tuple(said.tools),
            models=tuple(said.models),
            workflow_digest=said.workflow_digest,
            run_class=said.run_class,
        )


@value(frozen=True, slots=True)
class VerifiedLease:
    """Who is asking. `expired` does not refuse: it asks for a cold read before anything is decided."""

    tenant: str
    project: str
    run_id: UUID
    step_key: str
    fence: StepFence
    epoch: int
    points: frozenset[str]
    region: str
    handler: str
    tools: tuple[str, ...]
    models: tuple[str, ...]
    expires_at_ms: int
    expired: bool
    workflow_digest: bytes = b""
    run_class: int = 0

    @property
    def authority_epoch(self) -> int:
        """Epoch of the shard leader that granted it."""
        return self.fence.authority_epoch

    @property
    def lease_epoch(self) -> int:
        """Counts the step's grants and ends."""
        return self.fence.lease_epoch

    @property
    def attempt_id(self) -> UUID:
        """The attempt."""
        return self.fence.attempt_id

    def require_point(self, point: str) -> None:
        """CAPABILITY_DENIED unless the step's contract touches this service."""
        if point not in self.points:
            raise Refusal(
                Reason.CAPABILITY_DENIED,
                f"the contract of step {self.step_key} does not touch {point}",
                remedy="name the effects, checkpoints or commands of the step in its contract and publish a new version",
                detail={"point": point, "step_key": self.step_key},
            )


def lease_of(claims: Claims, now_ms: int) -> VerifiedLease:
    """The lease that checked claims speak of, as of now."""
    return VerifiedLease(
        tenant=claims.tenant,
        project=claims.project,
        run_id=claims.run_id,
        step_key=claims.step_key,
        fence=claims.fence,
        epoch=claims.epoch,
        points=frozenset(claims.points),
        region=claims.region,
        handler=claims.handler,
        tools=claims.tools,
        models=claims.models,
        expires_at_ms=claims.expires_at_ms,
        expired=now_ms >= claims.expires_at_ms,
        workflow_digest=claims.workflow_digest,
        run_class=claims.run_class,
    )
