"""A provider of the outside, with a log of its own, and HTTP's transport to it.

Authoritative for what really happened: the log says which requests arrived and which were applied, whatever any answer said.
Three targets: `plain` does what it is told each time, `known` can be asked whether it knows a key (its "no" is final after the
settle window), `keyed` also applies a key only once. A model answers whoever asks. Requests may be lost, arrive late, or be applied without an answer.
"""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.simulation.history import History
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.traps import Traps

SETTLE_S = 8.0
"""The longest that a request may still arrive after it was sent: what the targets' settle windows say."""
BASE = "http:" + "//provider.test"
USED_TOKENS = 700
"""Of each call of the model."""


@dataclass(frozen=True, slots=True)
class Applied:
    """An effect that happened."""

    at_s: float
    target: str
    slot: str
    key: str
    sender: str


@dataclass(slots=True)
class Moods:
    """Shares of requests to which something happens."""

    refused: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    error_before: float = 0.0
    error_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one request of a directed day: when it arrives, and whether it is answered; or it cannot connect."""

    arrives_s: float = 0.01
    answered: bool = True
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Sending:
    """A request that is about to leave."""

    process: Process | None
    method: str
    path: str


@dataclass
class Provider:
    """See the module."""

    loop: VirtualLoop
    chance: random.Random
    history: History
    moods: Moods = field(default_factory=Moods)
    applied: list[Applied] = field(default_factory=list)
    answered: list[Applied] = field(default_factory=list)
    """What the model was asked."""
    keys: dict[str, Applied] = field(default_factory=dict)
    arrivals: int = 0
    unanswered: int = 0
    fates: list[Fate] = field(default_factory=list)
    """Of the next effects, one each."""
    traps: Traps[Sending] = field(init=False)

    def __post_init__(self) -> None:
        self.traps = Traps(self.loop, self.history)

    def arrive(self, request: httpx2.Request, sender: str) -> httpx2.Response:
        """What a request does, and its answer."""
        self.arrivals += 1
        path = request.url.path.strip("/").split("/")
        target, verb = path[0], path[1]
        if target == "model":
            return self._answer(json.loads(request.content)["messages"][0]["content"], sender)
        if verb == "keys":
            found = self.keys.get(path[2])
            return _json(200, {"slot": found.slot}) if found else _json(404, {"known": False})
        if request.method == "GET":
            return _json(200, {"read": "/".join(path[1:])})
        slot, key = "/".join(path[1:]), request.headers["idempotency-key"]
        if target == "keyed" and key in self.keys:
            return _json(200, {"slot": slot, "again": True})
        if self.chance.random() < self.moods.error_before:
            return _json(409, {"error": "not now"})
        done = Applied(self.loop.time(), target, slot, key, sender)
        self.applied.append(done)
        self.keys.setdefault(key, done)
        self.history.note("applied", f"{target} {slot[-40:]}")
        if self.chance.random() < self.moods.error_after:
            return _json(503, {"error": "who knows"})
        return _json(200, {"slot": slot})

    def _answer(self, slot: str, sender: str) -> httpx2.Response:
        """A model's answer: it may be asked again, and costs each time."""
        if self.chance.random() < self.moods.error_before:
            return _json(409, {"error": "not now"})
        self.answered.append(Applied(self.loop.time(), "model", slot, "", sender))
        self.history.note("answered", f"model {slot[-40:]}")
        if self.chance.random() < self.moods.error_after:
            return _json(503, {"error": "who knows"})
        return _json(200, {"said": slot, "usage": {"prompt_tokens": 100, "completion_tokens": USED_TOKENS}})


def _json(status: int, body: Any) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=json.dumps(body).encode())


class Transport(httpx2.AsyncBaseTransport):
    """HTTP from one process to the provider."""

    def __init__(self, provider: Provider, process: Process | None) -> None:
        self._provider = provider
        self._process = process

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One exchange: it ends with an answer, a refusal, or one of the ways of not knowing."""
        provider, moods, chance = self._provider, self._provider.moods, self._provider.chance
        if chance.random() < moods.refused:
            raise httpx2.ConnectError("connection refused", request=request)
        answers: asyncio.Queue[httpx2.Response | None] = asyncio.Queue()
        await asyncio.sleep(chance.uniform(0.001, 0.02))
        await provider.traps.pass_by(Sending(self._process, request.method, request.url.path))
        if provider.fates and request.method == "POST":
            return await self._fated(provider.fates.pop(0), request, answers)
        if chance.random() >= moods.request_lost:
            late = chance.uniform(0.1, SETTLE_S * 0.9) if chance.random() < moods.late else chance.uniform(0.001, 0.05)
            provider.loop.later(late, self._arrive, request, answers)
        else:
            provider.history.note("lost", "request to the provider")
        if chance.random() < moods.answer_lost and chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0.01, 0.3))
            raise httpx2.ReadError("connection reset", request=request)
        read_s = float(request.extensions.get("timeout", {}).get("read") or 5.0)
        try:
            async with asyncio.timeout(read_s):
                answer = await answers.get()
        except TimeoutError:
            raise httpx2.ReadTimeout("no answer", request=request) from None
        if answer is None:
            raise httpx2.RemoteProtocolError("server disconnected without sending a response", request=request)
        return answer

    async def _fated(
        self, fate: Fate, request: httpx2.Request, answers: "asyncio.Queue[httpx2.Response | None]"
    ) -> httpx2.Response:
        if fate.refused:
            raise httpx2.ConnectError("connection refused", request=request)
        self._provider.loop.later(fate.arrives_s, self._arrive, request, answers)
        if fate.answered:
            answer = await answers.get()
            if answer is not None:
                return answer
        await asyncio.sleep(0.1)
        raise httpx2.ReadError("connection reset", request=request)

    def _arrive(self, request: httpx2.Request, answers: "asyncio.Queue[httpx2.Response | None]") -> None:
        provider = self._provider
        answer = provider.arrive(request, str(self._process))
        if provider.chance.random() < provider.moods.answer_lost:
            provider.unanswered += 1
            provider.history.note("lost", "answer of the provider")
            if provider.chance.random() < 0.5:
                provider.loop.later(provider.chance.uniform(0.001, 0.5), answers.put_nowait, None)
            return
        provider.loop.later(provider.chance.uniform(0.001, 0.05), answers.put_nowait, answer)
