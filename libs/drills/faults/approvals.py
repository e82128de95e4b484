"""A gateway that dies beside effects that people must allow: each certificate is used for one try, and no try goes without one.

Can go wrong: nobody who allows anything. Somebody decides all that is asked, and the effects are counted.
"""

import asyncio
import os
import secrets
import signal
from dataclasses import replace

from runway.launch.v1 import approval_service_pb2 as pb
from runway_sdk import ApproverKey, Client
from runway_sdk.connection import read_profile
from runway_sdk.errors import RunwayError

from libs.drills.finals import SQL, ask
from libs.drills.stage import Drill, Stage

RUNS = 8
DECIDE_S = 0.3
"""Between two looks of a person at what waits: the fault is to meet approvals in every state."""
EFFECTS = 2
"""Of each run."""


async def _allow(stage: Stage) -> None:
    """A second person, who allows whatever is asked."""
    folder = stage.installation.folder
    target = replace(read_profile(folder / "profile.json"), api_key=(folder / "reviewer-key").read_text().strip())
    key = ApproverKey.generate()
    async with Client(target) as client:
        while True:
            try:
                mine = await client.approvals.register(key)
                for pending in await client.approvals.find(states=[pb.APPROVAL_STATE_PENDING]):
                    asked = await client.approvals.get(pending.approval_id)
                    await client.approvals.decide(asked, key, mine.approver, approve=True, reason="a drill")
                    stage.history.note("drill", "allowed", approval=pending.approval_id, slot=asked.slot)
            except RunwayError as refused:
                stage.history.note("drill", "not allowed", reason=refused.reason)
            await asyncio.sleep(DECIDE_S)


async def kill_gateway_approved(stage: Stage) -> None:
    """The gateway dies three times while effects wait to be allowed, are allowed, and are made."""
    allowing = asyncio.create_task(_allow(stage))
    try:
        async with stage.fault("SIGKILL of the gateway, three times, beside effects that people must allow"):
            runs = list(await asyncio.gather(*(stage.traffic.begin("drill-approved", 1) for _ in range(RUNS))))
            for _ in range(3):
                await asyncio.sleep(0.5 + secrets.randbelow(1_500) / 1000)  # the fault comes at a random moment
                gone = stage.installation.pid("gateway")
                os.kill(gone, signal.SIGKILL)
                await stage.installation.back("gateway", gone)
            await stage.until(lambda: all(run.outcome for run in runs), "runs whose effects were allowed", 90)
    finally:
        allowing.cancel()
    good = sum(run.outcome == "succeeded" for run in runs)
    found = (await ask(stage.installation.urls["gateway"], SQL.certificates))[0]
    stage.report.facts |= {"succeeded": f"{good} of {RUNS}", "certificates used": found["used"], "tries": found["tries"]}
    stage.expect(good == RUNS, f"{good} of {RUNS} runs succeeded")
    stage.expect(found["tries"] >= EFFECTS * RUNS, f"only {found['tries']} tries")
    stage.expect(not found["without"], f"{found['without']} tries that nobody allowed")
    stage.expect(found["used"] == found["tries"], f"{found['used']} certificates were used for {found['tries']} tries")


DRILLS = [
    Drill(
        "kill-gateway-approved",
        "SIGKILL of the gateway beside effects that people must allow",
        kill_gateway_approved,
        during={"launched": RUNS, "finished": RUNS},
    )
]
