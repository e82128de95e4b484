"""Approvals: what a step may ask, what an approver signs, and with what key.

Authoritative for nothing: launch and the gateway check every signature. The private key is made here and stays in its file,
which nobody else may read. Can go wrong: a decision about something else than was looked at. What is signed is built here,
from what was looked at, and `digest_of` says whether the content is what the digest names.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf import struct_pb2
from runway.launch.v1 import approval_service_pb2 as pb
from runway.launch.v1 import approval_service_pb2_grpc

from runway_sdk.connection import Connection
from runway_sdk.errors import RunwayError
from runway_sdk.values import LARGEST_INTEGER

PURPOSE = b"runway.approval.v1\n"
KEY_FILE = "approver.key"


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Calls of a step that people must approve before they are made: by tool, `model:NAME`, or `*`, and by the class of their
    effect (`effects`: `pure`, `idempotent`, `reconcilable`, `non_replayable`).

    `need` approvers must say yes, of those who are `eligible` (names or roles; empty: every reviewer), never who launched the
    run or published the workflow. `above_micros`: only calls that hold more than this. `above_total_micros`: only calls with
    which the run would have spent more than this; what is approved lets it go on to the next multiple.
    """

    tools: Sequence[str] = ()
    need: int = 1
    eligible: Sequence[str] = ()
    expires_in: timedelta | None = None
    above_micros: int = 0
    effects: Sequence[str] = ()
    above_total_micros: int = 0


@dataclass(frozen=True, slots=True)
class Approved:
    """What people allowed a step. `break_glass`: an operator decided alone."""

    approval_id: str
    approvers: Sequence[str]
    break_glass: bool
    at: datetime


def digest_of(content: struct_pb2.Value) -> str:
    """SHA-256 of a content's canonical form (RFC 8785), hexadecimal."""
    return hashlib.sha256(rfc8785.dumps(_exact(content))).hexdigest()


def _exact(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {key: _exact(child) for key, child in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_exact(child) for child in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < LARGEST_INTEGER else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def statement(approval: pb.Approval, *, approve: bool, approver: str, reason: str = "", break_glass: bool = False) -> bytes:
    """The bytes that an approver signs."""
    facts: dict[str, object] = {
        "approval_id": approval.approval_id,
        "approver": approver,
        "break_glass": break_glass,
        "decision": "approve" if approve else "reject",
        "digest": approval.digest,
        "expires_ms": approval.expires_at.ToMilliseconds(),
        "hold_micros": approval.hold_micros,
        "policy": approval.policy,
        "proposal_version": approval.proposal_version,
        "reason": reason,
        "run_id": approval.run_id,
        "slot": approval.slot,
        "step_key": approval.step_key,
        "tool": approval.tool,
    }
    if approval.effect_class:
        facts["effect_class"] = approval.effect_class
    if approval.total_micros:
        facts["total_micros"] = approval.total_micros
    return PURPOSE + json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class ApproverKey:
    """An approver's private key. It is never printed, logged or sent."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.key_id = hashlib.sha256(self.public).digest()[:16].hex()

    def __repr__(self) -> str:
        return f"<approver key {self.key_id}>"

    @classmethod
    def generate(cls) -> "ApproverKey":
        """A new one."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> "ApproverKey":
        """The one kept in a file that nobody else may read."""
        if path.stat().st_mode & 0o077:
            raise RunwayError(
                f"{path} may be read by others", reason="KEY_EXPOSED", remedy=f"chmod 600 {path}, or make a new key"
            )
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise RunwayError(f"{path} holds no Ed25519 key", reason="KEY_INVALID", remedy="make one: runway approval key new")
        return cls(key)

    def write(self, path: Path) -> None:
        """Keeps it in a new file, for its owner alone."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        raw = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(raw)

    def sign(self, statement: bytes) -> bytes:
        """Its signature over a statement."""
        return self._key.sign(statement)


def key_path() -> Path:
    """Where an approver's key is kept: RUNWAY_APPROVER_KEY, else the user's configuration folder."""
    if named := os.environ.get("RUNWAY_APPROVER_KEY", ""):
        return Path(named)
    config = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(config) if config else Path.home() / ".config") / "runway" / KEY_FILE


class Approvals:
    """Approvals of an installation, as a caller sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = approval_service_pb2_grpc.ApprovalServiceStub(connection.public("launch"))

    async def find(
        self, run_id: str = "", *, states: Sequence[Any] = (), project: str = "", most: int = 10_000
    ) -> list[pb.Approval]:
        """Newest first."""
        found: list[pb.Approval] = []
        token = ""
        while True:
            request = pb.ListApprovalsRequest(run_id=run_id, states=states, project=project, page_token=token)
            page = await self._connection.call(self._stub.ListApprovals, request)
            found.extend(page.approvals)
            token = page.next_page_token
            if not token or len(found) >= most:
                return found[:most]

    async def get(self, approval_id: str) -> pb.Approval:
        """One, with its content."""
        request = pb.GetApprovalRequest(approval_id=approval_id)
        approval: pb.Approval = (await self._connection.call(self._stub.GetApproval, request)).approval
        return approval

    async def decide(
        self,
        approval: pb.Approval,
        key: ApproverKey,
        approver: str,
        *,
        approve: bool,
        reason: str = "",
        break_glass: bool = False,
    ) -> pb.DecideApprovalResponse:
        """Signs a decision about what was looked at, and sends it. Refuses where the content is not what its digest names."""
        if digest_of(approval.content) != approval.digest:
            raise RunwayError(
                "the content shown is not what the digest names",
                reason="DIGEST_MISMATCH",
                remedy="do not decide; tell who runs the installation",
            )
        signed = key.sign(statement(approval, approve=approve, approver=approver, reason=reason, break_glass=break_glass))
        request = pb.DecideApprovalRequest(
            approval_id=approval.approval_id,
            decision=pb.DECISION_APPROVE if approve else pb.DECISION_REJECT,
            key_id=key.key_id,
            signature=signed,
            reason=reason,
            break_glass=break_glass,
        )
        answer: pb.DecideApprovalResponse = await self._connection.call(self._stub.DecideApproval, request)
        return answer

    async def withdraw(self, approval_id: str, reason: str) -> pb.WithdrawApprovalResponse:
        """Takes one back; the answer says whether that came before its use."""
        request = pb.WithdrawApprovalRequest(approval_id=approval_id, reason=reason)
        answer: pb.WithdrawApprovalResponse = await self._connection.call(self._stub.WithdrawApproval, request)
        return answer

    async def register(self, key: ApproverKey) -> pb.ApproverKey:
        """Makes the public half the caller's; the answer says under which name he decides."""
        request = pb.RegisterApproverKeyRequest(public_key=key.public)
        stands: pb.ApproverKey = (await self._connection.call(self._stub.RegisterApproverKey, request)).key
        return stands

    async def keys(self) -> list[pb.ApproverKey]:
        """Every approver's public keys."""
        found: list[pb.ApproverKey] = []
        token = ""
        while True:
            page = await self._connection.call(self._stub.ListApproverKeys, pb.ListApproverKeysRequest(page_token=token))
            found.extend(page.keys)
            token = page.next_page_token
            if not token:
                return found

    async def revoke(self, key_id: str) -> pb.ApproverKey:
        """Ends a key."""
        request = pb.RevokeApproverKeyRequest(key_id=key_id)
        key: pb.ApproverKey = (await self._connection.call(self._stub.RevokeApproverKey, request)).key
        return key


def facts_of(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What launch said of an approval."""
    value = told.get("value")
    return value if isinstance(value, dict) else {}
