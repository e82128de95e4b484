"""Rows of the gateway ↔ domain."""

from typing import Any

from services.gateway.domain.effect import Effect, EffectName, Failed, ReplayClass, State, Try


def name(row: Any) -> EffectName:
    """The slot that a row is about."""
    return EffectName(row["run_id"], row["step_key"], row["slot"])


def effect(row: Any) -> Effect:
    """A slot."""
    failed = row["failure_class"]
    return Effect(
        name=name(row),
        tool=row["tool"],
        replay_class=ReplayClass(row["replay_class"]),
        state=State(row["state"]),
        version=row["version"],
        dispatches=row["dispatches"],
        answered=row["answered"],
        proposal=row["proposal"],
        proposal_digest=row["proposal_digest"],
        result=row["result"],
        failure=Failed(failed, row["failure_message"], row["failure_type"]) if failed else None,
        evidence=row["evidence"],
        tenant=row["tenant"],
        project=row["project"],
        held=row["held"],
        cost=row["cost"],
        tokens=row["tokens"],
        created_ms=row["created_ms"],
        changed_ms=row["changed_ms"],
        resolved_ms=row["resolved_ms"],
        ordinal=row["ordinal"],
        proposal_hold=row["proposal_hold"],
    )


def attempt(row: Any) -> Try:
    """A try."""
    return Try(
        name=name(row),
        n=row["n"],
        nonce=row["nonce"],
        process=row["process"],
        authority_epoch=row["authority_epoch"],
        lease_epoch=row["lease_epoch"],
        attempt_id=row["attempt_id"],
        state=State(row["state"]),
        held=row["held"],
        cost=row["cost"],
        tokens=row["tokens"],
        requested_ms=row["requested_ms"],
        received_ms=row["received_ms"],
    )
