"""Models behind the OpenAI-compatible interface: one POST, never repeated by the client, usage turned into money.

A model call is pure: a lost answer may be repeated as a new cost, and is charged what was held for it. Can go wrong: a
provider that reports no usage. Then what was held is charged.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from libs.kernel.refusal import invalid_field
from services.gateway.clients.http import AnswerLost, AnswerTooLarge, Http, HttpAnswer, NotSent, parse_json, scrub
from services.gateway.domain.aborting import Abort
from services.gateway.domain.effect import Failed, Outcome, ReplayClass, State
from services.gateway.domain.lookup import Found, Seen
from services.gateway.domain.outside import ModelRoute
from services.gateway.ports import Request

BYTES_PER_TOKEN = 3
"""Fewer than any usual text has, so that what is held suffices."""
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 10_000_000},
        "max_completion_tokens": {"type": "integer", "minimum": 1, "maximum": 10_000_000},
        "n": {"type": "integer", "minimum": 1, "maximum": 16},
    },
    "required": ["messages"],
    "not": {"anyOf": [{"required": ["model"]}, {"required": ["stream"]}]},
}


class Model:
    """One configured model; implements `ports.Tool`."""

    kind = "model"
    replay_class = ReplayClass.PURE
    abort = Abort.CLOSE
    schema = SCHEMA
    settle_ms = 0

    def __init__(self, name: str, route: ModelRoute, http: Http, *, timeout_ms: int, secrets: Sequence[str]) -> None:
        self.name = f"model:{name}"
        self._route = route
        self._http = http
        self._timeout_ms = timeout_ms
        self._secrets = secrets

    @property
    def description(self) -> str:
        """What it is."""
        return f"{self._route.model} at {self.provider(None)}, OpenAI-compatible chat completions."

    def classify(self, arguments: Any, asked: ReplayClass | None) -> ReplayClass:
        """Always pure."""
        if asked not in (None, self.replay_class):
            raise invalid_field("replay_class", "cannot be chosen for a model, which is pure", "leave it out")
        return self.replay_class

    def check(self, arguments: Any) -> None:
        """The schema says all."""

    def provider(self, arguments: Any) -> str:
        """The provider's name."""
        return self._route.provider or (urlsplit(self._route.base_url).hostname or "")

    @property
    def provider_always(self) -> str:
        """A model has one provider."""
        return self.provider(None)

    def reaches(self, provider: str) -> bool:
        """Its own."""
        return provider == self.provider_always

    def hold(self, arguments: Any) -> int:
        """What the call may cost at most, as far as its size tells."""
        return self._price(*self._most(arguments))

    def tokens(self, arguments: Any) -> int:
        """What the call may use at most, as far as its size tells."""
        return sum(self._most(arguments))

    def _most(self, arguments: Any) -> tuple[int, int]:
        """Tokens in and out."""
        out = arguments.get("max_completion_tokens") or arguments.get("max_tokens") or self._route.default_max_tokens
        text = len(json.dumps(arguments).encode())
        return text // BYTES_PER_TOKEN, int(out) * int(arguments.get("n", 1))

    def _price(self, tokens_in: int, tokens_out: int) -> int:
        route = self._route
        milli = tokens_in * route.price_micros_per_1k_input + tokens_out * route.price_micros_per_1k_output
        return -(-milli // 1000)

    async def call(self, request: Request) -> Outcome:
        """Asks the model once."""
        key = self._route.api_key.get_secret_value()
        headers = [("content-type", "application/json"), ("idempotency-key", request.key)]
        if key:
            headers.append(("authorization", f"Bearer {key}"))
        body = json.dumps({**request.arguments, "model": self._route.model}, ensure_ascii=False).encode()
        url = f"{self._route.base_url.rstrip('/')}/chat/completions"
        try:
            answer = await self._http.send("POST", url, headers=headers, body=body, timeout_ms=self._timeout_ms)
        except NotSent as why:
            text = f"the model's provider {self.provider_always} was not reached: {why}"
            failure = Failed("transient", text, "PROVIDER_UNREACHABLE")
            return Outcome(State.NOT_SENT, failure=failure, evidence=f"nothing was sent: {why}")
        except AnswerLost as lost:
            return Outcome(State.UNKNOWN, cause=lost.cause, evidence=f"no answer came: {lost.text}")
        except AnswerTooLarge:
            return Outcome(State.UNKNOWN, cause="connection_lost", evidence="the answer was larger than may be kept")
        return self._outcome(answer)

    def _outcome(self, answer: HttpAnswer) -> Outcome:
        status = answer.status
        if status != 200:
            transient = status >= 500 or status in (408, 409, 425, 429)
            said = scrub(answer.body[:300].decode(errors="replace"), self._secrets).replace("\0", "")
            failure = Failed(
                "transient" if transient else "validation", f"the provider answered {status}: {said}", f"HTTP_{status}"
            )
            return Outcome(State.FAILED, failure=failure)
        try:
            found = scrub(parse_json(answer.body), self._secrets)
        except ValueError:
            return Outcome(State.UNKNOWN, cause="connection_lost", evidence="the provider's answer is no JSON")
        usage = found.get("usage") if isinstance(found, dict) else None
        if not isinstance(usage, dict):
            return Outcome(State.SUCCEEDED, json.dumps(found).encode(), evidence="the provider reported no usage")
        tokens_in, tokens_out = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        cost = self._price(tokens_in, tokens_out)
        return Outcome(State.SUCCEEDED, json.dumps(found).encode(), cost=cost, tokens=tokens_in + tokens_out)

    async def lookup(self, request: Request) -> Seen:
        """Providers do not tell of past calls; a pure one needs no look-up."""
        return Seen(Found.NO_LOOKUP, evidence="a model call cannot be looked up")


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name, 0)
    return value if isinstance(value, int) and 0 <= value < 10**12 else 0
