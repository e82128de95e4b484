"""A cancel against sixteen callers of one run, through the batchers of two processes: nothing commits behind it."""

import asyncio
import time
from uuid import uuid4

import pytest
from runway.internal.fence.v1 import fence_pb2

from libs.fence.raising import FencePoint
from libs.fence.values import GateValue, Verdict
from libs.fence.wire import gate_to
from libs.kernel.epochs import Mode
from libs.pg import Database
from libs.rpc.batcher import Batcher
from libs.testkit.waiting import wait_until
from services.gateway.clients.notices import EventNotices
from services.gateway.ports import Admitted, Intent
from services.gateway.store.standing import GatewayStanding
from tests.store.gateway.harness import Ledger, item, run_id

ROUNDS = 20


@pytest.mark.requirement("gw.fence")
async def test_a_cancel_is_enforced_at_once_while_sixteen_callers_commit(ledger: Ledger) -> None:
    leaf = Database(ledger.url, name="gateway-leaf", size=2)
    await leaf.open()
    point = FencePoint(leaf, GatewayStanding(EventNotices(ledger.ids), ledger.ids, ledger.clock))
    batchers: list[Batcher[Intent, Admitted]] = [
        Batcher(lambda items: ledger.admit(items), name=f"process{n}", key=lambda one: one.asked.run_id) for n in range(2)
    ]
    waited: list[float] = []

    async def call(run: int, number: int, ended: asyncio.Event, behind: list[int]) -> None:
        while True:
            began_after = ended.is_set()
            verdict = (await batchers[number % 2].submit(item(run, slot=str(uuid4()), hold=0))).verdict
            if verdict is not Verdict.OK:
                assert verdict is Verdict.CLOSED
                return
            behind.append(int(began_after))

    try:
        for run in range(ROUNDS):
            await ledger.gate(run)
            ended = asyncio.Event()
            behind: list[int] = []
            callers = [asyncio.create_task(call(run, number, ended, behind)) for number in range(16)]
            await wait_until(lambda behind=behind: len(behind) >= 32)
            gate = gate_to(GateValue(run_id(run), 2, Mode.CLOSED, "cancelled"))
            began = time.perf_counter()
            answer = (await point.raise_fences(fence_pb2.RaiseFencesRequest(service="gateway", gates=[gate]))).gates[0]
            waited.append(time.perf_counter() - began)
            stored = await ledger.hand.fetchval("SELECT count(*) FROM effect WHERE run_id = $1", run_id(run))
            ended.set()
            assert answer.committed
            assert len(answer.unresolved) == stored
            await asyncio.gather(*callers)
            assert sum(behind) == 0
            assert await ledger.hand.fetchval("SELECT count(*) FROM effect WHERE run_id = $1", run_id(run)) == stored
        assert sorted(waited)[ROUNDS // 2] < 0.1
    finally:
        await leaf.close()
