"""Heartbeats that no leader answers are answered by the rows of their leases: alive, over, or nobody knows; nothing is written."""

from uuid import UUID

import pytest

from libs.kernel.ids import NIL
from services.scheduler.app.beat_attempts import StoredBeat, beat_stored
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.lease import Answer, Beat
from tests.store.scheduler.harness import Field, Leader, success

WHO, STRANGER = Asker("a", ""), Asker("b", "")


@pytest.mark.requirement("sched.authority")
async def test_a_row_says_that_a_lease_lives_or_that_its_end_was_committed(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    fence = granted.lease.fence

    async def said(who: Asker = WHO, attempt: UUID = fence.attempt_id, epoch: int = fence.lease_epoch) -> Answer:
        beat = Beat(ticket.run_id, "s", attempt, epoch)
        (answer,) = await beat_stored(one.ports, [StoredBeat("w1", who, beat)])
        return answer

    before = await field_.row(ticket.run_id)
    assert [await said(), await said(STRANGER), await said(attempt=NIL)] == [Answer.LIVE, Answer.UNKNOWN, Answer.UNKNOWN]
    assert await field_.row(ticket.run_id) == before, "an answer extends nothing"
    assert await one.complete(success(granted)) == [True]
    assert [await said(), await said(STRANGER)] == [Answer.FENCED, Answer.UNKNOWN]


@pytest.mark.requirement("sched.authority")
async def test_under_a_closed_gate_no_row_says_that_a_lease_lives(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    fence = granted.lease.fence
    await field_.hand.execute("UPDATE run_gate SET mode = 2")
    beat = StoredBeat("w1", WHO, Beat(ticket.run_id, "s", fence.attempt_id, fence.lease_epoch))
    assert await beat_stored(one.ports, [beat]) == [Answer.UNKNOWN]
