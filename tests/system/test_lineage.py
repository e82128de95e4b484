"""What a run used and made, on the whole installation: complete, the same bytes each time, and named by digest."""

import json
import secrets

import pytest
from runway_sdk import ApproverKey, Client, RunwayError
from runway_sdk.lineage import canonical, lineage, open_lineage
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter, Origin
from tests.system.flows import paying, pushing
from tests.system.test_command_line import runway


@pytest.mark.requirement("run.lineage")
@pytest.mark.requirement("run.retry-fork")
@pytest.mark.requirement("run.search")
async def test_the_record_of_a_run_is_complete_and_the_same_each_time(stack: Stack, origin: Origin) -> None:
    await stack.client.publish(pushing)
    branch = f"lineage-{secrets.token_hex(4)}"
    given = {"repository": str(origin.path), "branch": branch}
    run = await stack.client.launch("pushing", given, labels={"branch": branch})
    with pytest.raises(RunwayError) as early:
        await lineage(stack.client, run.run_id)
    assert early.value.reason == "RUN_NOT_ENDED"
    async with stack.worker(f"{FLOWS}:pushing", worker_id="w-lineage"):
        ended = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
        document = await lineage(stack.client, run.run_id)
        assert canonical(document) == canonical(await lineage(stack.client, run.run_id))
        # The push is made already: run again it finds its branch there, and a new effect fails; the step before is kept.
        (line,) = (
            json.loads(await runway(stack, "run", "fork", run.run_id, "--from", "push", "--reason", "a test", "-o", "json")),
        )
        again = await stack.client.wait(line["run_id"], settled=True, timeout_s=60)
    assert (ended.outcome, again.forked_from) == ("succeeded", run.run_id)
    assert document["run"]["workflow"]["digest"] == ended.workflow.digest
    assert [(step["step_key"], step["state"]) for step in document["steps"]] == [
        ("prepare", "STEP_STATE_SUCCEEDED"),
        ("push", "STEP_STATE_SUCCEEDED"),
    ]
    (effect,) = document["effects"]
    assert (effect["slot"], effect["tool"], effect["state"]) == ("push", "git.push", "EFFECT_STATE_SUCCEEDED")
    assert effect["result"].keys() == {"sha256", "bytes"}
    assert [made["name"] for made in document["artifacts"]] == ["b.bundle"]
    assert [one["boundary"] for one in document["checkpoints"]] == ["pushed"]
    assert document["cost"]["micros"] == document["cost"]["of_effects_micros"] == int(ended.used.micros)
    words = canonical(document).decode()
    assert branch not in words.replace(json.dumps(document["run"]["labels"], sort_keys=True, separators=(",", ":")), ""), (
        "by digest"
    )
    text = await runway(stack, "run", "lineage", run.run_id)
    assert text.encode().rstrip(b"\n") == canonical(document)
    event = json.loads(await runway(stack, "run", "lineage", run.run_id, "--openlineage"))
    assert event == json.loads(canonical(open_lineage(document)))
    assert (event["eventType"], event["run"]["runId"], event["job"]["name"]) == ("COMPLETE", run.run_id, "pushing")
    assert [made["name"] for made in event["outputs"]] == [f"sha256/{document['artifacts'][0]['digest']}"]
    child = open_lineage(await lineage(stack.client, again.run_id))
    assert child["run"]["facets"]["parent"]["run"]["runId"] == run.run_id
    listed = json.loads(await runway(stack, "run", "list", "--label", f"branch={branch}", "-o", "json"))
    assert {row["run_id"] for row in listed} == {run.run_id, again.run_id}


@pytest.mark.requirement("run.lineage")
async def test_a_run_that_people_approved_is_told_in_the_same_bytes_each_time(stack: Stack, counter: Counter) -> None:
    await stack.client.publish(paying)
    async with stack.worker(f"{FLOWS}:paying", worker_id="w-approved"), Client(stack.target.as_reviewer) as reviewer:
        run = await stack.client.launch("paying", 3)
        (found,) = await wait_until(lambda: stack.client.approvals.find(run.run_id), timeout_s=30, what="an approval asked for")
        key = ApproverKey.generate()
        who = (await reviewer.approvals.register(key)).approver
        asked = await reviewer.approvals.get(found.approval_id)
        await reviewer.approvals.decide(asked, key, who, approve=True, reason="it is due")
        assert (await stack.client.wait(run.run_id, settled=True, timeout_s=60)).outcome == "succeeded"

        async def used() -> bool:
            return (await stack.client.approvals.get(found.approval_id)).HasField("consumed_at")

        await wait_until(used, what="launch knows that it was used")
    assert counter.total(f"/pay/{run.run_id}") == 1
    document = await lineage(stack.client, run.run_id)
    (approval,) = document["approvals"]
    assert found.approval_id in json.dumps(approval)
    told, again = [canonical(open_lineage(await lineage(stack.client, run.run_id))) for _ in range(2)]
    assert told == again
    first, second = [await runway(stack, "run", "lineage", run.run_id, "--openlineage") for _ in range(2)]
    assert first == second
    assert first.encode().rstrip(b"\n") == told
