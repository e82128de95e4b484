"""A gateway with a git remote, HTTP targets and models."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.rpc.gateway.harness import Repositories, Stack, gateway_stack
from tests.rpc.gateway.provider import Provider, provider_on_loopback

CANARIES = ("canary-git-password-77", "canary-target-header-88", "canary-model-key-99")


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    return Repositories(tmp_path / "git")


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with provider_on_loopback() as made:
        yield made


@pytest.fixture
def call_timeout_ms() -> int:
    """Longest call of a tool; a test of time-outs asks for a short one."""
    return 20_000


@pytest.fixture
def configured(provider: Provider, repositories: Repositories, monkeypatch: pytest.MonkeyPatch, call_timeout_ms: int) -> None:
    """The gateway's environment."""
    remotes = {
        "origin": {"url": str(repositories.remote)},
        "gone": {"url": str(repositories.remote) + ".gone"},
        "https": {"url": f"{provider.url}/repo.git", "username": "bot", "password": CANARIES[0]},
    }
    secret = {"headers": {"authorization": f"Bearer {CANARIES[1]}"}}
    targets = {
        "api": {"base_url": provider.url, "settle_ms": 0, **secret},
        "keyed": {"base_url": provider.url, "lookup_path": "/lookup/{key}", "lookup_authoritative": True, "settle_ms": 60_000},
        "nowhere": {"base_url": "http://127.0.0.1:1"},
    }
    models = {
        "small": {
            "base_url": f"{provider.url}/v1",
            "model": "small-1",
            "provider": "loop",
            "api_key": CANARIES[2],
            "price_micros_per_1k_input": 1000,
            "price_micros_per_1k_output": 2000,
            "default_max_tokens": 100,
        }
    }
    monkeypatch.setenv("RUNWAY_GATEWAY_GIT_REMOTES", json.dumps(remotes))
    monkeypatch.setenv("RUNWAY_GATEWAY_HTTP_TARGETS", json.dumps(targets))
    monkeypatch.setenv("RUNWAY_GATEWAY_MODELS", json.dumps(models))
    monkeypatch.setenv("RUNWAY_GATEWAY_CALL_TIMEOUT_MS", str(call_timeout_ms))
    monkeypatch.setenv("RUNWAY_GATEWAY_ADOPT_INTERVAL_MS", "50")


@pytest.fixture
async def gateway_url(database: Callable[[str], Awaitable[str]]) -> str:
    return await database("gateway")


@pytest.fixture
async def stack(gateway_url: str, configured: None) -> AsyncIterator[Stack]:
    async with gateway_stack(gateway_url) as made:
        yield made
