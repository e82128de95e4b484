"""The gateway's settings: environment variables `RUNWAY_GATEWAY_…`, the unit in each name.

Credentials of the outside live here and nowhere else. Can go wrong: one of them in a log. They are SecretStr, registered with
the redaction when they are read, and validation errors do not print what they were given.
"""

from base64 import b64encode

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import RunwaySettings
from libs.telemetry.redaction import register_secret
from services.gateway.domain.outside import GitRemote, HttpTarget, ModelRoute


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
    abort_interval_ms: int = Field(default=500, gt=0)
    """How often a process looks whether runs of its calls under way were closed by a raise that another one took."""
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
