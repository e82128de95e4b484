"""A gateway with a git remote."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.rpc.gateway.harness import Repositories, Stack, gateway_stack


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    return Repositories(tmp_path / "git")


@pytest.fixture
async def stack(
    database: Callable[[str], Awaitable[str]], repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stack]:
    remotes = {"origin": {"url": str(repositories.remote)}, "gone": {"url": str(repositories.remote) + ".gone"}}
    monkeypatch.setenv("RUNWAY_GATEWAY_GIT_REMOTES", json.dumps(remotes))
    async with gateway_stack(await database("gateway")) as made:
        yield made
