"""`runway shard drain` as an operator types it, where there is another process to take over: what it answers, and that it happens."""

import json
import os
from typing import Any

import pytest

from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.harness import SECRET, Replica, World
from tests.rpc.scheduler.test_handed_over import led
from tests.rpc.scheduler.test_holds import two
from tests.system.prompt import prompting

WHY = ("--reason", "a restart", "-o", "json")
pytestmark = pytest.mark.requirement("sched.switch")


def environ_of(replica: Replica) -> dict[str, str]:
    addresses = replica.host.addresses
    return {
        **os.environ,
        "RUNWAY_ADDRESS": addresses.public,
        "RUNWAY_CONTROL_ADDRESS": addresses.control,
        "RUNWAY_API_KEY": "rk_a",
        "RUNWAY_SERVICE_SECRET": SECRET,
    }


async def test_shards_are_handed_over_and_back_by_the_command_line(world: World) -> None:
    one, other = await two(world)
    async with prompting(environ_of(one)) as runway:

        async def told(*arguments: str) -> Any:
            return json.loads(await runway(*arguments, *WHY))

        all_of_it, shard = led(one), led(one)[0]
        (planned,) = await told("shard", "drain", str(shard), "--dry-run")
        assert (planned["shard_id"], planned["to_address"], planned["done"]) == (shard, other.host.addresses.control, False)
        (moved,) = await told("shard", "drain", str(shard))
        assert (moved["shard_id"], moved["done"], moved["to_address"]) == (shard, True, other.host.addresses.control)
        await wait_until(lambda: shard in led(other) and shard not in led(one), what="a shard elsewhere")
        rest = await told("shard", "drain", "--member", one.host.addresses.control)
        assert {move["shard_id"] for move in rest} == set(all_of_it) - {shard}
        assert all(move["done"] for move in rest)
        await wait_until(lambda: (led(one), len(led(other))) == ([], 64), what="all of them elsewhere")
        back = await told("shard", "release")
        assert {row["shard_id"] for row in back if row["returned"]} == set(all_of_it)
        await wait_until(lambda: led(one) == all_of_it, 20.0, what="its own shards again")
