"""Launch while its synchronous standby does not answer: a wait that was cancelled confirms nothing, to nobody, by any way."""

import asyncio
import contextlib
from pathlib import Path

import asyncpg
import pytest
from runway_sdk import Client, Target, Unavailable, step, workflow

from libs.embedded import EmbeddedPostgres
from libs.testkit.databases import TemplatedDatabases
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until

CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@step
def only() -> int:
    return 1


async def test_a_repeated_launch_is_not_confirmed_by_what_no_standby_has(short_folder: Path) -> None:
    """The row of a cancelled wait is there to be read, by whoever repeats the request, at this replica and at the other."""
    async with EmbeddedPostgres(short_folder / "pg", settings={"fsync": "off"}) as server:
        databases = TemplatedDatabases(server.url(), short_folder)
        _, urls = await databases.create({"launch": "services.launch.migrations"})
        peers = [Peer(name) for name in ("readiness", "scheduler")]
        async with running_host(["launch"], urls, peers=peers) as one, running_host(["launch"], urls, peers=peers) as other:
            key = await make_key(one)
            async with (
                Client(Target(one.addresses.public, key)) as here,
                Client(Target(other.addresses.public, key)) as there,
            ):
                await here.publish(workflow("w", steps=[only]))
                await there.launch("w")
                admin = await asyncpg.connect(server.url())
                rows = await asyncpg.connect(urls["launch"])
                server.configure("synchronous_standby_names", "ghost")
                query = "SELECT current_setting('synchronous_standby_names') = 'ghost'"
                await wait_until(lambda: admin.fetchval(query))
                before = await rows.fetchval("SELECT count(*) FROM launch_receipt")

                async def cancel_waits() -> None:
                    while True:
                        await admin.execute(CANCEL)
                        await asyncio.sleep(0.02)

                canceller = asyncio.create_task(cancel_waits())
                for client in (there, here, there):
                    with pytest.raises((Unavailable, TimeoutError)):
                        async with asyncio.timeout(1.5):
                            await client.launch("w", request_id="a launch that only the primary has")
                assert await rows.fetchval("SELECT count(*) FROM launch_receipt") == before + 1, "it is there to be read"
                server.configure("synchronous_standby_names", "")
                first = await here.launch("w", request_id="a launch that only the primary has")
                assert (await there.get(first.run_id)).run_id == first.run_id
                canceller.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await canceller
                await rows.close()
                await admin.close()
