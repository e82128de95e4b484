"""A kill switch thrown while its tenant calls tools: once every point has said that it is enforced, nothing commits.

What commits is read from the gateway's own rows, by when each try was intended. Can go wrong: a switch that met nobody. Calls
are under way when it is thrown, and runs are in the middle of their effects.
"""

import asyncio

from runway.launch.v1 import scope_service_pb2 as pb
from runway.launch.v1 import scope_service_pb2_grpc

from libs.drills import claims
from libs.drills.finals import SQL, ask
from libs.drills.history import Fact
from libs.drills.stage import Drill, Stage
from libs.rpc.channels import open_channel

KILLED_S = 5.0
ACTOR = "drill"


async def kill_tenant(stage: Stage) -> None:
    """Thrown under traffic, with long runs in the middle of their effects; released, everything finishes."""
    patient = [await stage.patient_run(12) for _ in range(2)]
    await stage.busy(3)
    secret = (stage.installation.folder / "service-secret").read_text().strip()
    kind, name = pb.SCOPE_KIND_TENANT, stage.tenant
    killed: dict[str, int] = {}
    async with open_channel(stage.installation.host("launch").control, secret=secret) as channel:
        stub = scope_service_pb2_grpc.ScopeServiceStub(channel)
        async with stage.fault(f"tenant {name} killed for {KILLED_S:g} s, and released"):
            request = pb.StopScopeRequest(kind=kind, name=name, mode=pb.SCOPE_MODE_KILL, reason="a drill", actor=ACTOR)
            answer = await stub.StopScope(request, timeout=30)
            enforced = {point.point: point.enforced for point in answer.scope.points}
            while not all(enforced.values()):
                await asyncio.sleep(0.1)  # between two looks at who holds it
                scopes = (await stub.ListScopes(pb.ListScopesRequest(), timeout=30)).scopes
                enforced = {point.point: point.enforced for scope in scopes if scope.name == name for point in scope.points}
            killed["since"] = stage.wall_ms()
            stage.report.facts["points"] = ", ".join(sorted(enforced))
            stage.expect(len(enforced) >= 3, f"only {sorted(enforced)} are points of the switch")
            await stage.work_on(KILLED_S)
            killed["until"] = stage.wall_ms()
            await stub.ReleaseScope(pb.ReleaseScopeRequest(kind=kind, name=name, reason="a drill", actor=ACTOR), timeout=30)
        rows = await ask(stage.installation.urls["gateway"], SQL.intents)
    within = [row for row in rows if killed["since"] < row["requested_ms"] < killed["until"]]
    before = [row for row in rows if row["requested_ms"] <= killed["since"]]
    stage.report.facts |= {"intents before": len(before), "intents while enforced": len(within)}
    stage.expect(bool(before), "no effect was intended before the switch")
    stage.expect(not within, f"intended while the switch was enforced: {within[:3]}")
    await stage.until(
        lambda: {run.run_id for run in stage.traffic.runs if run.outcome == "succeeded"} >= set(patient),
        "the runs in the middle of their effects to finish after the release",
    )

    def look(facts: list[Fact]) -> None:
        claimed = claims.claimed_within(facts, killed["since"], killed["until"])
        stage.report.facts["claimed while enforced"] = len(claimed)
        stage.expect(not claimed, f"claimed while the switch was enforced: {', '.join(claimed[:5])}")
        stage.expect(not (lost := claims.lost_tickets(facts)), f"lost tickets: {', '.join(lost[:5])}")
        twice = claims.two_live_leases(facts)
        stage.expect(not twice, f"steps with two live leases: {', '.join(twice[:5])}")

    stage.afterwards.append(look)


DRILLS = [Drill("kill-switch", "a tenant killed under its own traffic, and released", kill_tenant, during={"launched": 5})]
