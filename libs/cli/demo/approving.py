"""The push is approved: asked on the terminal, or said before by `--yes`. By a second person of the installation, with a key
of his own that lives as long as the demo.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from runway_sdk import ApproverKey, Client
from runway_sdk.testing import Stack

from libs.cli.demo.remote import DemoError
from libs.cli.demo.report import Reporter

LOOK_S = 0.05
ASKED_S = 120.0


async def approve_push(stack: Stack, run_id: str, reporter: Reporter, *, yes: bool) -> str:
    """The approval's id, once it is given; ends the demo where the answer is no."""
    reporter.doing("waiting for the step to ask for its approval")
    asked = await _asked(stack.client, run_id)
    pushed = asked.content.struct_value.fields
    what = f"{asked.tool} of {pushed['branch'].string_value} at {pushed['commit'].string_value[:12]}"
    reporter.good(f"nothing was sent: {what} needs an approval (digest {asked.digest[:12]}), not by who launched it")
    wanted = yes or await _said_yes(reporter, what)
    async with Client(stack.target.as_reviewer) as reviewer:
        key = ApproverKey.generate()
        who = (await reviewer.approvals.register(key)).approver
        why = "the demo, by --yes" if yes else "asked on the terminal"
        await reviewer.approvals.decide(asked, key, who, approve=wanted, reason=why)
    if not wanted:
        final = await stack.client.wait(run_id, settled=True, timeout_s=60)
        raise DemoError(f"you said no: the run {final.outcome} as {final.failure.failure_class}, and nothing was pushed")
    reporter.good(f"approved by {who}, signed with key {key.key_id[:8]}: the gateway holds it, for this push and once")
    return str(asked.approval_id)


async def _asked(client: Client, run_id: str) -> Any:
    end = asyncio.get_running_loop().time() + ASKED_S
    while not (found := await client.approvals.find(run_id)):
        if asyncio.get_running_loop().time() > end:
            raise DemoError("the step did not ask for its approval")
        await asyncio.sleep(LOOK_S)
    return await client.approvals.get(found[0].approval_id)


async def _said_yes(reporter: Reporter, what: str) -> bool:
    reporter.close()  # the question needs the line for itself
    return await asyncio.to_thread(yes_or_no, f"approve {what}? [y/N] ", input)


def yes_or_no(question: str, ask: Callable[[str], str]) -> bool:
    """A person's answer, asked again where it is neither; nothing, or the end of what is typed, is a no."""
    while True:
        try:
            said = ask(question).strip().lower()
        except EOFError:
            return False
        if said in ("y", "yes", "n", "no", ""):
            return said in ("y", "yes")
        question = f"{said!r} is neither yes nor no; type y or n: "
