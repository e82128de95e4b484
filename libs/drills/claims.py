"""Authoritative for what a change of leaders may cost: when claims go on, which steps had two live leases, which tickets are
lost, which leases expired although their worker lived. Pure: facts in, figures out.

Times of claims are the scheduler's own (`leased_at`, `ended_at` of attempts), by the machine's wall clock, which all processes
of a drill share; the fault's fact names that clock as well. Can go wrong: a drill in which no shard changed hands, and all
looks well. Then there is no first claim, which is red.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from uuid import UUID

from libs.drills.checker import TERMINAL
from libs.drills.history import Fact
from libs.kernel.ids import shard_of

EXPIRED = frozenset({"lost", "timed_out", "uncertain"})


def attempts(facts: Iterable[Fact]) -> list[Fact]:
    """Every attempt, as it stands in the end."""
    return [fact for fact in facts if fact["who"] == "final" and fact["what"] == "attempt"]


def moved(facts: Iterable[Fact], began: float) -> dict[int, int]:
    """Shards that have had another leader since, with the last epoch before."""
    before: dict[int, int] = {}
    found: dict[int, int] = {}
    for fact in facts:
        if fact["what"] != "leader":
            continue
        if fact["t"] < began:
            before[fact["shard"]] = fact["epoch"]
        elif fact["epoch"] > before.get(fact["shard"], fact["epoch"]):
            found.setdefault(fact["shard"], before[fact["shard"]])
    return found


def claims_of(facts: Sequence[Fact], former: Mapping[int, int]) -> list[int]:
    """When something of these shards was claimed under a later epoch than the former one, in order."""
    found = []
    for fact in attempts(facts):
        shard = shard_of(UUID(fact["run"]))
        if shard in former and fact["authority"] > former[shard]:
            found.append(fact["leased_at"])
    return sorted(found)


def first_claim_ms(facts: Sequence[Fact], began: float, wall_ms: int) -> int | None:
    """From the fault to the first claim under a new leader of a shard that changed hands; None: there was none."""
    after = [at for at in claims_of(facts, moved(facts, began)) if at >= wall_ms]
    return after[0] - wall_ms if after else None


def longest_gap_ms(facts: Sequence[Fact], shards: Collection[int], since_ms: int, until_ms: int) -> int:
    """The longest time within the span in which nothing of these shards was claimed, by whomever."""
    times = {fact["leased_at"] for fact in attempts(facts) if shard_of(UUID(fact["run"])) in shards}
    within: list[int] = sorted(at for at in times if since_ms < at < until_ms)
    return max(later - earlier for earlier, later in pairwise([since_ms, *within, until_ms]))


def claimed_within(facts: Sequence[Fact], since_ms: int, until_ms: int) -> list[str]:
    """What was claimed within the span."""
    return [f"{fact['run']}/{fact['step']}" for fact in attempts(facts) if since_ms < fact["leased_at"] < until_ms]


def two_live_leases(facts: Sequence[Fact]) -> list[str]:
    """Steps of which a later lease was granted before an earlier one had ended."""
    of_step: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in attempts(facts):
        of_step[fact["run"], fact["step"]].append(fact)
    found = []
    for step, mine in of_step.items():
        mine.sort(key=lambda fact: (fact["authority"], fact["lease"]))
        if any(not earlier["ended_at"] or later["leased_at"] < earlier["ended_at"] for earlier, later in pairwise(mine)):
            found.append("/".join(step))
    return found


def lost_tickets(facts: Sequence[Fact]) -> list[str]:
    """Runs that were accepted and never ended: something of them waits for ever."""
    ended = {f["run"] for f in facts if (f["who"], f["what"]) == ("final", "run") and f["state"] in TERMINAL}
    return sorted({f["run"] for f in facts if (f["who"], f["what"]) == ("client", "launched")} - ended)


def false_expiries(facts: Sequence[Fact], runs: Collection[str]) -> list[str]:
    """Attempts of these runs, whose workers lived and beat all the while, that were ended for their silence."""
    return [f"{fact['run']} {fact['state']}" for fact in attempts(facts) if fact["run"] in runs and fact["state"] in EXPIRED]
