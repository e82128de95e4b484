"""Authoritative for what never leaves the process in a log line, a span or an error text: API keys, lease tokens, the
service secret, passwords in URLs, and whatever was registered.

Two nets. By name: a value under a key that sounds like a secret is dropped whole. By content: every text is searched for
registered secrets in the forms a program prints them (plain, hex, base64, a bytes literal), for the secrets of the call
being handled, and for patterns.

Can go wrong: a secret that nobody registered and no pattern knows. Register where it is read (`register_secret`), and name
fields for what they hold.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from uuid import UUID

REDACTED = "[redacted]"
_SECRET_NAMES = frozenset(
    {
        "api_key",
        "authorization",
        "lease_token",
        "password",
        "private_key",
        "runway-lease-bin",
        "runway-service-secret",
        "secret",
        "service_secret",
        "token",
    }
)
_PATTERNS = (
    re.compile(r"rk_[A-Za-z0-9_\-]{6,}"),
    re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"),
    re.compile(r"(?i)(?<=bearer )[^\s'\",;]+"),
)
_SHORTEST = 6
_forms: set[str] = set()
_call_secrets: ContextVar[tuple[str | bytes, ...]] = ContextVar("runway_call_secrets", default=())


def register_secret(value: str | bytes) -> None:
    """Keeps a value, in every form it may be printed, out of logs, spans and errors of this process from now on."""
    _forms.update(_printed_forms(value))


def guard_call(*secrets: str | bytes) -> None:
    """Secrets of the call that this task handles; forgotten with the task, so that tokens do not gather in memory."""
    _call_secrets.set(tuple(secret for secret in secrets if secret))


def redact(text: str) -> str:
    """The text without anything secret."""
    for form in _forms:
        if form in text:
            text = text.replace(form, REDACTED)
    for secret in _call_secrets.get():
        for form in _printed_forms(secret):
            if form in text:
                text = text.replace(form, REDACTED)
    for pattern in _PATTERNS:
        text = pattern.sub(REDACTED, text)
    return text


def redact_value(value: object, name: str = "") -> object:
    """A value as it may be logged: bytes become an id or a length, containers are walked, texts are searched."""
    if name.lower() in _SECRET_NAMES:
        return REDACTED
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return str(UUID(bytes=bytes(value))) if len(value) == 16 else f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(key): redact_value(item, str(key)) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [redact_value(item) for item in value]
    return redact(str(value))


def _printed_forms(value: str | bytes) -> set[str]:
    """The texts in which a program might print a secret; none for one too short to search for without harm."""
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if len(raw) < _SHORTEST:
        return set()
    text = raw.decode(errors="ignore")
    forms = {
        base64.b64encode(raw).decode(),
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        raw.hex(),
        repr(raw)[2:-1],
        "".join(chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in raw),
    }
    if len(text) >= _SHORTEST:
        forms |= {text, repr(text)[1:-1]}
    return {form for form in forms if len(form) >= _SHORTEST}
