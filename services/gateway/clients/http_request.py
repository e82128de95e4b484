"""`http.request`: one request to a configured target. Its class is what the caller says: pure for GET and HEAD, else never
repeated unless declared otherwise. Every try carries the slot's idempotency key.

Can go wrong: 5xx. The target may have acted before it failed, so anything but a pure call is unknown then.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from libs.kernel.refusal import invalid_field
from services.gateway.clients.http import AnswerLost, AnswerTooLarge, Http, HttpAnswer, NotSent, parse_json, place_of, scrub
from services.gateway.domain.aborting import Abort
from services.gateway.domain.effect import Failed, Outcome, ReplayClass, State
from services.gateway.domain.lookup import Found, Seen
from services.gateway.domain.outside import HttpTarget
from services.gateway.ports import Request

READS = ("GET", "HEAD")
DONE_ELSEWHERE = 303
UNDECIDED = 302
_PATH = re.compile(r"^/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*$")
_VALUE = re.compile(r"^[\x20-\x7e]*$")
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "target": {"type": "string", "minLength": 1, "maxLength": 100},
        "method": {"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]},
        "path": {"type": "string", "minLength": 1, "maxLength": 2000},
        "query": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 100},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 50},
        "json": {},
        "text": {"type": "string"},
    },
    "required": ["target", "method", "path"],
    "additionalProperties": False,
}


class HttpRequest:
    """The tool; implements `ports.Tool`."""

    name = "http.request"
    kind = "tool"
    provider_always = ""
    description = "Sends one HTTP request to a configured target, with an idempotency key."
    replay_class = ReplayClass.NON_REPLAYABLE
    abort = Abort.CLOSE
    schema = SCHEMA

    def __init__(self, targets: Mapping[str, HttpTarget], http: Http, *, timeout_ms: int, secrets: Sequence[str]) -> None:
        self._targets = targets
        self._http = http
        self._timeout_ms = timeout_ms
        self._secrets = secrets

    @property
    def settle_ms(self) -> int:
        """The longest of the targets'."""
        return max((target.settle_ms for target in self._targets.values()), default=0)

    def classify(self, arguments: Any, asked: ReplayClass | None) -> ReplayClass:
        """What the caller says, else by the method."""
        return asked or (ReplayClass.PURE if arguments["method"] in READS else self.replay_class)

    def check(self, arguments: Any) -> None:
        """Refuses what is not the target's to take."""
        target = self._targets.get(arguments["target"])
        if target is None:
            raise invalid_field(
                "arguments.target", "is not configured at this gateway", "use a name of RUNWAY_GATEWAY_HTTP_TARGETS"
            )
        path = arguments["path"]
        if not _PATH.match(path) or ".." in path.split("/") or "%2e" in path.lower():
            raise invalid_field("arguments.path", "is no absolute path", "start with /, escape what is not allowed, no ..")
        for name, value in arguments.get("headers", {}).items():
            if name.lower() not in target.request_headers or name.lower() in {known.lower() for known in target.headers}:
                raise invalid_field(
                    "arguments.headers", f"may not set {name[:50]!r}", f"set {', '.join(target.request_headers)}"
                )
            if not _VALUE.match(value):
                raise invalid_field(
                    "arguments.headers", f"has a value of {name[:50]!r} that is no header", "use printable ASCII"
                )
        if "json" in arguments and "text" in arguments:
            raise invalid_field("arguments", "has json and text", "send one body")

    def provider(self, arguments: Any) -> str:
        """The target."""
        return str(arguments["target"])

    def reaches(self, provider: str) -> bool:
        """Any target."""
        return provider in self._targets

    def hold(self, arguments: Any) -> int:
        """Requests cost what the caller says."""
        return 0

    def tokens(self, arguments: Any) -> int:
        """None."""
        return 0

    async def call(self, request: Request) -> Outcome:
        """Sends it once."""
        asked = request.arguments
        target = self._targets[asked["target"]]
        body, kind = _body(asked)
        given = {name.lower(): value for name, value in asked.get("headers", {}).items()}
        if kind and "content-type" not in given:
            given["content-type"] = kind
        given["idempotency-key"] = request.key
        try:
            answer = await self._http.send(
                asked["method"],
                target.base_url + asked["path"],
                headers=[*given.items(), *_secret_headers(target)],
                query=asked.get("query"),
                body=body,
                timeout_ms=self._timeout_ms,
            )
        except NotSent as why:
            failure = Failed("transient", f"{asked['target']} was not reached: {why}", "TARGET_UNREACHABLE")
            return Outcome(State.NOT_SENT, failure=failure, evidence=f"nothing was sent: {why}")
        except AnswerLost as lost:
            return Outcome(State.UNKNOWN, cause=lost.cause, evidence=f"no answer came: {lost.text}")
        except AnswerTooLarge as large:
            if 200 <= large.status < 300 and request.replay_class is ReplayClass.PURE:
                failure = Failed("validation", f"the answer ({large.status}) is larger than may be kept", "ANSWER_TOO_LARGE")
                return Outcome(State.FAILED, failure=failure)
            answer = HttpAnswer(large.status, {}, b"")
        return self._outcome(answer, target, request.replay_class)

    def _outcome(self, answer: HttpAnswer, target: HttpTarget, replay_class: ReplayClass) -> Outcome:
        status = answer.status
        if 200 <= status < 300 or status == DONE_ELSEWHERE:
            return Outcome(State.SUCCEEDED, self._result(answer, target))
        failed = Failed(
            "transient" if status >= 500 or status in (408, 425, 429) else "validation",
            f"the target answered {status}",
            f"HTTP_{status}",
        )
        if replay_class is not ReplayClass.PURE and (status >= 500 or status == UNDECIDED):
            return Outcome(State.UNKNOWN, cause="connection_lost", evidence=f"the target answered {status} and may have acted")
        return Outcome(State.FAILED, self._result(answer, target), failure=failed)

    def _result(self, answer: HttpAnswer, target: HttpTarget) -> bytes:
        found: dict[str, Any] = {
            "status": answer.status,
            "headers": {name: answer.headers[name] for name in target.response_headers if name in answer.headers},
        }
        try:
            found["json"] = parse_json(answer.body)
        except ValueError:
            found["text"] = answer.body.decode(errors="replace")
        return json.dumps(scrub(found, self._secrets)).encode()

    async def lookup(self, request: Request) -> Seen:
        """Asks the target by the key, where it can be asked."""
        asked = request.arguments
        target = self._targets.get(asked["target"])
        if target is None or not target.lookup_path:
            return Seen(Found.NO_LOOKUP, evidence=f"{asked['target']} has no look-up")
        path = target.lookup_path.replace("{key}", quote(request.key, safe=""))
        try:
            answer = await self._http.send(
                "GET",
                target.base_url + path,
                headers=_secret_headers(target),
                timeout_ms=self._timeout_ms,
            )
        except (NotSent, AnswerLost, AnswerTooLarge) as why:
            return Seen(Found.UNREACHABLE, evidence=f"{asked['target']} could not be asked: {_in_words(why, target)}")
        if answer.status == 200:
            return Seen(Found.PRESENT, self._result(answer, target), f"{asked['target']} knows the key")
        if answer.status == 404:
            text = f"{asked['target']} does not know the key"
            return Seen(Found.NOTHING, evidence=text, authoritative=target.lookup_authoritative)
        return Seen(Found.UNREACHABLE, evidence=f"{asked['target']} answered {answer.status} to the look-up")


def _in_words(why: NotSent | AnswerLost | AnswerTooLarge, target: HttpTarget) -> str:
    if isinstance(why, AnswerTooLarge):
        return f"{place_of(target.base_url)} answered {why.status} with more than may be kept"
    return str(why)


def _secret_headers(target: HttpTarget) -> Sequence[tuple[str, str]]:
    return [(name, value.get_secret_value()) for name, value in target.headers.items()]


def _body(asked: Any) -> tuple[bytes | None, str]:
    if "json" in asked:
        return json.dumps(asked["json"], ensure_ascii=False).encode(), "application/json"
    if "text" in asked:
        return str(asked["text"]).encode(), "text/plain; charset=utf-8"
    return None, ""
