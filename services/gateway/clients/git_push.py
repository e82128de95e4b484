"""`git.push`: moves a branch of a configured remote to a commit that travels as an artifact (a git bundle).

A compare-and-set: the remote moves the branch only from the head that the caller expected, so a repeat is safe and a late
arrival of a lost push does nothing to what came after it. Look-up by branch head.

Can go wrong: after the push was begun, a lost answer is unknown; before, nothing was sent. So it may be cut before, and is
waited for after: its end says what a look-up would have to guess.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.telemetry.redaction import redact
from services.gateway.clients.git import Done, Git, GitTimedOut, scratch
from services.gateway.domain.aborting import Abort
from services.gateway.domain.effect import Failed, Outcome, ReplayClass, State
from services.gateway.domain.lookup import Found, Seen
from services.gateway.domain.outside import GitRemote
from services.gateway.ports import Request

_OBJECT = "^[0-9a-f]{40}$"
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "remote": {"type": "string", "minLength": 1, "maxLength": 100},
        "branch": {"type": "string", "minLength": 1, "maxLength": 200},
        "bundle": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "commit": {"type": "string", "pattern": _OBJECT},
        "expected_old": {"type": "string", "pattern": f"{_OBJECT}|^$"},
    },
    "required": ["remote", "branch", "bundle", "commit", "expected_old"],
    "additionalProperties": False,
}


class Artifacts(Protocol):
    """Where bundles come from."""

    def read(self, run_id: UUID, digest: bytes) -> AsyncIterator[bytes]:
        """The bytes of an artifact of a run. Raises Refusal."""
        ...


class NotPushed(Exception):
    """Decided before anything was sent."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.state)
        self.outcome = outcome


class GitPush:
    """The tool; implements `ports.Tool`."""

    name = "git.push"
    kind = "tool"
    provider_always = ""
    description = "Moves a branch of a configured remote to a commit from a bundle, if its head is the expected one."
    replay_class = ReplayClass.IDEMPOTENT
    abort = Abort.SIGNAL
    schema = SCHEMA
    settle_ms = 0

    def __init__(
        self,
        remotes: Mapping[str, GitRemote],
        artifacts: Artifacts,
        *,
        timeout_ms: int,
        bundle_limit_bytes: int,
        scratch_dir: str = "",
    ) -> None:
        self._remotes = remotes
        self._artifacts = artifacts
        self._timeout_ms = timeout_ms
        self._bundle_limit_bytes = bundle_limit_bytes
        self._scratch_dir = scratch_dir

    def classify(self, arguments: Any, asked: ReplayClass | None) -> ReplayClass:
        """Always idempotent: the remote compares and sets."""
        if asked not in (None, self.replay_class):
            raise invalid_field("replay_class", "cannot be chosen for git.push, which is idempotent", "leave it out")
        return self.replay_class

    def check(self, arguments: Any) -> None:
        """Refuses remotes that are not configured and names that are no branch."""
        if arguments["remote"] not in self._remotes:
            raise invalid_field(
                "arguments.remote", "is not configured at this gateway", "use a name of RUNWAY_GATEWAY_GIT_REMOTES"
            )
        branch = arguments["branch"]
        bad = _FORBIDDEN.search(branch) or branch.startswith(("-", "/", ".")) or branch.endswith(("/", ".")) or branch == "@"
        if bad:
            raise invalid_field("arguments.branch", "is no name of a branch", "see git check-ref-format")

    def provider(self, arguments: Any) -> str:
        """The remote."""
        return str(arguments["remote"])

    def reaches(self, provider: str) -> bool:
        """Any remote."""
        return provider in self._remotes

    def hold(self, arguments: Any) -> int:
        """Pushes cost nothing."""
        return 0

    def tokens(self, arguments: Any) -> int:
        """None."""
        return 0

    async def call(self, request: Request) -> Outcome:
        """Fetches the bundle, checks it, pushes."""
        asked = request.arguments
        sent = False
        try:
            async with scratch(self._scratch_dir, self._remote(asked), self._timeout_ms) as git:
                previous = await self._prepare(git, request)
                sent = True
                request.cut.begins()
                return await self._push(git, asked, previous)
        except NotPushed as decided:
            return decided.outcome
        except GitTimedOut:
            if sent:
                return Outcome(State.UNKNOWN, cause="call_timed_out", evidence="the push took too long and was cut")
            return _not_sent(f"remote {asked['remote']} did not answer in time")
        except OSError as error:
            if sent:
                return Outcome(State.UNKNOWN, cause="connection_lost", evidence=f"the push failed: {type(error).__name__}")
            return _not_sent(f"git could not work: {type(error).__name__}")

    def _remote(self, asked: Any) -> GitRemote:
        return self._remotes[asked["remote"]]

    async def _prepare(self, git: Git, request: Request) -> str:
        """Everything up to the push; returns the branch's head, which is the expected one."""
        asked = request.arguments
        done, head = await git.head(asked["branch"])
        if done.code:
            raise NotPushed(_not_sent(f"remote {asked['remote']}: {done.why}"))
        if head == asked["commit"]:
            raise NotPushed(_succeeded(asked, asked["expected_old"], "the branch was at the commit already"))
        if head != asked["expected_old"]:
            raise NotPushed(_rejected(head))
        bundle = git.repository.parent / "bundle"
        await self._fetch_bundle(bundle, request)
        if _builds_on(bundle):
            done = await git.fetch_heads()
            if done.code:
                raise NotPushed(_not_sent(f"remote {asked['remote']}: {done.why}"))
        done = await git.run("-c", "transfer.fsckObjects=true", "bundle", "unbundle", str(bundle))
        if done.code:
            raise NotPushed(_invalid(f"the bundle cannot be unpacked: {done.why}"))
        done = await git.run("cat-file", "-t", asked["commit"])
        if done.code or done.out.strip() != "commit":
            raise NotPushed(_invalid("the bundle does not hold the commit"))
        return head

    async def _fetch_bundle(self, bundle: Path, request: Request) -> None:
        size = 0
        try:
            with bundle.open("wb") as file:
                async for data in self._artifacts.read(request.name.run_id, bytes.fromhex(request.arguments["bundle"])):
                    size += len(data)
                    if size > self._bundle_limit_bytes:
                        raise NotPushed(_invalid(f"the bundle has more than {self._bundle_limit_bytes} bytes"))
                    file.write(data)
        except Refusal as refusal:
            if refusal.reason in (Reason.NOT_FOUND, Reason.CHECKPOINT_CORRUPT, Reason.CONTENT_MISSING):
                raise NotPushed(_invalid(f"the bundle cannot be read: {refusal.message}")) from None
            raise NotPushed(_not_sent(f"the checkpoint service did not give the bundle: {refusal.message}")) from None

    async def _push(self, git: Git, asked: Any, previous: str) -> Outcome:
        done = await git.push(asked["commit"], asked["branch"], asked["expected_old"])
        flag, said = _status(done, asked["branch"])
        if done.code == 0 and flag in ("*", " ", "+", "="):
            return _succeeded(asked, previous, "the branch was at the commit already" if flag == "=" else "")
        if flag == "!" and not said.startswith("[remote failure]"):
            found, head = await git.head(asked["branch"])
            if found.code == 0 and head == asked["commit"]:
                return _succeeded(asked, previous, "the branch was found at the commit")
            return _rejected(head, said)
        return Outcome(State.UNKNOWN, cause="connection_lost", evidence=f"the push ended without a status: {done.why}")

    async def lookup(self, request: Request) -> Seen:
        """Compares the branch's head: at the commit, still at the expected one, or elsewhere."""
        asked = request.arguments
        if asked["remote"] not in self._remotes:
            return Seen(Found.UNCLEAR, evidence=f"remote {asked['remote']} is not configured any more")
        try:
            async with scratch(self._scratch_dir, self._remote(asked), self._timeout_ms) as git:
                done, head = await git.head(asked["branch"])
        except GitTimedOut:
            return Seen(Found.UNREACHABLE, evidence="the remote did not answer in time")
        if done.code:
            return Seen(Found.UNREACHABLE, evidence=done.why)
        where = f"head of {asked['branch']} at {asked['remote']} is {head or 'missing'}"
        if head == asked["commit"]:
            return Seen(Found.PRESENT, _result(asked, asked["expected_old"]), where)
        if head == asked["expected_old"]:
            return Seen(Found.IMPOSSIBLE, evidence=f"{where}, as before; the remote compares and sets, so a repeat is safe")
        return Seen(Found.UNCLEAR, evidence=f"{where}: neither the pushed commit nor the one before it")


def _builds_on(bundle: Path) -> bool:
    """Whether a bundle's header names commits that it does not hold."""
    with bundle.open("rb") as file:
        for line in iter(file.readline, b""):
            if line.startswith(b"-"):
                return True
            if line in (b"\n", b""):
                break
    return False


def _status(done: Done, branch: str) -> tuple[str, str]:
    """The flag and the summary that `push --porcelain` prints for the branch."""
    for line in done.out.splitlines():
        flag, _, rest = line.partition("\t")
        refs, _, said = rest.partition("\t")
        if refs.endswith(f":refs/heads/{branch}"):
            return flag, said
    return "", ""


def _result(asked: Any, previous: str) -> bytes:
    found = {"remote": asked["remote"], "branch": asked["branch"], "commit": asked["commit"], "previous": previous}
    return json.dumps(found).encode()


def _succeeded(asked: Any, previous: str, evidence: str) -> Outcome:
    return Outcome(State.SUCCEEDED, _result(asked, previous), evidence=evidence)


def _rejected(head: str, said: str = "") -> Outcome:
    why = f" ({redact(said)[:200]})" if said else ""
    text = f"the remote did not move the branch: its head is {head or 'missing'}{why}"
    return Outcome(State.FAILED, failure=Failed("validation", text, "PUSH_REJECTED"), evidence=f"head {head or 'missing'}")


def _invalid(why: str) -> Outcome:
    return Outcome(State.FAILED, failure=Failed("validation", why, "BUNDLE_INVALID"), evidence="nothing was sent")


def _not_sent(why: str) -> Outcome:
    failure = Failed("transient", why, "REMOTE_UNREACHABLE")
    return Outcome(State.NOT_SENT, failure=failure, evidence=f"nothing was sent: {why}")
