"""HTTP to the outside: one attempt, no redirects, bounded answers, and what each way of failing means for an effect.

Can go wrong: taking a lost answer for a failure. Only an error from before the connection stood says that nothing was sent.
An answer that comes drop by drop: the client's own timeouts begin anew with each, so the whole call has an end as well.
Connections are not kept: a stale one would look like a lost answer.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2

from libs.kernel.values import value

_BEFORE = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol, httpx2.ProxyError)
_LARGEST = 2**53
_DEEPEST = 24


class NotSent(Exception):
    """Nothing left this process."""


class AnswerLost(Exception):
    """Bytes may have left, and no whole answer came. `cause` is for the event."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause
        self.text = text


class AnswerTooLarge(Exception):
    """An answer came and is larger than may be kept; its status is known."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@value(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Http:
    """A client without a memory: no cookies, no kept connections, no proxies or credentials from the environment."""

    def __init__(self, *, connect_timeout_ms: int, response_limit_bytes: int, max_connections: int) -> None:
        self._limit = response_limit_bytes
        self._connect_s = connect_timeout_ms / 1000
        self._client = httpx2.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Closes connections under way."""
        await self._client.aclose()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Sequence[tuple[str, str]],
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_ms: int,
    ) -> HttpAnswer:
        """One request, once; it is over, one way or another, within both timeouts together."""
        timeout = httpx2.Timeout(timeout_ms / 1000, connect=self._connect_s, pool=self._connect_s)
        try:
            request = self._client.build_request(
                method, url, headers=list(headers), params=dict(query or {}) or None, content=body, timeout=timeout
            )
        except (httpx2.InvalidURL, ValueError, UnicodeError):
            raise NotSent("the request cannot be built") from None
        place = place_of(url)
        try:
            async with asyncio.timeout(self._connect_s + timeout_ms / 1000):
                return await self._exchange(request, place)
        except TimeoutError:
            raise AnswerLost("call_timed_out", f"{place}: the whole call took too long") from None

    async def _exchange(self, request: httpx2.Request, place: str) -> HttpAnswer:
        try:
            response = await self._client.send(request, stream=True)
        except _BEFORE as error:
            raise NotSent(f"{place} {_why(error)}") from None
        except httpx2.TimeoutException as error:
            raise AnswerLost("call_timed_out", f"{place}: {type(error).__name__}") from None
        except httpx2.TransportError as error:
            raise AnswerLost("connection_lost", f"{place}: {type(error).__name__}") from None
        try:
            return HttpAnswer(
                response.status_code, {k.lower(): v for k, v in response.headers.items()}, await self._body(response)
            )
        except httpx2.TimeoutException as error:
            raise AnswerLost("call_timed_out", f"{place}: {type(error).__name__}") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise AnswerLost("connection_lost", f"{place}: {type(error).__name__}") from None
        finally:
            await response.aclose()

    async def _body(self, response: httpx2.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self._limit:
                raise AnswerTooLarge(response.status_code)
            parts.append(part)
        return b"".join(parts)


def place_of(url: str) -> str:
    """Host and port: what of an address may be shown to anybody."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "ssh": 22}.get(parts.scheme, 80)
    return f"{parts.hostname or 'the address'}:{port}"


def _why(error: BaseException) -> str:
    """What a place did that gave no connection."""
    found: list[BaseException] = [error]
    for one in found:  # grows: causes, and those of each address that was tried
        found += [more for more in (one.__cause__ or one.__context__,) if more is not None and more not in found]
        found += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    if any(isinstance(one, ConnectionRefusedError) for one in found):
        return "refuses connections"
    if any(isinstance(one, socket.gaierror) for one in found):
        return "is a name that nobody here knows"
    if any(isinstance(one, ssl.SSLError) for one in found):
        return "does not prove with TLS who it is"
    if isinstance(error, httpx2.PoolTimeout):
        return "was not tried: too many calls are under way"
    if isinstance(error, httpx2.ConnectTimeout):
        return "takes no connection in time"
    return f"gives no connection ({type(error).__name__})"


def parse_json(body: bytes) -> Any:
    """JSON as a Value can carry it: integers above 2^53 become text. ValueError for anything else."""
    try:
        data = json.loads(body, parse_int=_integer, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _depth(data) > _DEEPEST:
        raise ValueError("nested too deeply")
    return data


def _integer(text: str) -> int | str:
    return int(text) if len(text) < 20 and abs(int(text)) <= _LARGEST else text


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _depth(data: Any) -> int:
    """Nesting of containers."""
    deepest = 0
    pending: list[tuple[Any, int]] = [(data, 0)]
    while pending:
        item, depth = pending.pop()
        deepest = max(deepest, depth)
        if deepest > _DEEPEST:
            return deepest
        if isinstance(item, dict):
            pending += [(child, depth + 1) for child in item.values()]
        elif isinstance(item, list):
            pending += [(child, depth + 1) for child in item]
    return deepest


def scrub(data: Any, secrets: Sequence[str]) -> Any:
    """The data without these secrets: a provider may echo what it was sent."""
    if isinstance(data, str):
        for secret in secrets:
            if secret in data:
                data = data.replace(secret, "[redacted]")
        return data
    if isinstance(data, dict):
        return {scrub(key, secrets): scrub(value, secrets) for key, value in data.items()}
    if isinstance(data, list):
        return [scrub(item, secrets) for item in data]
    return data
