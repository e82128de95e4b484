"""Public keys of approvers: registered, listed, revoked. The private halves are never here.

Can go wrong: a key that two people register. Whoever was first has it.
"""

from collections.abc import Sequence

from libs.fence.certificates import key_name
from libs.kernel.refusal import Reason, Refusal, not_found
from services.launch.domain.approvals import ApproverKey
from services.launch.ports import Ports


async def register_key(ports: Ports, tenant: str, approver: str, public_key: bytes) -> ApproverKey:
    """The key as it stands."""
    asked = ApproverKey(tenant, key_name(public_key), approver, public_key, ports.clock.now_ms())
    stands = await ports.approvals.reads.put_key(asked)
    if stands.approver != approver or stands.revoked_ms:
        raise Refusal(
            Reason.APPROVER_KEY_TAKEN,
            "the key is revoked" if stands.revoked_ms else "the key is registered as somebody else's",
            field="public_key",
            remedy="use another key file: RUNWAY_APPROVER_KEY=PATH, made by `runway approval key new`",
        )
    return stands


async def list_keys(ports: Ports, tenant: str, after: str, limit: int) -> Sequence[ApproverKey]:
    """A tenant's keys, by id."""
    return await ports.approvals.reads.list_keys(tenant, after, limit)


async def revoke_key(ports: Ports, tenant: str, key_id: str, approver: str) -> ApproverKey:
    """The revoked key; `approver` empty: anybody's."""
    revoked = await ports.approvals.reads.revoke_key(tenant, key_id, approver, ports.clock.now_ms())
    if revoked is None:
        raise not_found("key")
    return revoked
