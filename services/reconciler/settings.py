"""Reconciler's settings: environment variables `RUNWAY_RECONCILER_…`, the unit in each name."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import RunwaySettings


class ReconcilerSettings(RunwaySettings):
    """What an operator may tune."""

    model_config = SettingsConfigDict(
        env_prefix="RUNWAY_RECONCILER_", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    pool_size: int = Field(default=4, gt=0)
    """Connections."""
    workers: int = Field(default=2, gt=0)
    """Batches of look-ups under way at once: a slow provider holds up one of them."""
    batch_cases: int = Field(default=20, gt=0, le=100)
    """Cases looked up by one call to the gateway."""
    poll_interval_ms: int = Field(default=200, gt=0)
    """How often due cases are looked for; a new case wakes the loop at once."""
    lookup_lease_ms: int = Field(default=60_000, gt=0)
    """How long a case is left to the replica that looks it up; above the deadline of a call to the gateway."""
    lookup_deadline_ms: int = Field(default=30_000, gt=0)
    """How long one call to the gateway may take."""
    first_backoff_ms: int = Field(default=500, gt=0)
    """Pause after a provider could not be asked, doubled each time …"""
    longest_backoff_ms: int = Field(default=60_000, gt=0)
    """… up to this."""
    max_unreachable: int = Field(default=30, gt=0)
    """So many look-ups in a row whose provider could not be asked, and a person must decide."""
    give_up_ms: int = Field(default=3_600_000, gt=0)
    """A case that no look-up decides within this time needs a person."""
    sweep_interval_ms: int = Field(default=30_000, gt=0)
    """How often the gateway is asked for unknown effects that have no case here."""
    sweep_older_than_ms: int = Field(default=10_000, ge=0)
    """Younger ones may still be told by their event."""
