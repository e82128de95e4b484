"""Every commit is of a leader whose epoch is in the shard's row: races of leaders, deposed ones, incarnations of the database."""

from pathlib import Path

import asyncpg
import pytest

import services.scheduler.store as store_package
from libs.kernel.epochs import Mode, StepFence
from libs.kernel.ids import NIL
from libs.kernel.refusal import Reason, Refusal
from libs.pg import Queries
from libs.testkit.databases import prepare_all
from services.scheduler.app.end_attempts import end_attempts
from services.scheduler.app.renew_leases import Renewed, renew_leases
from services.scheduler.domain.ending import LOST, Ending
from services.scheduler.domain.ticket import End
from tests.store.scheduler.harness import EPOCH, Field, Leader, both, ended_by, failure, holder, success


async def test_every_statement_fits_the_schema(field_: Field) -> None:
    folder = Path(store_package.__path__[0]) / "sql"
    await prepare_all(field_.url, [Queries.load(path) for path in sorted(folder.glob("*.sql"))])


@pytest.mark.requirement("sched.claim")
async def test_two_leaders_race_for_the_same_tickets_and_each_is_leased_once(field_: Field, one: Leader) -> None:
    other = await field_.leader("other")
    revision = 10
    former, latter = one, other
    for _ in range(25):
        tickets = [field_.ticket() for _ in range(4)]
        assert await former.enqueue(*tickets) == [""] * 4
        revision += 1
        claims = [former.claim(slots=2), former.claim(slots=2)]
        results = await both(*claims, latter.lead(revision), latter.claim(slots=4))
        second = await latter.claim(slots=4)
        granted = [g for found in (*results[:2], results[3], second) if isinstance(found, list) for g in found]
        runs = [g.lease.run_id for g in granted]
        assert len(set(runs)) == len(runs) == 4
        for g in granted:
            row = await field_.row(g.lease.run_id)
            assert (row["state"], row["lease_epoch"], row["attempt_id"]) == (2, 1, g.lease.fence.attempt_id)
        former, latter = latter, former
    firsts = await field_.told("first_lease")
    assert len({fact.run_id for fact in firsts}) == len(firsts) == 100


@pytest.mark.requirement("sched.authority")
async def test_a_deposed_leader_commits_nothing(field_: Field, one: Leader) -> None:
    held, silent, waits = field_.ticket(), field_.ticket(), field_.ticket()
    await one.enqueue(held, silent)
    (first,) = await one.claim()
    (second,) = await one.claim()
    await one.enqueue(waits)
    new = await field_.leader("new")
    assert len(await new.lead(6)) == 64
    before = await field_.hand.fetch("SELECT * FROM ticket ORDER BY run_id")
    epochs, memory = dict(one.book.epochs), dict(one.book.leases)

    def as_if_leading() -> None:
        one.book.epochs.update(epochs)
        one.book.leases.update(memory)

    (no,) = await one.complete(success(first))
    assert isinstance(no, Refusal)
    assert no.reason is Reason.NO_LEADER
    as_if_leading()
    assert (await one.complete(failure(first)))[0].reason is Reason.NO_LEADER
    as_if_leading()
    assert (
        await end_attempts(one.ports, one.book, [Ending(second.lease.run_id, "s", second.lease.fence, End.LOST, LOST)]) == set()
    )
    as_if_leading()
    assert await one.enqueue(field_.ticket()) == ["no leader here"]
    as_if_leading()
    assert await one.claim() == []
    assert await field_.hand.fetch("SELECT * FROM ticket ORDER BY run_id") == before
    assert one.deposed >= 4
    assert await field_.told("attempt_finished") == []
    assert [await new.complete(success(g)) for g in (first, second)] == [[True], [True]]


@pytest.mark.requirement("sched.authority")
async def test_leadership_needs_a_greater_epoch_and_only_a_lost_etcd_raises_the_generation(field_: Field, one: Leader) -> None:
    other = await field_.leader("other")
    assert await other.lead(5) == set()
    assert await other.lead(4, reset=True, newest=100) == set()  # etcd is ahead: another leader was faster, nothing was lost
    assert len(await other.lead(4, reset=True, newest=4)) == 64  # etcd has never heard of revision 5
    assert set(other.book.epochs.values()) == {(1 << 40) + 4}
    assert await one.lead(3) == set()  # the generation is in the row: whoever comes is compared within it
    assert await field_.hand.fetchval("SELECT count(*) FROM shard_reset WHERE actor = 'other'") == 64


@pytest.mark.requirement("sched.claim")
async def test_a_grant_before_the_raise_is_acknowledged_is_refused_by_the_row(field_: Field, one: Leader) -> None:
    ticket = field_.ticket(points=3)
    await one.enqueue(ticket)
    (first,) = await one.claim()
    assert await one.complete(failure(first)) == [True]
    fence = ended_by(first, one)
    assert await one.enqueue(field_.ticket(ticket.run_id, sequence=2)) == ["the step is still held or ending"]
    await one.acknowledge(ticket.run_id, fence, 1)
    assert await field_.told("attempt_finished") == []
    await one.acknowledge(ticket.run_id, fence, 1)  # a repeat of the same point is not the other point
    assert await field_.told("attempt_finished") == []
    await one.acknowledge(ticket.run_id, fence, 2)
    assert [fact.ticket_sequence for fact in await field_.told("attempt_finished")] == [1]
    await one.enqueue(field_.ticket(ticket.run_id, sequence=2, points=3))
    (second,) = await one.claim()
    assert await one.complete(success(second)) == [True]
    await one.enqueue(field_.ticket(ticket.run_id, sequence=3, points=3))
    ready = one.book.ready.get(ticket.key)
    assert ready is None  # not acknowledged: memory does not offer it …
    row = (await one.store.read_rows([ticket.key]))[ticket.key]
    one.book.ready.add(one.book.ready_of(row))
    assert await one.claim() == []  # … and the row refuses it where memory is wrong
    await one.acknowledge(ticket.run_id, StepFence(one.book.epochs[ticket.shard], 2, NIL), 3)  # of an earlier end
    assert await one.claim() == []
    await one.acknowledge(ticket.run_id, ended_by(second, one), 3)
    (third,) = await one.claim()
    assert third.lease.fence.lease_epoch == 5


@pytest.mark.requirement("attempt.fenced")
async def test_ends_of_one_lease_race_and_one_stands(field_: Field, one: Leader) -> None:
    for _ in range(25):
        ticket = field_.ticket()
        await one.enqueue(ticket)
        (granted,) = await one.claim()
        lost = Ending(ticket.run_id, "s", granted.lease.fence, End.LOST, LOST)
        found = await both(
            one.complete(success(granted)), one.complete(failure(granted)), end_attempts(one.ports, one.book, [lost])
        )
        wins = [found[0] == [True], found[1] == [True], found[2] == {ticket.key}]
        assert wins.count(True) == 1, found
        history = await field_.hand.fetch("SELECT end_kind FROM attempt WHERE run_id = $1", ticket.run_id)
        assert [row["end_kind"] for row in history] == [[1, 2, 6][wins.index(True)]]
    assert len(await field_.told("attempt_finished")) == 25


@pytest.mark.requirement("attempt.fenced")
async def test_a_raise_and_a_success_race_and_never_both_stand(field_: Field, one: Leader) -> None:
    landed = 0
    for _ in range(25):
        ticket = field_.ticket()
        await one.enqueue(ticket)
        (granted,) = await one.claim()
        outcome, answer = await both(one.complete(success(granted)), one.raise_gate(ticket.run_id, EPOCH + 1, Mode.CLOSED))
        if outcome == [True]:
            landed += 1
        else:
            assert outcome[0].reason is Reason.RUN_CANCELLED
            assert (answer.live_leases, answer.quiesced) == (1, False)
        assert (await one.complete(success(granted, b"other")))[0].reason in (Reason.RUN_CANCELLED, Reason.LEASE_FENCED)
        row = await field_.row(ticket.run_id)
        assert (row["state"] == 4) == (outcome == [True])
    assert 0 <= landed <= 25


@pytest.mark.requirement("sched.claim")
async def test_another_incarnation_ends_live_leases_and_raises_every_old_fence(field_: Field, one: Leader) -> None:
    live, ready, ending, plain = field_.ticket(points=1), field_.ticket(points=1), field_.ticket(points=1), field_.ticket()
    for ticket in (live, ending):
        await one.enqueue(ticket)
        (granted,) = await one.claim()
        if ticket is ending:
            assert await one.complete(failure(granted)) == [True]
        else:
            kept = granted
    await one.enqueue(ready, plain)
    await field_.hand.execute("DELETE FROM outbox")
    new = await field_.leader("new", counter=1)
    await new.lead(6)
    raised = {step.run_id: step for step in await field_.told("raise_fences")}
    assert {run_id: step.lease_epoch for run_id, step in raised.items()} == {
        live.run_id.bytes: 2,
        ready.run_id.bytes: 2,  # whatever is noted of it: the former incarnation may have granted it
        ending.run_id.bytes: 4,
    }
    assert {step.authority_epoch for step in raised.values()} == {6}
    assert (await new.complete(success(kept)))[0].reason is Reason.LEASE_FENCED
    (found,) = await new.claim(slots=9)
    assert found.lease.run_id == plain.run_id  # touches no point
    await new.acknowledge(ready.run_id, StepFence(6, 2, NIL))
    await new.acknowledge(ending.run_id, StepFence(5, 2, NIL))  # of the former incarnation
    assert await field_.told("attempt_finished") == []
    await new.acknowledge(ending.run_id, StepFence(6, 4, NIL))
    await new.acknowledge(live.run_id, StepFence(6, 2, NIL), 1, push=3)
    ends = {fact.run_id: fact for fact in await field_.told("attempt_finished")}
    assert ends[ending.run_id.bytes].end == End.FAILED
    assert ends[ending.run_id.bytes].lease_epoch == 1
    assert ends[live.run_id.bytes].end == End.UNCERTAIN
    (again,) = await new.claim(slots=9)
    assert (again.lease.run_id, again.lease.fence.lease_epoch) == (ready.run_id, 3)
    fresh = field_.ticket(points=1)
    await new.enqueue(fresh)  # its first grant may have been lost with the former incarnation
    assert await new.claim() == []
    await new.acknowledge(fresh.run_id, StepFence(6, 2, NIL))
    assert len(await new.claim()) == 1
    assert (await one.complete(success(kept)))[0].reason is Reason.NO_LEADER


async def test_memory_of_another_incarnation_commits_nothing(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    one.book.incarnation += 1
    with pytest.raises(Refusal) as refused:
        await one.complete(success(granted))
    assert refused.value.reason is Reason.NO_LEADER
    assert (await field_.row(ticket.run_id))["state"] == 2


async def test_a_gate_of_an_earlier_incarnation_admits_nothing_until_it_is_read(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    waits = field_.ticket()
    await one.enqueue(waits)
    await field_.hand.execute("UPDATE run_gate SET stamp = 1")
    field_.launch.reads.clear()
    (found,) = await one.claim()
    assert (found.lease.run_id, field_.launch.reads) == (waits.run_id, [waits.run_id])
    assert await one.complete(success(granted)) == [True]
    assert field_.launch.reads == [waits.run_id, ticket.run_id]


async def test_a_stopped_tenant_is_granted_nothing_until_it_is_open_again(field_: Field, one: Leader) -> None:
    stopped, other = field_.ticket(), field_.ticket(tenant="b")
    await one.enqueue(stopped, other)
    await field_.hand.execute("INSERT INTO scope_fence VALUES ('tenant', 'a', 1, 1)")
    assert await one.claim() == []
    assert stopped.key in one.book.parked
    assert len(await one.claim(tenant="b")) == 1
    await field_.hand.execute("UPDATE scope_fence SET mode = 0, epoch = 2")
    one.book.unpark(one.book.parked)
    (granted,) = await one.claim()
    assert granted.lease.run_id == stopped.run_id


async def test_a_renewal_names_the_present_epoch_or_says_why_not(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    await one.raise_gate(ticket.run_id, EPOCH + 4, Mode.OPEN)
    (renewed,) = await renew_leases(one.ports, one.book, [(holder(granted), EPOCH + 4)])
    assert isinstance(renewed, Renewed)
    assert renewed.epoch == EPOCH + 4
    assert (await one.complete(success(granted, epoch=EPOCH)))[0].reason is Reason.EPOCH_STALE
    await one.raise_gate(ticket.run_id, EPOCH + 4, Mode.DRAINING)
    (paused,) = await renew_leases(one.ports, one.book, [(holder(granted), 0)])
    assert isinstance(paused, Refusal)
    assert paused.reason is Reason.RUN_PAUSED


@pytest.mark.requirement("attempt.fenced")
async def test_the_fence_of_a_step_never_falls(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    await one.claim()
    for change in ("lease_epoch = 0", "authority_epoch = 1", "ticket_sequence = 0"):
        with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="would fall"):
            await field_.hand.execute(f"UPDATE ticket SET {change}")


@pytest.mark.requirement("attempt.fenced")
async def test_an_end_that_is_not_acknowledged_is_not_closed_by_the_row_either(field_: Field, one: Leader) -> None:
    ticket = field_.ticket(points=3)
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    assert await one.complete(failure(granted)) == [True]
    for points in (1, 2):
        row = (await one.store.read_rows([ticket.key]))[ticket.key]
        async with one.store.facts([ticket.run_id]) as tx:
            assert await tx.finish([(row, End.FAILED)]) == set()
        await one.acknowledge(ticket.run_id, ended_by(granted, one), points)
    assert len(await field_.told("attempt_finished")) == 1


async def test_many_reports_of_one_batch_are_judged_one_a_step(field_: Field, one: Leader) -> None:
    tickets = [field_.ticket() for _ in range(5)]
    await one.enqueue(*tickets)
    granted = await one.claim(slots=5)
    asks = [success(g) for g in granted] + [success(granted[0]), failure(granted[1])]
    outcomes = await one.complete(*asks)
    assert outcomes[:6] == [True] * 6
    assert outcomes[6].reason is Reason.LEASE_FENCED
