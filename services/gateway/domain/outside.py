"""Authoritative for what the gateway may reach: repositories, HTTP targets, models, each with its credentials.

Values that an operator configures. Can go wrong: a credential in an address, where it would be printed. It is refused, and
so is what is no address at all; errors do not print what they were given.
"""

import re
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

_SCP = re.compile(r"^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^:]+$")
_HEADER = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")


class _Configured(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


class GitRemote(_Configured):
    """A repository that runs may push to."""

    url: str
    """file path, file://, https://, http:// or ssh address, without credentials."""
    username: str = ""
    """Of the credentials, for https."""
    password: SecretStr = SecretStr("")
    """Or token; handed to git by an askpass program."""

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        parts = urlsplit(url)
        known = parts.scheme in ("file", "https", "http", "ssh") or url.startswith("/") or _SCP.match(url)
        if not known or url.startswith("-"):
            raise ValueError("must be a path, file://, https://, http:// or ssh address")
        if parts.scheme in ("https", "http") and "@" in parts.netloc:
            raise ValueError("must carry no credentials: put them into username and password")
        return url


class HttpTarget(_Configured):
    """A place that runs may call over HTTP."""

    base_url: str
    """What paths are appended to."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Sent with every request, for example Authorization; never shown."""
    lookup_path: str = ""
    """Path of a look-up, with `{key}` where the idempotency key goes; empty: no look-up."""
    lookup_authoritative: bool = False
    """Whether 404 there, after the settle window, means that the request did not happen."""
    settle_ms: int = Field(default=60_000, ge=0)
    """How long a request may still take effect after its answer was lost."""
    request_headers: tuple[str, ...] = ("accept", "content-type", "if-match", "if-none-match")
    """Headers that callers may set, lower case."""
    response_headers: tuple[str, ...] = ("content-type", "etag", "location", "retry-after")
    """Headers of answers that callers get, lower case."""

    @field_validator("base_url")
    @classmethod
    def _http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("must be an http or https address without credentials, query or fragment")
        return url.rstrip("/")

    @field_validator("headers")
    @classmethod
    def _named(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        if not all(_HEADER.match(name) for name in headers):
            raise ValueError("has a name that is no header")
        return headers


class ModelRoute(_Configured):
    """A model behind an OpenAI-compatible interface."""

    base_url: str
    """`/chat/completions` is appended."""
    model: str
    """The provider's name of it."""
    provider: str = ""
    """The provider's name, a scope that an operator may stop; empty: the host of base_url."""
    api_key: SecretStr = SecretStr("")
    """Bearer token."""
    price_micros_per_1k_input: int = Field(default=0, ge=0)
    """Price of 1,000 tokens in, in micros."""
    price_micros_per_1k_output: int = Field(default=0, ge=0)
    """Price of 1,000 tokens out, in micros."""
    default_max_tokens: int = Field(default=4_096, gt=0)
    """Tokens out that money is held for where a call names no `max_tokens`."""
