"""Launch's settings: environment variables `RUNWAY_LAUNCH_…`, the unit in each name."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import RunwaySettings


class LaunchSettings(RunwaySettings):
    """What an operator may tune; every default suits one machine."""

    model_config = SettingsConfigDict(env_prefix="RUNWAY_LAUNCH_", extra="ignore", frozen=True, use_attribute_docstrings=True)

    pool_size: int = Field(default=6, gt=0)
    """Connections for launches, closings and events."""
    control_pool_size: int = Field(default=3, gt=0)
    """Connections for cancels, so that they never queue behind launches."""
    leaf_pool_size: int = Field(default=2, gt=0)
    """Connections for cold reads of gates."""
    default_deadline_ms: int = Field(default=3_600_000, gt=0)
    """Time until a run expires that names no deadline, and whose workflow names none."""
    longest_pause_ms: int = Field(default=7 * 24 * 3_600_000, gt=0)
    """How long a run stays paused before it expires, where the pause names no time."""
    approval_length_ms: int = Field(default=24 * 3_600_000, gt=0)
    """How long an approval is asked for, and good, where its rule names no time."""
    max_deadline_ms: int = Field(default=30 * 24 * 3_600_000, gt=0)
    """Longest deadline a caller may ask for."""
    default_budget_micros: int = Field(default=1_000_000, ge=0)
    """Money reserved for a run that names no budget, in micros."""
    default_budget_tokens: int = Field(default=100_000, ge=0)
    """Tokens of a run that names no budget."""
    enforce_deadline_ms: int = Field(default=1_500, gt=0)
    """How long a cancel waits for the points before it answers; the outbox goes on raising."""
    input_limit_bytes: int = Field(default=1_048_576, gt=0)
    """Largest input of a run."""
    launches_per_s: int = Field(default=10_000, gt=0)
    """Launches a second that one tenant may ask of this process."""
    launch_burst: int = Field(default=20_000, gt=0)
    """Launches that one tenant may ask at once."""
    max_children: int = Field(default=20_000, gt=0)
    """Children that one run may spawn in all, where its workflow version names fewer."""
    max_child_depth: int = Field(default=8, ge=0)
    """Levels of children below a run that a caller launched."""
    mend_interval_ms: int = Field(default=5_000, gt=0)
    """How often decided parents are looked for whose children still run, or that wait for nothing more."""
    newest_ttl_ms: int = Field(default=500, ge=0)
    """How long the newest version of a name is remembered."""
    expire_interval_ms: int = Field(default=1_000, gt=0)
    """How often deadlines are looked for."""
    watch_poll_ms: int = Field(default=250, gt=0)
    """How often waiters learn of changes that another replica committed."""
