"""Who waits for a run learns of what other replicas did: also that it is gone."""

from collections.abc import Sequence
from uuid import UUID

from services.launch.app.wait_runs import Seen, WaitHub

RUN, OTHER = UUID(int=1), UUID(int=2)


class Rows:
    """Versions as a table has them."""

    def __init__(self) -> None:
        self.seen: dict[UUID, Seen] = {RUN: (1, 1, 1), OTHER: (1, 1, 1)}

    async def versions_of(self, run_ids: Sequence[UUID]) -> dict[UUID, Seen]:
        return {run_id: self.seen[run_id] for run_id in run_ids if run_id in self.seen}


async def test_a_run_that_is_forgotten_wakes_who_waits_for_it_and_nobody_else() -> None:
    rows = Rows()
    hub = WaitHub(rows)
    with hub.watching(RUN) as gone, hub.watching(RUN, state_only=True) as also, hub.watching(OTHER) as still:
        await hub.poll()
        for waiter in (gone, also, still):
            waiter.clear()
        await hub.poll()
        assert [waiter.is_set() for waiter in (gone, also, still)] == [False, False, False]
        del rows.seen[RUN]
        await hub.poll()
        assert [waiter.is_set() for waiter in (gone, also, still)] == [True, True, False]
