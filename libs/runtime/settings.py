"""Authoritative for how a process is configured: environment variables that begin with `RUNWAY_`, each with its unit in its
name. Services derive their own class from `RunwaySettings`.

Can go wrong: a secret in a settings dump. Secrets are SecretStr, and are registered with the redaction when a host starts.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from libs.runtime.wrong import missing, of_fields
from libs.telemetry.redaction import register_secret


class RunwaySettings(BaseSettings):
    """Base of every settings class: prefix `RUNWAY_`, unknown variables are other people's."""

    model_config = SettingsConfigDict(env_prefix="RUNWAY_", extra="ignore", frozen=True, use_attribute_docstrings=True)

    def __init__(self, **given: Any) -> None:
        """What is wrong is told by setting (`WrongSettings`, a ValueError)."""
        try:
            super().__init__(**given)
        except (ValidationError, SettingsError) as error:
            prefix = type(self).model_config.get("env_prefix", "")
            raise of_fields(error, prefix, type(self).model_fields) from None  # the cause may hold what was given


class HostSettings(RunwaySettings):
    """One process, whatever it hosts."""

    public_bind: str = "127.0.0.1:0"
    """Where callers and workers come in. Loopback unless a mesh or proxy stands before it."""
    control_bind: str = "127.0.0.1:0"
    """Heartbeats, cancels, operators and services: answers while bulk work queues."""
    leaf_bind: str = "127.0.0.1:0"
    """Raises and reads of fences between services."""
    service_secret: SecretStr | None = None
    """Shared by all services of an installation; without one this process can be asked by no other service."""
    advertise_host: str | None = None
    """Host name under which other processes reach this one; the bind address unless set."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Prometheus page on the loopback; 0 takes a free port."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over gRPC); unset: no spans are made."""
    trace_sampled_share: float = Field(default=1.0, ge=0, le=1)
    """Share of new traces that are exported."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    """Least level logged."""
    log_form: Literal["json", "console", "auto"] = "auto"
    """json, console, or auto: console on a terminal."""
    drain_grace_ms: int = Field(default=5_000, ge=0)
    """How long calls under way may take once the process must end."""
    drain_notice_ms: int = Field(default=0, ge=0)
    """How long to say NOT_SERVING before new calls are refused, for balancers that poll health."""
    health_interval_ms: int = Field(default=1_000, gt=0)
    """How often each service is asked whether it is healthy."""
    start_retry_ms: int = Field(default=500, gt=0)
    """Pause before a service whose database is away is started again."""
    call_deadline_ms: int = Field(default=30_000, gt=0)
    """Server's own limit for unary calls whose client set none."""
    outbox_keep_ms: int = Field(default=0, ge=0)
    """How long delivered events are kept, to be sent again when their receiver's database was promoted: an hour where a standby
    may lose commits; 0 where it cannot (embedded, or synchronous)."""
    retention_ms: int = Field(default=30 * 86_400_000, gt=0)
    """How long what belongs to a run is kept, from its launch; an open run is kept until it is over."""
    receipt_keep_ms: int = Field(default=90 * 86_400_000, ge=0)
    """How much longer a request_id is remembered, so that a late repeat does not launch anew."""
    message_limit_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    """Largest message taken."""

    public_places: int = Field(default=256, ge=8)
    """Calls of the public port under way at once; long polls hold none. Fewer while the event loop is late."""
    public_waiting: int = Field(default=1_024, ge=0)
    """Calls of the public port that may wait for a place; over it, and after too long, bulk is shed first, the oldest first."""
    control_places: int = Field(default=64, ge=8)
    """The same for lists on the control port. Heartbeats, cancels, renewals and services wait for none."""
    lasting_calls_per_tenant: int = Field(default=1_000, gt=0)
    """Long polls and streams of one tenant and method that may be open at this process."""
    shed_again_per_s: int = Field(default=200, gt=0)
    """Who was sent away is told to come again at a time of its own: so many a second, all together."""

    @model_validator(mode="after")
    def _kept_events_are_of_runs_that_are_kept(self) -> Self:
        if self.outbox_keep_ms and self.retention_ms <= 2 * self.outbox_keep_ms:
            raise ValueError(
                f"RUNWAY_RETENTION_MS ({self.retention_ms}) must be more than twice RUNWAY_OUTBOX_KEEP_MS"
                f" ({self.outbox_keep_ms}): events that are sent again would bring back runs that were forgotten"
            )
        return self


class Surroundings:
    """What a process reads about services by name: where they are, which database is theirs."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)

    def address(self, service: str, port: str) -> str | None:
        """RUNWAY_<SERVICE>_ADDRESS, _CONTROL_ADDRESS or _LEAF_ADDRESS: a gRPC target of one or many replicas."""
        infix = {"public": "", "control": "CONTROL_", "leaf": "LEAF_"}[port]
        return self._environ.get(f"RUNWAY_{service.upper()}_{infix}ADDRESS") or None

    def database_url(self, service: str) -> str:
        """RUNWAY_<SERVICE>_DATABASE_URL, else RUNWAY_DATABASE_URL, in which `{service}` stands for the name."""
        own = self._environ.get(f"RUNWAY_{service.upper()}_DATABASE_URL")
        url = own or self._environ.get("RUNWAY_DATABASE_URL", "").replace("{service}", service)
        if not url:
            raise missing(f"RUNWAY_{service.upper()}_DATABASE_URL", "set it, or RUNWAY_DATABASE_URL with {service} in it")
        password = urlsplit(url).password
        if password:
            register_secret(unquote(password))
            register_secret(password)
        return url

    def get(self, name: str) -> str | None:
        """Any other variable, by its whole name."""
        return self._environ.get(name)
