"""What the reconciler counts and logs. Implements `ports.Gauges`."""

from collections.abc import Mapping

from libs.telemetry.catalogue import CASES_OPEN, CASES_RESOLVED
from libs.telemetry.logs import get_logger
from services.reconciler.domain.cases import Case, CaseState

log = get_logger(__name__)


class CaseGauges:
    """Metrics, and the log line of what needs a person."""

    def undecided(self, counts: Mapping[CaseState, int]) -> None:
        """Cases that are undecided."""
        for state, count in counts.items():
            CASES_OPEN.labels(state.name.lower()).set(count)

    def decided(self, state: CaseState) -> None:
        """One case."""
        CASES_RESOLVED.labels(state.name.lower()).inc()

    def needs_person(self, case: Case, evidence: str) -> None:
        """A case that no look-up decides."""
        log.warning(
            "a person must decide what became of an effect",
            case=str(case.case_id),
            run=str(case.run_id),
            step=case.step_key,
            slot=case.slot,
            tool=case.tool,
            evidence=evidence,
        )
