"""The gateway's settings: environment variables `RUNWAY_GATEWAY_…`, the unit in each name.

Credentials of the outside live here and nowhere else. Can go wrong: one of them in a log. They are SecretStr, registered with
the redaction when they are read, and validation errors do not print what they were given.
"""

import re
from base64 import b64encode
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import RunwaySettings
from libs.telemetry.redaction import register_secret

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


class GatewaySettings(RunwaySettings):
    """What an operator may tune."""

    model_config = SettingsConfigDict(
        env_prefix="RUNWAY_GATEWAY_",
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    pool_size: int = Field(default=8, gt=0)
    """Connections for intents, receipts and reads."""
    leaf_pool_size: int = Field(default=2, gt=0)
    """Connections for raises, so that they never queue behind intents."""
    audience: str = "runway"
    """Installation whose lease tokens are accepted."""
    host_id: str = ""
    """Names this machine, so that processes on it can prove each other dead; empty: /etc/machine-id and the host's name."""
    adopt_interval_ms: int = Field(default=1_000, gt=0)
    """How often tries of dead processes are looked for."""
    process_keep_ms: int = Field(default=7 * 24 * 3_600_000, gt=0)
    """How long a process that ended is remembered."""
    poll_ms: int = Field(default=50, gt=0)
    """First pause between reads of a slot whose call another process makes; it doubles up to half a second."""
    receipt_retry_ms: int = Field(default=50, gt=0)
    """First pause before a receipt that could not be recorded is tried again; it doubles up to five seconds."""
    max_calls: int = Field(default=512, gt=0)
    """Calls that this process makes at once; more are refused before anything is stored."""
    stop_grace_ms: int = Field(default=5_000, ge=0)
    """How long calls under way may take once the process must end."""
    call_timeout_ms: int = Field(default=60_000, gt=0)
    """Longest call of a tool; its outcome is unknown afterwards."""
    model_timeout_ms: int = Field(default=300_000, gt=0)
    """Longest call of a model."""
    connect_timeout_ms: int = Field(default=5_000, gt=0)
    """Longest time until a provider accepts a connection."""
    response_limit_bytes: int = Field(default=1_048_576, gt=0)
    """Largest answer that is kept."""
    bundle_limit_bytes: int = Field(default=512 * 1_048_576, gt=0)
    """Largest git bundle that is pushed."""
    scratch_dir: str = ""
    """Where git works; empty: the system's folder for temporary files."""
    git_remotes: dict[str, GitRemote] = Field(default_factory=dict)
    """Repositories by name, JSON."""
    http_targets: dict[str, HttpTarget] = Field(default_factory=dict)
    """Places of http.request by name, JSON."""
    models: dict[str, ModelRoute] = Field(default_factory=dict)
    """Models by name, JSON."""

    def secrets(self) -> list[str]:
        """Every credential, in the forms in which it may be sent."""
        found: list[str] = []
        for remote in self.git_remotes.values():
            password = remote.password.get_secret_value()
            pair = f"{remote.username}:{password}"
            found += [password, b64encode(pair.encode()).decode()] if password else []
        for target in self.http_targets.values():
            for header in target.headers.values():
                value = header.get_secret_value()
                found += [value, value.rpartition(" ")[2]]
        found += [route.api_key.get_secret_value() for route in self.models.values()]
        return sorted({secret for secret in found if secret}, key=len, reverse=True)

    def register_secrets(self) -> None:
        """Keeps them out of logs, spans and errors."""
        for secret in self.secrets():
            register_secret(secret)
