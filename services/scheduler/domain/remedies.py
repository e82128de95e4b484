"""Authoritative for the commands that take a scheduler's blocker away, whole, as somebody at a terminal pastes them. Pure.

What only that person knows stays in capitals: where the code of a workflow is, a reason, a number. Can go wrong: a command that
the command line does not have; a test parses each with it.
"""

from collections.abc import Collection
from shlex import quote

from services.scheduler.domain.resources import Amounts
from services.scheduler.domain.shares import USER_MARK, Project

REGION = "region:"
"""What a label begins with that `--region` gives."""


def worker(labels: Collection[str] = (), resources: Amounts = ()) -> str:
    """Starts a worker that has these."""
    words = ["runway worker run MODULE:NAME"]
    for label in sorted(labels):
        region = label.removeprefix(REGION)
        words.append(f"--label {quote(label)}" if region == label else f"--region {quote(region)}")
    words += [f"--resource {quote(f'{name}={amount}')}" for name, amount in resources]
    return f"`{' '.join(words)}`"


def carrier(handler: str, project: str = "") -> str:
    """What to do where no worker has a handler; `project`: that of the key which it needs, where workers of others have it."""
    workflow, _, build = handler.partition("@")
    workflow = workflow.rpartition(".")[0] or workflow
    key = f", with a key of project {project} or of no project" if project else ""
    text = f"start a worker with this very build{key}: {worker()}, from the code that build {build or handler} was published of"
    return f"{text} (`runway workflow list {quote(workflow)}` has the builds); or cancel the run"


def bound(name: Project) -> str:
    """Raises a tenant's, a project's or a user's."""
    tenant, of = name
    if of.startswith(USER_MARK):
        whose = f"{quote(tenant)} --user {quote(of.removeprefix(USER_MARK))}"
    else:
        whose = quote(f"{tenant}/{of}" if of else tenant)
    return f"wait for leases to end, or raise the bound: `runway share put {whose} --most-leases N --reason WHY`"


def weight(tenant: str) -> str:
    """More of what is shared."""
    return f"wait, or give its tenant more weight: `runway share put {quote(tenant)} --weight N --reason WHY`"


def scope(kind: str, name: str) -> str:
    """Opens one that is stopped."""
    return f"whoever stopped it opens it again: `runway scope release {kind} {quote(name)} --reason WHY`"
