"""What checkpoint counts and logs. Implements `ports.Gauges`."""

from collections.abc import Mapping

from libs.telemetry.catalogue import CHECKPOINT_BYTES, CHECKPOINTS
from libs.telemetry.logs import get_logger
from services.checkpoint.ports import Step

log = get_logger(__name__)


class CheckpointGauges:
    """Metrics and the log line of damage."""

    def checkpoint(self, answer: str) -> None:
        """One manifest, by what became of it."""
        CHECKPOINTS.labels(answer).inc()

    def bytes(self, logical: int, stored: int) -> None:
        """Bytes that came, and what they took."""
        CHECKPOINT_BYTES.labels("logical").inc(logical)
        CHECKPOINT_BYTES.labels("stored").inc(stored)

    def fell_back(self, step: Step, damaged: Mapping[str, str]) -> None:
        """A restore passed over damaged checkpoints."""
        log.error("checkpoints are damaged", run=str(step[0]), step=step[1], damaged=dict(damaged))
