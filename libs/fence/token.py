"""Authoritative for signing lease tokens and for checking their signatures.

Ed25519 and not HMAC, because whoever verifies an HMAC could also mint. Keys are made per process and live in its memory;
the public half is exported as a row of the scheduler's database, and named by its own digest, so a wrong row cannot pass.

Can go wrong: an unknown key id asked for again and again (a short negative memory and a bound on fetches in flight hold
that off); a retired key believed for ever (keys, and with them verified tokens, are forgotten after `key_ttl_ms`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import Context
from dataclasses import replace
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError
from runway.internal.fence.v1 import lease_pb2

from libs.fence.claims import MAX_TOKEN_BYTES, Claims, Token, VerifiedLease, lease_of
from libs.fence.tree import DEEPEST, Way, grow, root_of
from libs.kernel.clock import Clock
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value

DOMAIN = b"runway.lease.v1\x00"
"""Goes before the claims, so that a signature made for anything else never verifies as a lease."""

DOMAIN_ROOT = b"runway.leases.v1\x00"
"""The same before the root over many claims: neither signature passes for the other."""

KEY_ID_BYTES = 16
ROOTS_REMEMBERED = 1_024


class KeySource(Protocol):
    """Where public keys are found: rows of the scheduler's database."""

    async def fetch(self, key_id: bytes) -> bytes | None:
        """The 32 public bytes, or None if no such key is known. Raises Refusal where nobody answers."""
        ...


@value(frozen=True, slots=True)
class PublicKey:
    """The exported half of a signing key: what the scheduler stores as a row."""

    key_id: bytes
    public_bytes: bytes


def key_id_of(public_bytes: bytes) -> bytes:
    """The name of a public key: a digest of itself."""
    return digest(public_bytes)[:KEY_ID_BYTES]


class Signer:
    """Signs leases with a key that never leaves this process."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        raw = self._key.public_key().public_bytes_raw()
        self.public = PublicKey(key_id_of(raw), raw)

    def __repr__(self) -> str:
        return f"<signer {self.public.key_id.hex()}>"

    def sign(self, claims: Claims) -> Token:
        """A token for these claims, or TOO_LARGE: a token that cannot travel is never made."""
        raw = claims.to_bytes()
        signed = lease_pb2.LeaseToken(claims=raw, signature=self._key.sign(DOMAIN + raw), key_id=self.public.key_id)
        token = Token(signed.SerializeToString(deterministic=True))
        if len(token) >= MAX_TOKEN_BYTES:
            raise Refusal(
                Reason.TOO_LARGE,
                f"the lease token of step {claims.step_key} would have {len(token)} bytes, the limit is {MAX_TOKEN_BYTES}",
                remedy="shorten the step key or name fewer tools and models in the step's contract",
            )
        return token

    def sign_many(self, claims: Sequence[Claims]) -> list[Token | None]:
        """Tokens for claims of one moment under one signature, which costs far more than the rest.

        None for one that would be too large beside its way: it is signed by itself.
        """
        if len(claims) < 2 or len(claims) > 1 << DEEPEST:
            return [None] * len(claims)
        raws = [one.to_bytes() for one in claims]
        root, ways = grow(raws)
        signature, key_id = self._key.sign(DOMAIN_ROOT + root), self.public.key_id
        made: list[Token | None] = []
        for raw, way in zip(raws, ways, strict=True):
            signed = lease_pb2.LeaseToken(
                claims=raw, signature=signature, key_id=key_id, neighbours=way.neighbours, left=way.left
            )
            token = Token(signed.SerializeToString(deterministic=True))
            made.append(token if len(token) < MAX_TOKEN_BYTES else None)
        return made


def _invalid(why: str) -> Refusal:
    return Refusal(
        Reason.LEASE_INVALID, f"the lease token {why}", remedy="use the token of the last claim or heartbeat as it came"
    )


class Verifier:
    """Checks tokens; remembers keys and tokens that passed. One per process."""

    def __init__(
        self,
        keys: KeySource,
        clock: Clock,
        *,
        audience: str,
        key_ttl_ms: int = 600_000,
        unknown_key_ttl_ms: int = 2_000,
        max_keys: int = 256,
        max_tokens: int = 8_192,
        fetches_in_flight: int = 4,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._audience = audience
        self._key_ttl_ms = key_ttl_ms
        self._unknown_key_ttl_ms = unknown_key_ttl_ms
        self._max_keys = max_keys
        self._max_tokens = max_tokens
        self._known: OrderedDict[bytes, tuple[int, Ed25519PublicKey | None]] = OrderedDict()
        self._passed: OrderedDict[bytes, tuple[int, VerifiedLease]] = OrderedDict()
        self._roots: OrderedDict[bytes, None] = OrderedDict()
        self._fetching: dict[bytes, asyncio.Future[Ed25519PublicKey | None]] = {}
        self._fetches = asyncio.Semaphore(fetches_in_flight)

    async def verify(self, token: bytes) -> VerifiedLease:
        """Who is asking. LEASE_INVALID for what we did not sign; AUTHORITY_UNREACHABLE where its key cannot be asked for."""
        name = digest(token)
        known = self._passed.get(name)
        if known is not None and self._clock.monotonic_ms() < known[0]:
            self._passed.move_to_end(name)
            return self._as_of_now(known[1])
        lease = await self._check(token)
        self._passed[name] = (self._clock.monotonic_ms() + self._key_ttl_ms, lease)
        while len(self._passed) > self._max_tokens:
            self._passed.popitem(last=False)
        return lease

    def _as_of_now(self, lease: VerifiedLease) -> VerifiedLease:
        expired = self._clock.now_ms() >= lease.expires_at_ms
        return lease if expired == lease.expired else replace(lease, expired=expired)

    async def _check(self, token: bytes) -> VerifiedLease:
        if len(token) >= MAX_TOKEN_BYTES:
            raise _invalid("is too long")
        try:
            said = lease_pb2.LeaseToken.FromString(token)
        except DecodeError:
            raise _invalid("cannot be read") from None
        if len(said.key_id) != KEY_ID_BYTES:
            raise _invalid("names no key")
        key = await self._key(said.key_id)
        if key is None:
            raise _invalid("was signed by a key that nobody knows")
        try:
            self._check_signature(key, said)
        except InvalidSignature:
            raise _invalid("has no valid signature") from None
        claims = Claims.from_bytes(said.claims)
        if claims.audience != self._audience:
            raise _invalid("belongs to another installation")
        return lease_of(claims, self._clock.now_ms())

    def _check_signature(self, key: Ed25519PublicKey, said: lease_pb2.LeaseToken) -> None:
        """Of the claims, or of the root that they lead to; a root that passed with this signature passes again."""
        if not said.neighbours and not said.left:
            key.verify(said.signature, DOMAIN + said.claims)
            return
        root = root_of(said.claims, Way(said.neighbours, said.left))
        if root is None:
            raise InvalidSignature
        name = said.key_id + root + said.signature
        if name not in self._roots:
            key.verify(said.signature, DOMAIN_ROOT + root)
            self._roots[name] = None
            if len(self._roots) > ROOTS_REMEMBERED:
                self._roots.popitem(last=False)

    async def _key(self, key_id: bytes) -> Ed25519PublicKey | None:
        known = self._known.get(key_id)
        if known is not None and self._clock.monotonic_ms() < known[0]:
            self._known.move_to_end(key_id)
            return known[1]
        flight = self._fetching.get(key_id)
        if flight is None:
            flight = asyncio.get_running_loop().create_task(
                self._fetch(key_id), context=Context()
            )  # its askers' deadlines differ
            self._fetching[key_id] = flight
            flight.add_done_callback(lambda done: self._landed(key_id, done))
        return await asyncio.shield(flight)

    def _landed(self, key_id: bytes, done: "asyncio.Future[Ed25519PublicKey | None]") -> None:
        self._fetching.pop(key_id, None)
        if not done.cancelled():
            done.exception()  # seen: a failed fetch whose askers all left must not warn

    async def _fetch(self, key_id: bytes) -> Ed25519PublicKey | None:
        async with self._fetches:
            raw = await self._keys.fetch(key_id)
        good = raw is not None and key_id_of(raw) == key_id
        key = Ed25519PublicKey.from_public_bytes(raw) if raw is not None and good else None
        ttl_ms = self._key_ttl_ms if key is not None else self._unknown_key_ttl_ms
        self._known[key_id] = (self._clock.monotonic_ms() + ttl_ms, key)
        while len(self._known) > self._max_keys:
            self._known.popitem(last=False)
        return key
