"""Migrations on a fleet that is full of them, through the whole installation: a run of another class gets a slot at a checkpoint."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from runway_sdk import Client
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS
from tests.system.flows import enduring, walking
from tests.system.test_fleet import ROOT, make_key


@pytest.mark.requirement("sched.migration")
async def test_a_migration_ends_at_a_checkpoint_for_who_waits_and_goes_on_from_there(stack: Stack, tmp_path: Path) -> None:
    tenant = Client(replace(stack.target, api_key=await make_key(stack, "moving")))
    end, profile, given = (
        tmp_path / "end",
        tmp_path / "profile.json",
        json.loads((stack.folder / "data" / "profile.json").read_text()),
    )
    profile.write_text(json.dumps(given | {"api_key": await make_key(stack, "movers", "fleet")}))
    profile.chmod(0o600)
    options = ("--worker-id", "moves", "--slots", "4", "--profile", str(profile))
    command = (sys.executable, "-m", "runway_sdk.serve", f"{FLOWS}:walking", f"{FLOWS}:enduring", *options)
    async with tenant:
        await tenant.publish(walking)
        await tenant.publish(enduring)
        long = [await tenant.launch("walking", {"pages": 20, "until": str(end)}, run_class="migration") for _ in range(4)]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        try:

            async def is_placed(run_id: str) -> bool:
                """It has a slot, or what is free is the reserve: other workers that share may be known from before."""
                if await tenant.attempts(run_id):
                    return True
                steps = (await tenant.explain(run_id)).steps
                return any(blocker.code == "RESERVE" for step in steps for blocker in step.blockers)

            async def full() -> bool:
                return all([await is_placed(run.run_id) for run in long])

            await wait_until(full, timeout_s=40, what="a worker full of migrations")
            quick = await tenant.launch("enduring", {"stays": False})
            assert (await tenant.wait(quick.run_id, timeout_s=60)).outcome == "succeeded"
            assert not any([(await tenant.get(run.run_id)).outcome for run in long]), "none had ended for it"
            gave = [attempt for run in long for attempt in await tenant.attempts(run.run_id) if attempt.HasField("ended_at")]
            assert 1 <= len(gave) <= 2, "no more than were of use"
            end.touch()
            ends = [await tenant.wait(run.run_id, timeout_s=90) for run in long]
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 30)
    assert [run.outcome for run in ends] == ["succeeded"] * 4
    made = [[page.string_value for page in run.output.list_value.values] for run in ends]
    assert all(len(pages) >= 20 for pages in made)
    assert 1 <= sum(len(set(pages)) == 2 for pages in made) <= 2, "who gave its slot went on from its checkpoint"
