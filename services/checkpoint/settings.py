"""Checkpoint's settings: environment variables `RUNWAY_CHECKPOINT_…`, the unit in each name."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import RunwaySettings


class CheckpointSettings(RunwaySettings):
    """What an operator may tune."""

    model_config = SettingsConfigDict(
        env_prefix="RUNWAY_CHECKPOINT_", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    store: str = ".runway/checkpoint-store"
    """Where chunks lie: a folder, or the address of a store (`s3://bucket/prefix`, `gs://…`, `az://…`). One installation each:
    the sweep of one installation knows nothing of what another one's manifests name."""
    pool_size: int = Field(default=6, gt=0)
    """Connections for commits and reads."""
    leaf_pool_size: int = Field(default=2, gt=0)
    """Connections for raises, so that they never queue behind commits."""
    max_artifact_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    """Largest artifact."""
    max_checkpoint_bytes: int = Field(default=1024 * 1024 * 1024, gt=0)
    """Largest state of one checkpoint."""
    chunk_grace_ms: int = Field(default=6 * 3_600_000, gt=0)
    """How long an uploaded chunk waits for the manifest or artifact that names it; far above the longest upload and above what
    the clocks of two replicas may differ."""
    sweep_interval_ms: int = Field(default=60_000, gt=0)
    """How often chunks that nothing names are looked for."""
    store_probe_interval_ms: int = Field(default=5_000, gt=0)
    """How long one proof that the store can be written counts."""

    @property
    def store_url(self) -> str:
        """The store's address; a plain path is a folder on this machine."""
        return self.store if "://" in self.store else Path(self.store).expanduser().resolve().as_uri()
