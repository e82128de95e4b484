"""Looks up what became of doubtful effects. Changes nothing, here or at the provider."""

import asyncio
from collections.abc import Sequence

from libs.kernel.refusal import Refusal
from libs.telemetry.logs import get_logger
from services.gateway.domain.arguments import key_of, parse
from services.gateway.domain.effect import DOUBTFUL, UNRESOLVED, Effect, EffectName, Try
from services.gateway.domain.lookup import Finding, Found, Inspection, Seen, judge
from services.gateway.ports import Ports, Request

UNDER_WAY_MS = 1_000
"""When to ask again about a call that is still being made."""
log = get_logger(__name__)


async def inspect_effects(ports: Ports, names: Sequence[EffectName]) -> list[Inspection | None]:
    """One inspection per name, side by side; None for a slot that is not known."""
    known = await ports.store.inspected(names)
    return list(await asyncio.gather(*(_inspect(ports, *known[name]) if name in known else _nothing() for name in names)))


async def _nothing() -> None:
    return None


async def _inspect(ports: Ports, effect: Effect, attempt: Try) -> Inspection:
    def says(finding: Finding, result: bytes | None, evidence: str, settle_ms: int = 0) -> Inspection:
        return Inspection(finding, result, evidence, settle_ms, effect.version, effect.state.value)

    if effect.state not in UNRESOLVED:
        return says(Finding.RESOLVED, effect.result, effect.evidence)
    if effect.state not in DOUBTFUL:
        return says(Finding.NOT_YET, None, "the call is still under way", UNDER_WAY_MS)
    tool = ports.tools.find(effect.tool)
    if tool is None:
        return says(Finding.UNDECIDABLE, None, f"{effect.tool} is not offered any more")
    request = Request(
        name=effect.name,
        tenant=effect.tenant,
        project=effect.project,
        arguments=parse(effect.proposal),
        key=key_of(effect.name),
        replay_class=effect.replay_class,
    )
    try:
        seen = await tool.lookup(request)
    except Refusal as refusal:
        seen = Seen(Found.UNREACHABLE, evidence=refusal.message)
    except Exception as error:
        log.error("a look-up failed in an unforeseen way", tool=effect.tool, exc_info=error)
        seen = Seen(Found.UNREACHABLE, evidence=f"the look-up failed: {type(error).__name__}")
    finding, settle_ms = judge(seen, ports.clock.now_ms() - attempt.received_ms, tool.settle_ms)
    return says(finding, seen.result, seen.evidence, settle_ms)
