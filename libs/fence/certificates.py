"""Authoritative for what an approver signs. How a rule that asks travels in a run's grant: libs.fence.rules.

A signature is over the statement: a line that names its purpose, then one JSON object in canonical form (RFC 8785), so that any
language can make and check it. Whoever relies on an approval verifies it himself: launch when it is decided, the gateway
before it holds it. Can go wrong: a statement that leaves out what is relied on. Everything that the gateway compares is in it.
"""

import json
from collections.abc import Sequence
from enum import IntEnum
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from libs.kernel.ids import digest
from libs.kernel.values import value

PURPOSE = b"runway.approval.v1\n"
"""Goes before every statement, so that a signature made for anything else never verifies as a decision."""


class Standing(IntEnum):
    """How far an approval is good at the gateway; the numbers of `runway.internal.fence.v1.ApprovalStanding`."""

    ISSUED = 1
    WITHDRAWN = 2
    CONSUMED = 3
    REFUSED = 4


@value(frozen=True, slots=True)
class Subject:
    """What exactly is to be allowed. `policy`: hexadecimal digest of the version whose rule asks; `tool` empty: a question of
    the step; `effect_class` empty: no rule asks by class; `total_micros`: the run's spend that it allows, 0 where no rule asks
    by total."""

    approval_id: UUID
    run_id: UUID
    step_key: str
    slot: str
    tool: str
    digest: bytes
    policy: str
    proposal_version: int
    hold_micros: int
    expires_ms: int
    effect_class: str = ""
    total_micros: int = 0


@value(frozen=True, slots=True)
class Signature:
    """One approver's signed decision."""

    public_key: bytes
    signature: bytes
    approver: str
    break_glass: bool = False
    reason: str = ""


@value(frozen=True, slots=True)
class Certificate:
    """A subject with the signatures of those who approved it."""

    subject: Subject
    standing: Standing
    signatures: Sequence[Signature]


def key_name(public_key: bytes) -> str:
    """What a public key is called: a digest of itself."""
    return digest(public_key)[:16].hex()


def statement(subject: Subject, *, approve: bool, approver: str, reason: str, break_glass: bool) -> bytes:
    """The bytes that one approver signs. Texts and whole numbers only, for which `json` writes what RFC 8785 asks for.
    Class and total are said where they are something."""
    facts: dict[str, object] = {
        "approval_id": str(subject.approval_id),
        "approver": approver,
        "break_glass": break_glass,
        "decision": "approve" if approve else "reject",
        "digest": subject.digest.hex(),
        "expires_ms": subject.expires_ms,
        "hold_micros": subject.hold_micros,
        "policy": subject.policy,
        "proposal_version": subject.proposal_version,
        "reason": reason,
        "run_id": str(subject.run_id),
        "slot": subject.slot,
        "step_key": subject.step_key,
        "tool": subject.tool,
    }
    if subject.effect_class:
        facts["effect_class"] = subject.effect_class
    if subject.total_micros:
        facts["total_micros"] = subject.total_micros
    return PURPOSE + json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def verifies(public_key: bytes, signature: bytes, signed: bytes) -> bool:
    """Whether this key made this signature over these bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def problem_of(certificate: Certificate) -> str:
    """What is wrong with a certificate; empty: every signature of it verifies, each by another key and another approver."""
    if not certificate.signatures:
        return "no signature"
    for one in certificate.signatures:
        said = statement(
            certificate.subject, approve=True, approver=one.approver, reason=one.reason, break_glass=one.break_glass
        )
        if not verifies(one.public_key, one.signature, said):
            return f"the signature of {one.approver} does not verify"
    distinct = len(certificate.signatures)
    if len({one.public_key for one in certificate.signatures}) < distinct:
        return "a key signed twice"
    if len({one.approver for one in certificate.signatures}) < distinct:
        return "an approver signed twice"
    return ""
