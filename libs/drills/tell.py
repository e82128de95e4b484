"""`python -m libs.drills.tell FOLDER [RUN:EVENT:PAYLOAD …]`: a process that tells an installation of events, each twice, in an
order of its own, until each was taken; RUN:answer:N answers a question of that run instead.

Authoritative for nothing. Can go wrong: an installation that is away. It asks again, under the same event ids.
"""

import asyncio
import random
import sys
from pathlib import Path

from runway_sdk import Client
from runway_sdk.connection import read_profile
from runway_sdk.errors import RunwayError

ASK_AGAIN_S = 0.3
FINAL = frozenset({"RUN_CLOSED", "INPUT_CLOSED", "REQUEST_ID_REUSED"})
QUESTION = "answer"


async def tell(folder: Path, asked: list[str]) -> None:
    """All of it."""
    left = asked * 2
    random.SystemRandom().shuffle(left)
    async with Client(read_profile(folder / "profile.json")) as client:
        await asyncio.gather(*(_one(client, *item.split(":")) for item in left))


async def _one(client: Client, run_id: str, event: str, said: str) -> None:
    while True:
        try:
            if event == QUESTION:
                await client.answer(run_id, int(said))
            else:
                await client.signal("news", int(said), run_id=run_id, event_id=f"{run_id}-{event}")
        except RunwayError as refused:
            if refused.reason in FINAL:
                return
            await asyncio.sleep(ASK_AGAIN_S)  # away, or nothing is asked yet
        else:
            return


if __name__ == "__main__":
    asyncio.run(tell(Path(sys.argv[1]), sys.argv[2:]))
