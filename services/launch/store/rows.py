"""Rows of launch's tables ↔ domain values. Authoritative for nothing but the spelling; one place for each table."""

import json

import asyncpg

from services.launch.domain.admission import Account
from services.launch.domain.run import FailureFacts, Run, RunEventFacts, RunHead, RunState

Row = asyncpg.Record


def account(row: Row) -> Account:
    """A tenant."""
    return Account(
        row["tenant"],
        row["limit_micros"],
        row["reserved_micros"],
        row["spent_micros"],
        row["max_active_runs"],
        row["active_runs"],
        row["version"],
        row["max_active_descendants"],
        row["active_descendants"],
        frozenset(row["suspended"]),
    )


def head(row: Row) -> RunHead:
    """What decisions look at."""
    return RunHead(
        run_id=row["run_id"],
        tenant=row["tenant"],
        project=row["project"],
        state=RunState(row["state"]),
        outcome=row["outcome"],
        epoch=row["epoch"],
        version=row["version"],
        points=row["points"],
        enforced=row["enforced"],
        quiesced=row["quiesced"],
        capabilities=tuple(row["capabilities"]),
        budget_micros=row["budget_micros"],
        used_micros=row["used_micros"],
        deadline_ms=row["deadline_ms"],
        paused_ms=row["paused_ms"],
        awaits=row["awaits"],
        parent_id=row["parent_id"],
        root_id=row["root_id"],
        depth=row["depth"],
        independent=row["independent"],
        children=row["children"],
        open_children=row["open_children"],
        delegated_micros=row["delegated_micros"],
        budget_sequence=row["budget_sequence"],
        run_class=row["run_class"],
        priority=row["priority"],
        digest=row["digest"],
        promised=row["promised"],
        pause_until_ms=row["pause_until_ms"],
        deepest=row["deepest"],
        launched_by=row["launched_by"],
        revoking=row["revoking"],
    )


def run(row: Row) -> Run:
    """A whole run."""
    failed = row["failure_class"]
    return Run(
        head=head(row),
        digest=row["digest"],
        workflow_name=row["workflow_name"],
        workflow_number=row["workflow_number"],
        build=row["build"],
        run_class=row["run_class"],
        priority=row["priority"],
        deadline_ms=row["deadline_ms"],
        created_ms=row["created_ms"],
        finished_ms=row["finished_ms"],
        enforced_ms=row["enforced_ms"],
        budget_tokens=row["budget_tokens"],
        used_tokens=row["used_tokens"],
        input=row["input"],
        output=row["output"],
        failure=FailureFacts(failed, row["failure_message"], row["failure_type"]) if failed else None,
        labels=json.loads(row["labels"]),
        cancel_extent=row["cancel_extent"],
        pause_until_ms=row["pause_until_ms"],
        sequence=row["sequence"],
        fork_of=row["fork_of"],
        start_by_ms=row["start_by_ms"],
        revoked_epoch=row["revoked_epoch"],
    )


def event(row: Row) -> RunEventFacts:
    """A log entry."""
    return RunEventFacts(
        row["run_id"],
        row["sequence"],
        row["at_ms"],
        row["kind"],
        row["state"],
        row["step_key"],
        row["actor"],
        row["detail"],
    )
