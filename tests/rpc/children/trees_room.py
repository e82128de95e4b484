"""Workflows, a room with all of them published, and small helpers for tests of trees."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import (
    Workflow,
    step,
    workflow,
)

from libs.testkit.fixtures import StackDatabase
from tests.rpc.children.room import Room, opened_room

OPEN = pb.RUN_STATE_ACCEPTED


@step(key="act", tools=["http.request", "git.push"])
async def act(run: Any) -> Any:
    return run


@step(key="act", tools=["http.request"], models=["small"])
async def narrow(run: Any) -> Any:
    return run


@step(key="act")
async def plain(run: Any) -> int:
    return 1


FLOWS: list[Workflow] = [
    workflow("parent", steps=[act], independent_children=True),
    workflow("strict", steps=[act], max_children=3, max_child_depth=1),
    workflow("child", steps=[narrow]),
    workflow("plain", steps=[plain]),
    workflow("typed", steps=[plain], input=int, promises=int),
]
PLAIN = {"workflow": "plain"}


@pytest.fixture
async def room(stack_db: StackDatabase) -> AsyncIterator[Room]:
    async with opened_room(stack_db) as made:
        for flow in FLOWS:
            await made.client.publish(flow)
        yield made


async def parent(room: Room, **limits: Any) -> str:
    run = await room.client.launch("parent", None, **({"budget_micros": 1_000} | limits))
    return str(run.run_id)


def bytes_of(run_id: str) -> bytes:
    return bytes.fromhex(run_id.replace("-", ""))


async def returned(room: Room) -> bool:
    return not await room.gateway.fetch("SELECT FROM delegation WHERE returned_ms = 0")
