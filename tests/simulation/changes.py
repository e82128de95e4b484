"""What people and operators change about runs that are under way: their budget, what they may do, what a bucket holds; and forks of
what ended with less.

Whatever is told may be told again, at once or later: it counts once. What was answered is kept, and held against the rows at the end.
Can go wrong: a repeat that is asked under another name. Each change has a request id of its own.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runway.gateway.v1 import bucket_service_pb2 as bk
from runway.gateway.v1 import bucket_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.client import DECIDED, TERMINAL, Client
from runway_sdk.errors import RunwayError

from libs.rpc.channels import open_channel
from tests.simulation.bounds import MODEL

if TYPE_CHECKING:
    from tests.simulation.workload import Callers, Launched

MOST_RAISES = 60
BUCKET = bk.BucketName(kind=bk.BUCKET_KIND_MODEL, name=MODEL, unit=bk.BUCKET_UNIT_CALLS)


@dataclass
class Raise:
    """A raise that was told of, and whether somebody was told that it counts."""

    run_id: str
    micros: int
    counts: bool = False


@dataclass
class Changes:
    """What was changed so far."""

    callers: "Callers"
    raises: dict[str, Raise] = field(default_factory=dict)
    """By request id."""
    revoked: int = 0
    forked: int = 0
    on_revoked: Any = None
    """Told of a run and what was taken from it, once that is enforced in it and in all below it."""

    async def put_bucket(self, address: str, secret: str, capacity: int, per_minute: int) -> None:
        """An operator says what the model may be asked."""
        request = bk.PutBucketRequest(
            name=BUCKET, capacity=capacity, per_minute=per_minute, actor="operator", reason="the provider's limit"
        )
        async with open_channel(address, secret=secret) as channel:
            await bucket_service_pb2_grpc.BucketServiceStub(channel).PutBucket(request)

    # -- money

    async def feed(self, run: "Launched", seed: float) -> None:
        """Raises what waits for money in the tree of a run, until it has ended."""
        chance = random.Random(seed)
        async with Client(self.callers.target) as client:
            for _ in range(MOST_RAISES):
                await asyncio.sleep(chance.uniform(1.0, 6.0))
                if run.settled or not run.run_id:
                    continue
                nodes = await self.callers.patiently(lambda: client.trees.tree(run.run_id))
                for node in nodes:
                    if node.state in TERMINAL or node.state in DECIDED:
                        continue
                    seen = await self.callers.patiently(lambda node=node: client.get(node.run_id))  # type: ignore[misc]
                    if "budget" in seen.wait_reasons or chance.random() < 0.05:
                        micros, times = chance.choice((500, 3_000)), chance.choice((1, 2, 3))
                        if not await self.raise_budget(client, node.run_id, micros, times) and node.depth:
                            await self.raise_budget(client, run.run_id, 2 * micros, times)  # it comes out of its parent's

    async def raise_budget(self, client: Client, run_id: str, micros: int, times: int) -> bool:
        """One raise, told of so often; whether it counts."""
        number = len(self.raises)
        name, asked = f"raise-{number}", Raise(run_id, micros + number)  # so that each is known by its amount
        self.raises[name] = asked

        async def once(after_s: float) -> None:
            await asyncio.sleep(after_s)
            try:
                await self.callers.patiently(
                    lambda: client.trees.raise_budget(run_id, asked.micros, reason="it needs more", request_id=name)
                )
            except RunwayError as refused:
                if refused.reason not in ("RUN_CLOSED", "BUDGET_EXHAUSTED"):
                    raise
            else:
                asked.counts = True
                self.callers.history.note("caller", f"{name} counts")

        await asyncio.gather(*(once(0.4 * (time // 2)) for time in range(times)))
        return asked.counts

    # -- what a run may do

    async def revoke(self, client: Client, run: "Launched", capability: str, times: int) -> None:
        """Takes something from a run and all below it, and asks how far that is until it is everywhere."""
        name = f"revoke-{self.revoked}"
        self.revoked += 1

        async def once() -> pb.RevokeCapabilitiesResponse | None:
            try:
                answer: pb.RevokeCapabilitiesResponse = await self.callers.patiently(
                    lambda: client.trees.revoke(run.run_id, [capability], "it leaked", request_id=name)
                )
            except RunwayError as refused:
                if refused.reason != "RUN_CLOSED":
                    raise
                return None
            return answer

        for _ in range(20):
            for answer in await asyncio.gather(*(once() for _ in range(times))):
                if answer is not None and await self._taken(run, capability, answer):
                    return
            if run.settled:
                return
            await asyncio.sleep(1.0)

    async def _taken(self, run: "Launched", capability: str, answer: pb.RevokeCapabilitiesResponse) -> bool:
        """Whether it is said to be everywhere; then it is."""
        self.callers.history.note("caller", f"{run.request_id} revoke {pb.RevocationPhase.Name(answer.phase)}")
        if answer.phase != pb.REVOCATION_PHASE_ENFORCED:
            return False
        missing = [receipt.point for receipt in answer.receipts if not receipt.enforced_epoch]
        if missing or answer.below.enforced != answer.below.total:
            self.callers.violations.append(
                f"{run.request_id} has lost {capability} everywhere, and {missing} and "
                f"{answer.below.total - answer.below.enforced} below it have not confirmed it"
            )
        if self.on_revoked is not None:
            await self.on_revoked(run.run_id, capability)
        return True
