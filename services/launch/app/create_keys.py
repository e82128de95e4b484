"""API keys are made: once per request_id where one is named. A key's text exists in one answer and nowhere else.

Decided: a repeat answers the same key without its text, says so (`text` empty), and how to go on. The text cannot be told
again: only its digest is stored, and this installation has no secret of its own from which a text could be derived anew; one
that was derived from what the caller sent would be as good as what is in his logs. Who has lost the first answer revokes that
key and makes another under a new request_id. Can go wrong: the same request ten times at once. One row is stored, whoever
inserts it first; the others wait for that commit and read it.
"""

import base64
import json
from collections.abc import Sequence

from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, invalid_field, not_found
from libs.kernel.values import value
from services.launch.domain.facts import KeyRecord
from services.launch.domain.workflow import DEFAULT_PROJECT, NAME
from services.launch.ports import Ports

FLEET = "fleet"
"""The scope of keys whose workers serve every tenant."""


@value(frozen=True, slots=True)
class NewKey:
    """A key as it stands; `text` is the secret, and empty where an earlier call with the request_id had made the key."""

    record: KeyRecord
    text: str


@value(frozen=True, slots=True)
class KeyAsk:
    """A key that somebody wants; `lasts_ms` 0: for ever; `request_id` empty: another key each time."""

    tenant: str
    project: str
    scopes: tuple[str, ...]
    name: str
    by: str
    lasts_ms: int = 0
    request_id: str = ""

    @property
    def request_key(self) -> bytes:
        """Names the request: tenant and request_id, so that tenants cannot meet."""
        return digest(f"{self.tenant}\0key\0{self.request_id}".encode()) if self.request_id else b""

    @property
    def request_digest(self) -> bytes:
        """Of what was asked; who asks is no part of it."""
        said = [self.tenant, self.project, sorted(set(self.scopes)), self.name, self.lasts_ms]
        return digest(json.dumps(said).encode())


async def create_keys(ports: Ports, asks: Sequence[KeyAsk]) -> list[NewKey | Refusal]:
    """One outcome per ask, in order. New keys have 256 random bits; only their digests are stored."""
    flaws = [_flaw(ask) for ask in asks]
    made = [None if flaw is not None else _made(ports, ask) for ask, flaw in zip(asks, flaws, strict=True)]
    stored = await ports.tenancy.add_keys([key.record for key in made if key is not None], DEFAULT_PROJECT)
    left = {
        key.record.request_key for key in made if key is not None and key.record.key_id not in stored and key.record.request_key
    }
    standing = await ports.tenancy.keys_by_request(sorted(left)) if left else {}
    outcomes: list[NewKey | Refusal] = []
    for ask, flaw, key in zip(asks, flaws, made, strict=True):
        if flaw is not None or key is None:
            outcomes.append(flaw or not_found("key"))
        elif key.record.key_id in stored:
            outcomes.append(key)
        elif (first := standing.get(ask.request_key)) is not None:
            outcomes.append(NewKey(first, "") if first.request_digest == ask.request_digest else _reused(ask))
        else:
            outcomes.append(await _nowhere(ports, ask))
    return outcomes


def _made(ports: Ports, ask: KeyAsk) -> NewKey:
    random = ports.ids.random128().bytes + ports.ids.random128().bytes
    text = "rk_" + base64.urlsafe_b64encode(random).decode().rstrip("=")
    now = ports.clock.now_ms()
    record = KeyRecord(
        digest(text.encode()),
        ports.ids.uuid7(),
        ask.tenant,
        ask.project,
        tuple(sorted(set(ask.scopes))),
        ask.name,
        created_ms=now,
        created_by=ask.by,
        expires_ms=now + ask.lasts_ms if ask.lasts_ms else 0,
        request_key=ask.request_key,
        request_digest=ask.request_digest if ask.request_id else b"",
    )
    return NewKey(record, text)


def _flaw(ask: KeyAsk) -> Refusal | None:
    if ask.project and not NAME.match(ask.project):
        return invalid_field("project", "must be 1 to 63 of a-z, 0-9, '-', '_'", "use such a name")
    if ask.project and FLEET in ask.scopes:
        return invalid_field("project", "binds a key that serves every tenant", "leave it empty, or ask for the scope worker")
    if "\0" in ask.name:
        return invalid_field("name", "holds a NUL character", "leave it out")
    return None


def _reused(ask: KeyAsk) -> Refusal:
    return Refusal(
        Reason.REQUEST_ID_REUSED,
        f"request_id {ask.request_id!r} made a key from another request",
        field="request_id",
        remedy="repeat the first request unchanged, or use a new request_id",
    )


async def _nowhere(ports: Ports, ask: KeyAsk) -> Refusal:
    """Its tenant or its project is not there."""
    if await ports.tenancy.tenant(ask.tenant) is None:
        return not_found("tenant")
    return Refusal(
        Reason.NOT_FOUND,
        f"tenant {ask.tenant} has no project {ask.project!r}",
        field="project",
        remedy=f"check its name (`runway project list`), or make it first: `runway project create {ask.project}`",
    )
