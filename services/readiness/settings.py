"""Readiness' settings: environment variables `RUNWAY_READINESS_…`, the unit in each name."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import RunwaySettings


class ReadinessSettings(RunwaySettings):
    """What an operator may tune."""

    model_config = SettingsConfigDict(
        env_prefix="RUNWAY_READINESS_", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    pool_size: int = Field(default=6, gt=0)
    """Connections."""
    retry_poll_ms: int = Field(default=100, gt=0)
    """How often passed backoffs are looked for."""
    cache_runs: int = Field(default=5_000, ge=1)
    """Runs whose steps are kept in memory."""
    cache_run_bytes: int = Field(default=262_144, ge=0)
    """Most bytes of outputs of a run that is kept in memory."""
    cache_bytes: int = Field(default=67_108_864, ge=0)
    """Most bytes of outputs of all runs that are kept in memory."""
    signal_keep_ms: int = Field(default=604_800_000, gt=0)
    """How long an event that named no run is kept while no wait uses it."""
    early_keep_ms: int = Field(default=3_600_000, gt=0)
    """How long a closing that overtook its launch is remembered."""
    ticket_limit_bytes: int = Field(default=4_194_304, gt=0)
    """Largest input of a step: the run's and its predecessors' outputs. A worker takes many of them in one message."""
    max_steps: int = Field(default=10_000, ge=1)
    """Most steps of a run, instances counted; a workflow version may ask for fewer."""
