"""Scheduler's settings: environment variables `RUNWAY_SCHEDULER_…`, the unit in each name."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import RunwaySettings


class SchedulerSettings(RunwaySettings):
    """What an operator may tune."""

    model_config = SettingsConfigDict(
        env_prefix="RUNWAY_SCHEDULER_", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    pool_size: int = Field(default=6, gt=0)
    """Connections of the hot pool: claims, completions, deliveries."""
    control_pool_size: int = Field(default=3, gt=0)
    """Connections for expiry, renewals, people."""
    leaf_pool_size: int = Field(default=3, gt=0)
    """Connections of the leaf port: raises and cold reads."""
    lease_ttl_ms: int = Field(default=9_000, ge=300)
    """Silence after which an attempt is lost, where its step does not say; workers beat three times within it."""
    longest_lease_ttl_ms: int = Field(default=600_000, ge=1_000)
    """Most that a step may ask for: a lost attempt is noticed no sooner."""
    first_beat_ms: int = Field(default=5_000, gt=0)
    """A grant whose worker says nothing for so long was not taken up: the answer was lost."""
    token_life_ms: int = Field(default=60_000, ge=2_000)
    """A token is renewed by heartbeats at half of it."""
    etcd_ttl_ms: int = Field(default=5_000, ge=1_000)
    """Leadership ends when it was not renewed for two thirds of this, by our own clock."""
    orphan_ms: int = Field(default=3_000, gt=0)
    """How long a shard of another live member may stay without a leader before this one takes it."""
    etcd_prefix: str = "/runway/scheduler"
    """Where elections live. Installations that share an etcd need one each."""
    reset_lost_etcd: bool = False
    """Raise a shard's generation by itself when etcd was lost or restored to the past (development); else an operator does."""
    expiry_interval_ms: int = Field(default=250, gt=0)
    """How often silence is looked for."""
    notice_interval_ms: int = Field(default=200, gt=0)
    """How often raised gates and acknowledged ends of other processes are looked for."""
    hold_keep_ms: int = Field(default=90 * 86_400_000, gt=0)
    """How long released holds and handed-over shards are remembered."""
    worker_interval_ms: int = Field(default=10_000, gt=0)
    """How often workers seen are written down, for people."""
    default_wait_ms: int = Field(default=20_000, gt=0)
    """How long a claim waits that does not say."""
    longest_wait_ms: int = Field(default=30_000, gt=0)
    """Most that a claim waits."""
    polls_per_worker: int = Field(default=16, gt=0)
    """Claims of one worker process that may wait at this process; an honest one has one, and another when it drains."""
    max_slots: int = Field(default=1_000, gt=0)
    """Leases that one claim may ask for."""
    claim_limit_bytes: int = Field(default=3 * 1_048_576, gt=0)
    """What the leases of one claim may weigh together, below the 4 MiB that clients take unless told otherwise; what does not
    fit stays ready. A single lease may weigh more."""
    output_limit_bytes: int = Field(default=1_048_576, gt=0)
    """Largest output of a step; more belongs into artifacts."""
    command_limit_bytes: int = Field(default=262_144, gt=0)
    """Largest payload of a command."""
    stuck_ticket_ms: int = Field(default=10_000, ge=0)
    """A ticket that waits for longer is explained to operators."""
    region: str = "local"
    """Written into tokens."""
