"""Workflows of the system tests, small and with short leases."""

import asyncio
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel
from runway_sdk import ApprovalRule, Context, Retry, SyncContext, step, workflow
from runway_sdk.examples.upkeep import git


class Push(BaseModel):
    repository: str
    branch: str


class Bundle(BaseModel):
    commit: str
    digest: str


QUICK = timedelta(seconds=2)


@step(checkpoints=True)
def prepare(ctx: SyncContext, run: Push) -> Bundle:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "clone"
        git(Path(scratch), "clone", "--quiet", "--", run.repository, str(folder))
        git(folder, "checkout", "--quiet", "-b", run.branch)
        (folder / "made.txt").write_text(f"by {run.branch}\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", "made", at="2026-01-01T00:00:00+00:00")
        git(folder, "bundle", "create", "--quiet", str(folder / "b.bundle"), f"origin/HEAD..{run.branch}")
        stored = ctx.artifact("b.bundle", folder / "b.bundle")
        return Bundle(commit=git(folder, "rev-parse", "HEAD"), digest=stored.digest)


@step(tools=["git.push"], checkpoints=True, lease_ttl=QUICK, retry=Retry(max_attempts=6, initial=timedelta(milliseconds=50)))
async def push(ctx: Context, run: Push, prepare: Bundle) -> str:
    pushed = await ctx.tool(
        "git.push",
        {"remote": "origin", "branch": run.branch, "bundle": prepare.digest, "commit": prepare.commit, "expected_old": ""},
        slot="push",
    )
    await ctx.checkpoint({"pushed": pushed.value["commit"]}, boundary="pushed")
    return str(pushed.value["commit"])


pushing = workflow("pushing", steps=[prepare, push], input=Push)


class Loop(BaseModel):
    calls: int


@step(tools=["http.request"], lease_ttl=timedelta(seconds=5))
async def hammer(ctx: Context, run: Loop) -> int:
    for number in range(run.calls):
        await ctx.tool(
            "http.request", {"target": "counter", "method": "POST", "path": f"/hit/{ctx.run_id}/{number}"}, replay="idempotent"
        )
    return run.calls


hammering = workflow("hammering", steps=[hammer], input=Loop)


@step
async def forever() -> int:

    await asyncio.Event().wait()
    return 1


waiting = workflow("waiting", steps=[forever])


@step(models=["summary"])
async def asks(ctx: Context, run: str) -> str:
    answer = await ctx.model("summary", {"messages": [{"role": "user", "content": run}], "max_tokens": 20}, hold_micros=500)
    return str(answer.value["choices"][0]["message"]["content"])


asking = workflow("asking", steps=[asks])


class Pages(BaseModel):
    pages: int
    until: str = ""
    """Further pages until this file is there, one of each attempt at the least."""


@step(checkpoints=True, lease_ttl=QUICK)
async def walk(ctx: Context, run: Pages) -> list[str]:
    """Page by page, with a checkpoint after each; which attempt made it. It goes on until a test lets it end, on any machine."""
    found = await ctx.restore()
    made: list[str] = list(found.state) if found else []
    first = bool(run.until)
    while first or len(made) < run.pages or (run.until and not os.path.exists(run.until)):
        first = False
        await asyncio.sleep(0.05)
        made.append(ctx.attempt_id.hex)
        await ctx.checkpoint(made, boundary=f"page {len(made)}")
    return made


walking = workflow("walking", steps=[walk], input=Pages)


class Progress(BaseModel):
    started: list[int]


@step(checkpoints=True, lease_ttl=QUICK)
async def resumes(ctx: Context, run: str) -> Progress:
    """Checkpoints, dies once where a drill asks for it, and goes on from the checkpoint."""
    found = await ctx.restore()
    started = [*(found.state["started"] if found else []), ctx.attempt_number]
    await ctx.checkpoint({"started": started}, boundary=f"attempt {ctx.attempt_number}")
    return Progress(started=started)


resuming = workflow("resuming", steps=[resumes])


class Stay(BaseModel):
    stays: bool


@step(lease_ttl=timedelta(seconds=6))
async def endure(run: Stay) -> int:
    """Stays alive until it is cancelled, or is done at once."""

    if run.stays:
        await asyncio.Event().wait()
    return 1


enduring = workflow("enduring", steps=[endure], input=Stay)


@step(tools=["http.request"], checkpoints=True, lease_ttl=QUICK)
async def ship(ctx: Context, run: str) -> list[str]:
    """Acts, waits for an event, for a person and for a moment, and acts again."""
    target = {"target": "shop", "method": "POST"}
    await ctx.tool("http.request", {**target, "path": f"/ship/{ctx.run_id}/order"}, replay="idempotent", slot="order")
    paid = await ctx.event("paid", correlation=run)
    said = await ctx.input("Ship it?", {"type": "boolean"})
    await ctx.sleep(timedelta(milliseconds=200))
    await ctx.tool("http.request", {**target, "path": f"/ship/{ctx.run_id}/send"}, replay="idempotent", slot="send")
    return [str(paid.value), str(said.value), ctx.attempt_id.hex]


shipping = workflow("shipping", steps=[ship])


@step(resources={"gpu": 1})
async def tune(run: Pages) -> list[float]:
    """Takes a while with a GPU; when it began and ended."""
    began = time.time()
    await asyncio.sleep(0.5)
    return [began, time.time()]


@step(resources={"gpu": 2})
async def train(tune: list[float]) -> list[float]:
    """Takes all GPUs."""
    began = time.time()
    await asyncio.sleep(0.2)
    return [*tune, began, time.time()]


tuning = workflow("tuning", steps=[tune, train], input=Pages)


@step(tools=["http.request"], lease_ttl=QUICK, approvals=[ApprovalRule(["http.request"], expires_in=timedelta(hours=1))])
async def pay(ctx: Context, run: int) -> int:
    """Pays once somebody else has approved exactly this sum."""
    arguments = {"target": "counter", "method": "POST", "path": f"/pay/{ctx.run_id}", "json": {"sum": run}}
    paid = await ctx.tool("http.request", arguments, replay="idempotent", slot="pay")
    return int(paid.value["json"]["count"])


paying = workflow("paying", steps=[pay])


@step(tools=["http.request"], lease_ttl=QUICK, approvals=[ApprovalRule(["*"], above_total_micros=250)])
async def spend(ctx: Context, run: int) -> int:
    """Pays so often; beyond 250 micros in all once people have allowed it."""
    for number in range(run):
        arguments = {"target": "counter", "method": "POST", "path": f"/spend/{ctx.run_id}/{number}"}
        await ctx.tool("http.request", arguments, replay="idempotent", slot=f"n{number}", hold_micros=100)
    return run


spending = workflow("spending", steps=[spend])
