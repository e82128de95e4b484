"""Begin an ended run again from a boundary: a launch of the same version and input that says which run it continues.

Authoritative for what may be continued. Can go wrong: two runs that do the same work at once. Only what has ended, with every
receipt and effect accounted for, is continued; readiness takes over what it gave. A repeat whose source was forgotten
meanwhile: what it made is told as before, for as long as its request_id is remembered.
"""

from collections.abc import Mapping

from libs.kernel.refusal import Reason, Refusal, invalid_field, not_found
from libs.kernel.values import value
from services.launch.app.launch_runs import LaunchAsk, forgotten, key_of, reused
from services.launch.domain.admission import Fork
from services.launch.domain.facts import Version
from services.launch.domain.run import TERMINAL, Run, RunState
from services.launch.ports import Ports


@value(frozen=True, slots=True)
class ForkAsk:
    """What was asked of an ended run. `budget` None: as much as it might use; `deadline_in_ms` 0: the version's default."""

    actor: str
    request_id: str
    request_digest: bytes
    from_steps: tuple[str, ...]
    reason: str
    deadline_in_ms: int
    budget: tuple[int, int] | None
    labels: Mapping[str, str]
    traceparent: str


async def made_before(ports: Ports, tenant: str, project: str, ask: ForkAsk) -> Run | None:
    """The run that this very request made before; None where it is new. `project` empty: any of the tenant."""
    key = key_of(tenant, ask.request_id)
    standing = (await ports.reads.receipts([key])).get(key) if ask.request_id else None
    if standing is None:
        return None
    if standing.request_digest != ask.request_digest:
        raise reused(ask.request_id, ask.request_digest, standing.request_digest, standing.run_id)
    await ports.db.run(lambda tx: tx.prove())  # whoever stored it may not know yet that it stands
    run = (await ports.reads.runs([standing.run_id])).get(standing.run_id)
    if run is None:
        raise forgotten(ask.request_id, standing.run_id)
    if project and run.head.project != project:
        raise not_found("run")
    return run


async def launch_of(ports: Ports, source: Run, ask: ForkAsk, labels: str) -> LaunchAsk:
    """The launch that continues this run. `labels`: of both, as JSON."""
    if source.head.state is RunState.DENIED:
        raise invalid_field("run_id", "names a run that was denied: nothing of it ran", "launch it again instead")
    if source.head.state not in TERMINAL:
        raise Refusal(
            Reason.RUN_NOT_ENDED,
            f"the run is {source.head.state.name.lower()}, and only an ended run can be begun again from a boundary",
            field="run_id",
            remedy="wait until it is settled, or cancel it",
            detail={"state": source.head.state.name.lower()},
        )
    head = source.head
    version = await ports.catalogue.resolve(head.tenant, head.project, source.digest.hex())
    _check_steps(version, ask.from_steps)
    micros, tokens = ask.budget or (head.budget_micros, source.budget_tokens)
    return LaunchAsk(
        tenant=head.tenant,
        project=head.project,
        actor=ask.actor,
        request_id=ask.request_id,
        request_digest=ask.request_digest,
        version=version,
        input=source.input,
        run_class=source.run_class,
        priority=source.priority,
        deadline_in_ms=ask.deadline_in_ms,
        budget_micros=micros,
        budget_tokens=tokens,
        budget_given=True,
        labels=labels,
        traceparent=ask.traceparent,
        fork=Fork(head.run_id, tuple(dict.fromkeys(ask.from_steps)), ask.reason),
        granted=head.capabilities,
    )


def _check_steps(version: Version, from_steps: tuple[str, ...]) -> None:
    keys = {step.key for step in version.spec.steps}
    for key in from_steps:
        if key not in keys:
            raise invalid_field(
                "from_steps",
                f"names {key!r}, which is no step of {version.name}",
                f"name of {', '.join(sorted(keys)[:20])}",
            )
