"""Lease tokens of this process: signs, remembers what it signed, and checks the tokens of others by their public keys.

Can go wrong: a contract whose tools and models do not fit into a token. It is then signed without them, and points read the
contract from the workflow version whose digest it carries.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from libs.fence.claims import Claims, Token, VerifiedLease, lease_of
from libs.fence.token import Signer, Verifier
from libs.kernel.clock import Clock
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import Holder, Signed
from services.scheduler.domain.lease import Lease

REMEMBERED = 20_000


class Keys(Protocol):
    """Rows of signing keys."""

    async def keys(self, key_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Public halves by key id."""
        ...


class RowKeys:
    """Implements `libs.fence.token.KeySource` over the scheduler's own rows."""

    def __init__(self, reads: Keys) -> None:
        self._reads = reads

    async def fetch(self, key_id: bytes) -> bytes | None:
        """The public bytes of a key."""
        return (await self._reads.keys([key_id])).get(key_id)


class LeaseTokens:
    """Implements `ports.Tokens`."""

    def __init__(self, reads: Keys, clock: Clock, *, audience: str, region: str, life_ms: int) -> None:
        self.signer = Signer()
        self._clock = clock
        self._audience = audience
        self._region = region
        self._life_ms = life_ms
        self._verifier = Verifier(RowKeys(reads), clock, audience=audience)
        self._own: OrderedDict[bytes, Claims] = OrderedDict()

    def sign(self, lease: Lease, epoch: int) -> Signed:
        """A token for a live lease, under this epoch of its run."""
        claims = self._claims(lease, epoch)
        return self._keep(self._sign(claims), claims)

    def sign_many(self, leases: Sequence[tuple[Lease, int]]) -> list[Signed | Refusal]:
        """Tokens for leases of one moment, each under an epoch; of one that cannot be made, why."""
        asked = [self._claims(lease, epoch) for lease, epoch in leases]
        found: list[Signed | Refusal] = []
        for claims, token in zip(asked, self.signer.sign_many(asked), strict=True):
            try:
                found.append(self._keep(token or self._sign(claims), claims))
            except Refusal as no:
                found.append(no)
        return found

    def _claims(self, lease: Lease, epoch: int) -> Claims:
        now_ms = self._clock.now_ms()
        contract = lease.contract
        return Claims(
            tenant=lease.tenant,
            project=lease.project,
            run_id=lease.run_id,
            step_key=lease.step_key,
            fence=lease.fence,
            epoch=epoch,
            points=contract.point_names,
            region=self._region,
            audience=self._audience,
            issued_at_ms=now_ms,
            expires_at_ms=now_ms + self._life_ms,
            handler=contract.handler,
            tools=contract.tools,
            models=contract.models,
            workflow_digest=lease.workflow_digest,
            run_class=lease.run_class,
        )

    def _keep(self, token: Token, claims: Claims) -> Signed:
        self._own[digest(token)] = claims
        if len(self._own) > REMEMBERED:
            self._own.popitem(last=False)
        return Signed(token, claims.expires_at_ms)

    def _sign(self, claims: Claims) -> Token:
        try:
            return self.signer.sign(claims)
        except Refusal as no:
            if no.reason is not Reason.TOO_LARGE:
                raise
            return self.signer.sign(replace(claims, tools=(), models=()))

    async def verify(self, token: bytes) -> VerifiedLease:
        """Who is asking. LEASE_INVALID for what no scheduler of this installation signed."""
        claims = self._own.get(digest(token))
        if claims is not None:
            return lease_of(claims, self._clock.now_ms())
        return await self._verifier.verify(token)

    async def holder(self, token: bytes, who: Asker) -> Holder:
        """The holder that a token speaks of, for a caller that may show it."""
        lease = self._own.get(digest(token)) or await self._verifier.verify(token)
        if not who.may_show(lease.tenant, lease.project):
            raise Refusal(
                Reason.LEASE_INVALID,
                "the lease is of another tenant or project than the key",
                remedy="use the key that claimed the attempt",
            )
        return Holder(lease.run_id, lease.step_key, lease.fence, lease.epoch, lease.tenant, lease.project)
