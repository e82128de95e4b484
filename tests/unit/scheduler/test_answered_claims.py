"""The memory of answered claims is bounded by the leases they got."""

from uuid import UUID

from libs.kernel.epochs import StepFence
from services.scheduler.app.claims import AnsweredClaims
from services.scheduler.domain.asker import Asker

WHO = Asker("a", "")
FENCE = StepFence(1, 1, UUID(int=1))


def got(memory: AnsweredClaims, claim: int, leases: int, first: int = 0) -> None:
    for number in range(first, first + leases):
        memory.add((WHO, UUID(int=claim)), (UUID(int=number), "s"), FENCE)


def test_the_oldest_claims_go_and_leases_are_what_counts() -> None:
    memory = AnsweredClaims(most_leases=10)
    got(memory, 1, 4)
    got(memory, 2, 4)
    got(memory, 1, 1)  # the same lease again
    got(memory, 3, 2)
    assert [len(memory.get((WHO, UUID(int=claim))) or ()) for claim in (1, 2, 3)] == [4, 4, 2]
    got(memory, 4, 1)
    assert memory.get((WHO, UUID(int=2))) is None, "claim 1 got something later than claim 2"
    assert len(memory.get((WHO, UUID(int=1))) or ()) == 4


def test_a_claim_larger_than_the_memory_is_remembered_alone() -> None:
    memory = AnsweredClaims(most_leases=10)
    got(memory, 1, 1)
    got(memory, 2, 30)
    assert memory.get((WHO, UUID(int=1))) is None
    assert len(memory.get((WHO, UUID(int=2))) or ()) == 30
    got(memory, 3, 1)
    assert memory.get((WHO, UUID(int=2))) is None


def test_another_asker_under_the_same_name_is_another_claim() -> None:
    memory = AnsweredClaims()
    got(memory, 1, 1)
    assert memory.get((Asker("b", ""), UUID(int=1))) is None
