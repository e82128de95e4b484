"""Revocation against the whole installation: nothing is dispatched by what was taken, however many attempts are calling."""

import asyncio
import json

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.testing import Stack

from tests.system.conftest import Counter, calling
from tests.system.test_command_line import runway

TAKEN = "tool:http.request"


@pytest.mark.requirement("child.bounded")
@pytest.mark.requirement("gw.fence")
async def test_no_effect_after_enforced_with_many_attempts_calling(stack: Stack, counter: Counter) -> None:
    async with calling(stack, counter, 10) as runs:
        told = json.loads(await runway(stack, "run", "revoke", runs[0].run_id, TAKEN, "--reason", "too many", "-o", "json"))
        assert (told["phase"], told["revoked"][0]["capability"]) == ("enforced", TAKEN)
        before = {runs[0].run_id: len(await stack.client.effects(runs[0].run_id))}
        for answer in await asyncio.gather(*(stack.client.trees.revoke(run.run_id, [TAKEN], "why") for run in runs[1:])):
            assert answer.phase == pb.REVOCATION_PHASE_ENFORCED
            before[answer.run.run_id] = len(await stack.client.effects(answer.run.run_id))
        for run in runs:
            final = await stack.client.wait(run.run_id, settled=True, timeout_s=30)
            assert (final.outcome, final.failure.type) == ("failed", "CAPABILITY_DENIED")
            effects = await stack.client.effects(run.run_id)
            assert len(effects) == before[run.run_id], "an intent committed after ENFORCED"
            assert counter.total(f"/hit/{run.run_id}/") <= len(effects)
    await runway(stack, "run", "revoke", runs[0].run_id, TAKEN, "--reason", "too late", code=1)
