"""Commands that ask for an approval become rows, once each; an older proposal of the same slot is stale from then on.

What is asked is judged here by the run's pinned version and those of the runs above it: a worker names the call, the rules
name who decides. A child's approval stands under the root of its tree too, whose log tells of it in the same commit: the root
is locked with the child, older ids first. Can go wrong: a command that comes twice or late. The first stands; a proposal older
than one that is known is stale from the beginning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from libs.fence.certificates import Subject
from libs.fence.rules import Rule, governing, lifted_to, rules_of, unsaid
from services.launch.app.approval_log import child_entry, entry
from services.launch.domain.approvals import (
    Answered,
    Approval,
    ApprovalState,
    Asked,
    answered,
    born,
    certificate,
    refused,
    rules_behind,
    superseded,
    who_and_how_long,
)
from services.launch.domain.facts import Version
from services.launch.domain.run import DECIDED, Run, RunEventFacts
from services.launch.domain.workflow import ApprovalRule, StepSpec
from services.launch.ports import Ports, Tx


async def ask_approvals(ports: Ports, asks: Sequence[Asked]) -> None:
    """Stores what is new of runs that go on, and tells what nobody can be asked."""
    run_ids = sorted({ask.run_id for ask in asks})
    runs = await ports.reads.runs(run_ids)
    versions = {
        run_id: await ports.catalogue.resolve(run.head.tenant, run.head.project, run.digest.hex())
        for run_id, run in runs.items()  # equal content has an owner of its own in each project
    }
    children = [run_id for run_id, run in runs.items() if run.head.parent_id is not None]
    above = await ports.children.owners_above(children) if children else {}
    now = ports.clock.now_ms()
    new: dict[tuple[UUID, str, str], Approval] = {}
    answers: list[Answered] = []
    for ask in asks:
        if ask.run_id not in runs:
            continue
        run = runs[ask.run_id]
        made = await _made(ports, ask, run, versions[ask.run_id], now)
        if isinstance(made, Answered):
            answers.append(made)
        else:
            made = replace(made, root_run_id=run.head.root_id, owners_above=above.get(ask.run_id, ()))
            new.setdefault((ask.run_id, ask.step_key, ask.command_slot), made)
    roots = {run.head.root_id for run in runs.values() if run.head.root_id is not None}

    async def work(tx: Tx) -> None:
        heads = await tx.lock_heads(sorted({*run_ids, *roots}))
        open_runs = {run_id for run_id, head in heads.items() if head.state not in DECIDED}
        fresh = [approval for approval in new.values() if approval.run_id in open_runs]
        events, told = await _store(ports, tx, fresh, now) if fresh else ([], [])
        await tx.append_events([event for event in events if event.run_id in open_runs])
        refused = [answer for answer in answers if answer.run_id in open_runs]
        await tx.send([ports.approvals.notices.answered(answer, now) for answer in (*refused, *told)], now)

    await ports.db.run(work)
    ports.hub.poke({*run_ids, *roots}, state=False)


async def _store(ports: Ports, tx: Tx, fresh: Sequence[Approval], now: int) -> tuple[list[RunEventFacts], list[Answered]]:
    known: dict[UUID, Approval] = {}
    by_run: dict[UUID, list[Approval]] = {}
    for approval in await tx.approvals.of_runs(sorted({a.run_id for a in fresh})):
        known[approval.approval_id] = approval
        by_run.setdefault(approval.run_id, []).append(approval)
    events: list[RunEventFacts] = []
    told: list[Answered] = []
    ended: dict[UUID, Approval] = {}
    asked = {_command(approval) for approval in known.values()}
    new: list[Approval] = []
    for approval in sorted(fresh, key=lambda a: a.subject.proposal_version):
        if _command(approval) in asked:
            continue
        asked.add(_command(approval))
        others = [ended.get(other.approval_id, other) for other in by_run.get(approval.run_id, [])]
        made = born(approval, others)
        new.append(made)
        by_run.setdefault(made.run_id, []).append(made)
        facts = {"need": made.need, "expires_ms": made.subject.expires_ms, "title": made.title}
        events.append(entry(made, "requested", f"step:{made.subject.step_key}", now, **facts))
        events += child_entry(made, now)
        if made.state is ApprovalState.STALE:
            events.append(entry(made, "stale", "launch", now))
            told.append(answered(made))
        for old in superseded(made, others):
            ended[old.approval_id] = old
            events.append(entry(old, "stale", "launch", now, by=str(made.approval_id)))
            if not old.effective_ms:
                told.append(answered(old))
    await tx.approvals.add(new)
    await tx.approvals.save(list(ended.values()))
    await _take_back(ports, tx, [old for old in ended.values() if old.approval_id in known], known, now)
    return events, told


def _command(approval: Approval) -> tuple[UUID, str, str]:
    """What asked for it: once each, and behind the run's lock nobody else asks meanwhile."""
    return (approval.run_id, approval.subject.step_key, approval.command_slot)


async def _take_back(ports: Ports, tx: Tx, ended: Sequence[Approval], known: Mapping[UUID, Approval], now: int) -> None:
    """The gateway holds those that were approved: it must not any more."""
    held = [old for old in ended if known[old.approval_id].state is ApprovalState.APPROVED and old.subject.tool]
    said = await tx.approvals.decisions([old.approval_id for old in held])
    raises = [ports.approvals.notices.certificate(certificate(old, said[old.approval_id])) for old in held]
    await tx.send(raises, now)


async def _named(ports: Ports, ask: Asked, run: Run, step: StepSpec, governs: Rule) -> tuple[tuple[str, ...], int]:
    """Who may decide and for how long, by every rule that names the call: the step's own, and those of the runs above it, whose
    versions are in the same project."""
    head = run.head
    entries: dict[str, list[Rule]] = {}
    for one in rules_of(head.capabilities):
        if one.names(ask.call):
            entries.setdefault(one.policy, []).append(one)
    named: list[ApprovalRule] = []
    governing_rules: list[ApprovalRule] = []
    for policy, mine in sorted(entries.items()):
        steps: Sequence[StepSpec] = [step]
        if policy != run.digest.hex():
            steps = (await ports.catalogue.resolve(head.tenant, head.project, policy)).spec.steps
        named += rules_behind(steps, mine)
        governing_rules += rules_behind(steps, [governs]) if policy == governs.policy else []
    return who_and_how_long(named, governing_rules)


async def _made(ports: Ports, ask: Asked, run: Run, version: Version, now: int) -> "Approval | Answered":
    if ask.problem:
        return refused(ask, ask.problem)
    need, eligible, length_ms, by_class = ask.need, ask.eligible, ask.length_ms, False
    base = ask.step_key.partition("[")[0]
    step = next((step for step in version.spec.steps if step.key in (ask.step_key, base)), None)
    if step is None:
        return refused(ask, "the run's workflow has no such step")
    policy, grant, total = run.digest.hex(), run.head.capabilities, 0
    if ask.tool:
        if missing := unsaid(grant, ask.call, total=ask.total_micros >= 0):
            return refused(
                ask, f"its command says no {missing}, by which a rule of step {step.key} asks: send the refusal's detail"
            )
        governs = governing(grant, ask.call, ask.policy)
        if governs is None:
            return refused(ask, f"no rule of step {step.key} asks for an approval of {ask.tool} that holds {ask.hold_micros}")
        need, policy, total = governs.need, governs.policy, lifted_to(grant, ask.call)
        eligible, length_ms = await _named(ports, ask, run, step, governs)
        by_class = any(rule.by_class and rule.of_step(ask.step_key) for rule in rules_of(grant))
    subject = Subject(
        approval_id=ports.ids.uuid7(),
        run_id=ask.run_id,
        step_key=ask.step_key,
        slot=ask.slot,
        tool=ask.tool,
        digest=ask.digest,
        policy=policy,
        proposal_version=ask.proposal_version,
        hold_micros=ask.hold_micros,
        expires_ms=now + (length_ms or ports.approvals.default_length_ms),
        effect_class=ask.effect_class if by_class else "",
        total_micros=total,
    )
    return Approval(
        subject=subject,
        command_slot=ask.command_slot,
        tenant=run.head.tenant,
        project=run.head.project,
        workflow=f"{run.workflow_name}@{run.workflow_number}",
        title=ask.title
        or f"{ask.tool} in step {ask.step_key}" + (f": the run may spend {total} micros in all" if total else ""),
        content=ask.content,
        need=need,
        eligible=eligible,
        requester=run.head.launched_by,
        owner=version.publisher,
        state=ApprovalState.PENDING,
        requested_ms=now,
    )
