"""What of an answer is kept: JSON that a Value can carry, without secrets."""

import asyncio
import json
import socket

import pytest

from services.gateway.clients.http import AnswerLost, Http, NotSent, parse_json, place_of, scrub


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"9007199254740992", 2**53),
        (b"9007199254740993", "9007199254740993"),
        (b"-9007199254740993", "-9007199254740993"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"1.5", 1.5),
    ],
)
def test_integers_that_a_double_cannot_hold_become_text(raw: bytes, want: object) -> None:
    assert parse_json(raw) == want


@pytest.mark.parametrize("raw", [b"", b"<html>", b"NaN", b'{"a": Infinity}', b"[" * 30 + b"]" * 30, b"[" * 100_000, b"\xff"])
def test_what_is_no_json_or_too_deep_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(raw)


def test_secrets_are_taken_out_of_keys_and_values_at_any_depth() -> None:
    data = {"a": ["x s3cret y", {"s3cret": "s3cret", "n": 5}], "t": "longs3cret"}
    clean = scrub(data, ["longs3cret", "s3cret"])
    assert "s3cret" not in json.dumps(clean)
    assert clean["a"][1]["n"] == 5
    assert clean["t"] == "[redacted]"


async def test_an_answer_that_comes_drop_by_drop_ends_with_the_call() -> None:
    over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while not over.is_set():
            writer.write(b".")
            try:
                async with asyncio.timeout(0.02):
                    await over.wait()
            except TimeoutError:
                continue
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = Http(connect_timeout_ms=100, response_limit_bytes=2_000_000, max_connections=1)
    async with asyncio.timeout(5):
        with pytest.raises(AnswerLost) as lost:
            await http.send("GET", f"http://127.0.0.1:{port}/", headers=[], timeout_ms=200)
    assert lost.value.cause == "call_timed_out"
    over.set()
    await http.close()
    server.close()
    await server.wait_closed()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.requirement("fx.unknown")
async def test_a_place_that_gives_no_connection_is_named_and_nothing_of_the_request_is() -> None:
    port = free_port()
    http = Http(connect_timeout_ms=5_000, response_limit_bytes=1_000, max_connections=1)
    said = {"headers": [("authorization", "Bearer s3cret")], "query": {"token": "s3cret"}, "timeout_ms": 1_000}
    try:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(NotSent) as refused:
                await http.send("POST", f"http://{host}:{port}/private/s3cret", **said)
            assert str(refused.value) == f"{host}:{port} refuses connections"
        with pytest.raises(NotSent) as unknown:
            await http.send("GET", "http://no-such-host.invalid/", **said)
        assert str(unknown.value).startswith("no-such-host.invalid:80 ")
    finally:
        await http.close()


@pytest.mark.requirement("fx.unknown")
async def test_a_place_that_takes_a_request_and_hangs_up_is_named() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = Http(connect_timeout_ms=5_000, response_limit_bytes=1_000, max_connections=1)
    try:
        with pytest.raises(AnswerLost) as lost:
            await http.send("GET", f"http://127.0.0.1:{port}/s3cret", headers=[], timeout_ms=5_000)
        assert lost.value.text.startswith(f"127.0.0.1:{port}: ")
        assert "s3cret" not in lost.value.text
    finally:
        await http.close()
        server.close()


@pytest.mark.parametrize(
    ("url", "place"),
    [("https://a.example/v1?key=s", "a.example:443"), ("http://[::1]:8000/x", "::1:8000"), ("ssh://git@host/r", "host:22")],
)
def test_of_an_address_host_and_port_are_shown(url: str, place: str) -> None:
    assert place_of(url) == place
