"""The index of ready tickets: what it serves, counts and forgets."""

from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from libs.testkit import ManualClock
from services.scheduler.app.queue import Ready, ReadyIndex
from services.scheduler.app.usage import Usage
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.lines import Candidate
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.ticket import Contract, TicketRow


def ready(number: int, tenant: str = "a", run_class: int = 2, handler: str = "f", rank_ms: int = 0, **more: object) -> Ready:
    values: dict[str, object] = {"project": "p", "requires": frozenset[str](), **more}
    key = (UUID(int=number), "s")
    candidate = Candidate(key, tenant, run_class=run_class, handler=handler, rank_ms=rank_ms, **values)  # type: ignore[arg-type]
    return Ready(candidate, 0, 1, 0, cast(TicketRow, None), 0)


def poll(tenant: str = "", project: str = "", handlers: str = "f", labels: str = "") -> Poll:
    return Poll(1, tenant, project, frozenset(handlers), frozenset(labels), 1)


def test_it_serves_whom_a_ticket_fits() -> None:
    index = ReadyIndex()
    assert not index.serves([poll()])
    index.add(ready(1, requires=frozenset("x")))
    assert not index.serves([poll(), poll("a")]), "nobody has what it requires"
    assert index.serves([poll(), poll("a", labels="x")])
    index.add(ready(2, handler="g"))
    assert index.serves([poll(handlers="g")])
    assert not index.serves([poll("b", handlers="g"), poll("a", project="q", handlers="g")])
    index.remove((UUID(int=2), "s"))
    assert not index.serves([poll(handlers="g")])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 3))))
def test_every_view_agrees_after_any_order_of_coming_and_going(moves: list[tuple[bool, int, str, int, int]]) -> None:
    index, model = ReadyIndex(), {}
    for comes, number, tenant, run_class, rank_ms in moves:
        if comes:
            made = ready(number, tenant, run_class, rank_ms=rank_ms)
            index.add(made)
            model[made.candidate.key] = made
        else:
            assert index.remove((UUID(int=number), "s")) is model.pop((UUID(int=number), "s"), None)
    found = list(model.values())
    assert len(index) == len(found)
    assert {r.candidate.key for r in index} == set(model)
    assert dict(index.by_class()) == {c: n for c in (1, 2, 3) if (n := sum(r.candidate.run_class == c for r in found))}
    assert {name: queue.waiting for name, queue in index.queues.items()} == {
        name: n for name in "ab" if (n := sum(r.candidate.tenant == name for r in found))
    }
    for name, queue in index.queues.items():
        for line, waiting in queue.lines.items():
            mine = [r.candidate for r in found if r.candidate.line == line]
            assert list(waiting) == sorted(mine, key=lambda c: c.place)
        for run_class, heads in queue.heads.items():
            firsts = [min(c.place for c in line) for key, line in queue.lines.items() if key.run_class == run_class]
            assert [place for place, _ in heads] == sorted(firsts)
        assert {key.tenant for key in queue.lines} == {name}


@dataclass
class Held:
    """What of a lease counts for shares."""

    beaten: bool
    tenant: str = "a"
    project: str = "p"
    run_class: int = 2
    shared: bool = True
    launched_by: str = "ann"
    wants: tuple[tuple[str, int], ...] = ()
    contract: Contract = field(default_factory=lambda: Contract("h", 0, 0, (), (), frozenset(), 0))


def test_a_lease_found_in_the_table_does_not_pay_for_its_entry_again() -> None:
    averages = []
    for beaten in (False, True):
        usage = Usage(ManualClock())
        usage.began(cast(Lease, Held(beaten)))
        averages.append(usage.used("a").average)
        assert (usage.used("a").running, usage.shared) == (1, {2: 1})
        usage.ended(cast(Lease, Held(beaten)))
        assert (usage.used("a").running, usage.shared, usage.projects) == (0, {2: 0}, {})
    assert averages[0] > 0
    assert averages[1] == 0
