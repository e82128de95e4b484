"""Leaders that change under load: what every drill of them asserts, and the hand-overs that operators make on purpose.

Beside the ordinary traffic (whose steps have a TTL of 3 s) some runs hold a lease with the default TTL through the whole fault:
they may not expire. Can go wrong: a hand-over that met nothing. Shards that changed hands are counted, and none is red.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from runway.scheduler.v1 import control_service_pb2 as pb
from runway.scheduler.v1 import control_service_pb2_grpc

from libs.drills import claims
from libs.drills.history import Fact
from libs.drills.stage import Drill, Stage
from libs.rpc.channels import open_channel

ENDURING = 10
FIRST_CLAIM_MS = 10_000
GAP_MS = 3_000
"""A planned hand-over keeps claims waiting for no longer, a chance pause between two launches included."""
BUSY_PER_S = 8.0
ACTOR = "drill"


async def enduring(stage: Stage, seconds: float) -> list[str]:
    """Runs of one step that hold a lease of the default TTL for so long; each has begun."""
    await stage.installation.start_worker(slots=3 * ENDURING)
    runs = [await stage.traffic.endure(round(seconds)) for _ in range(ENDURING)]
    names = {run.run_id for run in runs}

    def begun() -> bool:
        facts = stage.history.facts()
        return {f["run"] for f in facts if f["what"] == "began" and f["call"] == "endure"} >= names

    await stage.until(begun, f"{ENDURING} enduring runs under way", 30)
    return sorted(names)


def judge(stage: Stage, runs: Sequence[str], *, first_claim: bool = True) -> None:
    """Once everything is known: claims go on in time, no step had two live leases, nothing is lost, nothing expired falsely."""

    def look(facts: list[Fact]) -> None:
        wall_ms = next(fact["wall_ms"] for fact in facts if fact["what"] == "fault")
        hands = claims.moved(facts, stage.began)
        first = claims.first_claim_ms(facts, stage.began, wall_ms)
        found = {
            "steps with two live leases": claims.two_live_leases(facts),
            "lost tickets": claims.lost_tickets(facts),
            "false expiries": claims.false_expiries(facts, runs),
        }
        stage.report.facts["shards that changed hands"] = len(hands)
        stage.report.facts |= {what: len(which) for what, which in found.items()}
        stage.report.facts["attempts that had to live"] = len(runs)
        for what, which in found.items():
            stage.expect(not which, f"{what}: {', '.join(which[:5])}")
        if first_claim:
            stage.report.times_ms["first claim"] = first
            stage.expect(first is not None, "no shard that changed hands was claimed from")
            stage.expect(first is None or first < FIRST_CLAIM_MS, f"the first claim came after {first} ms")

    stage.afterwards.append(look)


def watched(drill: Drill, fault_s: Callable[[Stage], float]) -> Drill:
    """The same drill, with what a change of leaders may not cost asserted."""
    hurt = drill.run

    async def run(stage: Stage) -> None:
        judge(stage, await enduring(stage, fault_s(stage) + 25))
        await hurt(stage)

    return replace(drill, run=run)


async def _ask(stage: Stage, replica: int, method: str, request: object) -> object:
    """An operator's call at one scheduler."""
    secret = (stage.installation.folder / "service-secret").read_text().strip()
    async with open_channel(stage.installation.host("scheduler", replica).control, secret=secret) as channel:
        call = getattr(control_service_pb2_grpc.ControlServiceStub(channel), method)
        answer: object = await call(request, timeout=30)
        return answer


async def _handed_over(stage: Stage, text: str, hand_over: Callable[[], Awaitable[None]]) -> None:
    """A planned hand-over under load, and what it may cost."""
    runs = await enduring(stage, 40)
    stage.traffic.per_s = BUSY_PER_S
    await stage.work_on(3)
    judge(stage, runs)
    async with stage.fault(text):
        await hand_over()
        await stage.work_on(4)
    stage.traffic.per_s = 3.0

    def look(facts: list[Fact]) -> None:
        first, last = _walls(facts)
        gap = claims.longest_gap_ms(facts, claims.moved(facts, stage.began), first, last)
        stage.report.times_ms["longest gap"] = gap
        stage.expect(gap < GAP_MS, f"for {gap} ms nothing was claimed of the shards that changed hands")

    stage.afterwards.append(look)


def _walls(facts: Sequence[Fact]) -> tuple[int, int]:
    """The fault's begin and end by the wall clock."""
    walls = [fact["wall_ms"] for fact in facts if fact["what"] in ("fault", "healed")]
    return walls[0], walls[-1]


async def drain_shards(stage: Stage) -> None:
    """Everything of the first scheduler to the second, and back again."""

    async def hand_over() -> None:
        first = stage.installation.host("scheduler", 0).control
        request = pb.DrainShardsRequest(member=first, reason="a drill", actor=ACTOR)
        answer = await _ask(stage, 1, "DrainShards", request)
        assert isinstance(answer, pb.DrainShardsResponse)
        stage.expect(bool(answer.moves) and all(move.done for move in answer.moves), f"not every shard moved: {answer}")
        slowest = max((move.took.ToMilliseconds() for move in answer.moves), default=0)
        stage.report.facts["shards drained"] = f"{len(answer.moves)}, the slowest in {slowest} ms"
        await stage.work_on(4)
        back = await _ask(stage, 1, "ReturnShards", pb.ReturnShardsRequest(reason="a drill", actor=ACTOR))
        assert isinstance(back, pb.ReturnShardsResponse)
        stage.expect(len(back.shards) == len(answer.moves), "not every shard was given back")

    await _handed_over(stage, "every shard of a scheduler handed over, and given back", hand_over)


async def stop_scheduler(stage: Stage) -> None:
    """SIGTERM: it hands its shards over before it ends; its supervisor starts it again, and it gets its share back."""

    async def hand_over() -> None:
        gone = stage.installation.pid("scheduler")
        os.kill(gone, signal.SIGTERM)
        await stage.installation.back("scheduler", gone)

    await _handed_over(stage, "SIGTERM of a scheduler", hand_over)


async def hold_queue(stage: Stage) -> None:
    """A tenant's queue held under load, and released: nothing is granted between the two answers, then everything goes on."""
    runs = await enduring(stage, 30)
    judge(stage, runs, first_claim=False)
    held: dict[str, int] = {}
    name = stage.tenant
    queue = pb.HOLD_KIND_QUEUE
    async with stage.fault(f"the queue of {name} held for 5 s, and released"):
        request = pb.PutHoldRequest(kind=queue, name=name, mode=pb.HOLD_MODE_HOLD, reason="a drill", actor=ACTOR)
        answer = await _ask(stage, 0, "PutHold", request)
        assert isinstance(answer, pb.PutHoldResponse)
        held["since"] = stage.wall_ms()
        stage.expect(
            all(replica.acted for replica in answer.replicas), f"not every scheduler acts on the hold: {answer.replicas}"
        )
        stage.expect(len(answer.replicas) == 2, f"{len(answer.replicas)} schedulers answered for the hold")
        await stage.work_on(5)
        held["until"] = stage.wall_ms()
        await _ask(stage, 1, "ReleaseHold", pb.ReleaseHoldRequest(kind=queue, name=name, reason="a drill", actor=ACTOR))
        await stage.work_on(3)

    def look(facts: list[Fact]) -> None:
        within = claims.claimed_within(facts, held["since"], held["until"])
        stage.report.facts["claimed while held"] = len(within)
        stage.expect(not within, f"claimed while held: {', '.join(within[:5])}")
        later = [fact["leased_at"] for fact in claims.attempts(facts) if fact["leased_at"] >= held["until"]]
        first = min(later) - held["until"] if later else None
        stage.report.times_ms["first claim after the release"] = first
        stage.expect(first is not None and first < GAP_MS, f"the first claim after the release came after {first} ms")

    stage.afterwards.append(look)


DRILLS = [
    Drill("drain-shards", "every shard of a scheduler handed over under load, and back", drain_shards, during={"finished": 10}),
    Drill("stop-scheduler", "SIGTERM of a scheduler under load: it hands over", stop_scheduler, during={"finished": 5}),
    Drill("hold-queue", "a tenant's queue held under load, and released", hold_queue, during={"launched": 5}),
]
