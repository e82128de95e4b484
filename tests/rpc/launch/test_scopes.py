"""Switches over gRPC: stored with their raises, asked of every point, told with who and why; adopted after a promotion."""

from datetime import timedelta
from typing import Any

import pytest
from runway.internal.fence.v1 import fence_pb2
from runway.launch.v1 import scope_service_pb2 as pb
from runway.launch.v1 import scope_service_pb2_grpc

from libs.kernel.epochs import incarnation_of, make_epoch
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.rpc.status import refusal_of
from libs.testkit.hosts import make_key, make_project, service_channel
from libs.testkit.waiting import wait_until
from tests.rpc.launch.test_promotion import POINTS, Installation, answered, before, installation
from tests.rpc.launch.test_run_life import Bench, bench

__all__ = ["bench", "installation"]
WHO = {"reason": "it posts nonsense", "actor": "ann"}
DRAIN, KILL = pb.SCOPE_MODE_DRAIN, pb.SCOPE_MODE_KILL
TENANT, PROJECT, TOOL, PROVIDER = 1, 2, 3, 4


async def ask(bench: Bench, method: str, request: Any) -> Any:
    from grpc.aio import AioRpcError

    async with service_channel(bench.host) as channel:
        try:
            return await getattr(scope_service_pb2_grpc.ScopeServiceStub(channel), method)(request)
        except AioRpcError as error:
            raise refusal_of(error) from None


async def stop(bench: Bench, kind: int, name: str, mode: int = KILL, **more: Any) -> pb.StopScopeResponse:
    request = pb.StopScopeRequest(kind=kind, name=name, mode=mode, **{**WHO, **more})  # type: ignore[arg-type]
    answer: pb.StopScopeResponse = await ask(bench, "StopScope", request)
    return answer


async def release(bench: Bench, kind: int, name: str, **more: Any) -> pb.ReleaseScopeResponse:
    request = pb.ReleaseScopeRequest(kind=kind, name=name, **{**WHO, **more})  # type: ignore[arg-type]
    answer: pb.ReleaseScopeResponse = await ask(bench, "ReleaseScope", request)
    return answer


def raised(bench: Bench, point: str) -> list[tuple[str, str, int, int]]:
    return [(s.kind, s.scope_id, s.epoch, s.mode) for request in bench.peers[point].raised for s in request.scopes]


def enforced(scope: pb.Scope) -> list[str]:
    return [state.point for state in scope.points if state.enforced]


@pytest.mark.requirement("sched.switch")
async def test_a_switch_is_held_by_every_point_and_kept_with_who_and_why(bench: Bench) -> None:
    await bench.client.launch("plain")
    told = await stop(bench, TENANT, "acme", DRAIN)
    assert (told.changed, told.extent.active_runs, enforced(told.scope)) == (True, 1, sorted(POINTS))
    again = await stop(bench, TENANT, "acme", DRAIN, actor="bob")
    assert (again.changed, again.scope.epoch, again.scope.actor) == (False, told.scope.epoch, "ann")
    killed = await stop(bench, TENANT, "acme", KILL, expected_epoch=told.scope.epoch)
    assert killed.scope.epoch > told.scope.epoch
    opened = await release(bench, TENANT, "acme", reason="mended")
    assert (opened.scope.mode, enforced(opened.scope)) == (0, sorted(POINTS))
    assert opened.scope.epoch > killed.scope.epoch
    for point in POINTS:
        modes = {epoch: mode for _, _, epoch, mode in raised(bench, point)}
        assert modes == {told.scope.epoch: 1, killed.scope.epoch: 2, opened.scope.epoch: 0}
    listed = await ask(bench, "ListScopes", pb.ListScopesRequest())
    assert not listed.scopes
    listed = await ask(bench, "ListScopes", pb.ListScopesRequest(released=True))
    assert [(s.name, s.mode, s.reason) for s in listed.scopes] == [("acme", 0, "mended")]
    changes = (await ask(bench, "ListScopeChanges", pb.ListScopeChangesRequest())).changes
    assert [(c.mode, c.actor, c.reason) for c in changes] == [
        (0, "ann", "mended"),
        (KILL, "ann", WHO["reason"]),
        (DRAIN, "ann", WHO["reason"]),
    ]


@pytest.mark.requirement("sched.switch")
async def test_a_point_that_is_away_is_not_said_to_hold_it_and_is_asked_until_it_does(bench: Bench) -> None:
    bench.peers["checkpoint"].refuse = unreachable("checkpoint")
    told = await stop(bench, TOOL, "git.push")
    assert enforced(told.scope) == ["gateway", "scheduler"]
    bench.peers["checkpoint"].refuse = None

    async def all_hold() -> bool:
        (scope,) = (await ask(bench, "ListScopes", pb.ListScopesRequest())).scopes
        return enforced(scope) == sorted(POINTS)

    await wait_until(all_hold, 10.0, what="the raise from the outbox")
    assert ("tool", "git.push", told.scope.epoch, 2) in raised(bench, "checkpoint")


@pytest.mark.requirement("sched.switch")
async def test_a_dry_run_says_what_it_would_stop_and_changes_nothing(bench: Bench) -> None:
    await bench.client.launch("pusher")
    await bench.client.launch("plain")
    for kind, name, active in ((TOOL, "git.push", 1), (PROJECT, "acme/default", None), (TENANT, "acme", 2)):
        told = await stop(bench, kind, name, dry_run=True, unseen=True)
        assert (told.changed, told.scope.mode, told.scope.epoch) == (False, 0, 0)
        assert active is None or told.extent.active_runs == active
    assert not (await stop(bench, PROVIDER, "openai", dry_run=True)).extent.HasField("active_runs")
    assert not any(raised(bench, point) for point in POINTS)
    assert not (await ask(bench, "ListScopes", pb.ListScopesRequest(released=True))).scopes


@pytest.mark.requirement("sched.switch")
async def test_a_project_that_was_made_and_never_used_is_stopped_as_any_other(bench: Bench) -> None:
    await make_project(bench.host, await make_key(bench.host, scopes=("admin",)), "fresh")
    assert (await stop(bench, PROJECT, "acme/fresh")).scope.mode == 2
    assert (await stop(bench, PROJECT, "acme/default")).scope.mode == 2, "every tenant has it"
    with pytest.raises(Refusal) as no:
        await stop(bench, PROJECT, "nobody/default")
    assert no.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "name", "more", "reason"),
    [
        (TENANT, "nobody", {}, Reason.NOT_FOUND),
        (PROJECT, "acme/nothing", {}, Reason.NOT_FOUND),
        (PROJECT, "acme", {}, Reason.INVALID_FIELD),
        (PROJECT, "acme/a/b", {}, Reason.INVALID_FIELD),
        (TENANT, "acme/web", {}, Reason.INVALID_FIELD),
        (TOOL, "a\x1bb", {}, Reason.INVALID_FIELD),
        (TOOL, "", {}, Reason.INVALID_FIELD),
        (0, "acme", {}, Reason.INVALID_FIELD),
        (TENANT, "acme", {"mode": 0}, Reason.INVALID_FIELD),
        (TENANT, "acme", {"mode": 3}, Reason.INVALID_FIELD),
        (TENANT, "acme", {"reason": " "}, Reason.INVALID_FIELD),
        (TENANT, "acme", {"actor": ""}, Reason.INVALID_FIELD),
        (TENANT, "acme", {"expected_epoch": 7}, Reason.VERSION_CONFLICT),
    ],
)
async def test_what_cannot_be_switched_is_refused(
    bench: Bench, kind: int, name: str, more: dict[str, Any], reason: Reason
) -> None:
    with pytest.raises(Refusal) as no:
        await stop(bench, kind, name, **more)
    assert no.value.reason is reason
    assert not (await ask(bench, "ListScopes", pb.ListScopesRequest(released=True))).scopes


async def test_what_is_not_stopped_cannot_be_released(bench: Bench) -> None:
    for name in ("git.push", "git.push"):
        with pytest.raises(Refusal) as no:
            await release(bench, TOOL, name)
        assert no.value.reason is Reason.NOT_FOUND
    await stop(bench, TOOL, "git.push")
    with pytest.raises(Refusal) as no:
        await release(bench, TOOL, "git.push", expected_epoch=1)
    assert no.value.reason is Reason.VERSION_CONFLICT
    with pytest.raises(Refusal) as no:
        await ask(bench, "ListScopes", pb.ListScopesRequest(page_token="nothing"))
    assert no.value.reason is Reason.INVALID_FIELD


async def test_pages_of_scopes_are_stable(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        await stop(bench, TOOL, name)
    await stop(bench, PROVIDER, "p")
    names, token = [], ""
    while True:
        page = await ask(bench, "ListScopes", pb.ListScopesRequest(page_size=1, page_token=token))
        names += [scope.name for scope in page.scopes]
        token = page.next_page_token
        if not token:
            break
    assert names == ["p", "a", "b", "c"]


def held(*scopes: tuple[str, str, int, int]) -> Any:
    fences = [fence_pb2.ScopeFence(kind=k, scope_id=s, epoch=e, mode=fence_pb2.Mode.ValueType(m)) for k, s, e, m in scopes]

    def answer(request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        gates = [fence_pb2.RunGate(run_id=run_id) for run_id in request.run_ids]
        return fence_pb2.GetFencesResponse(gates=gates, scopes=fences, incarnation=256)

    return answer


@pytest.mark.requirement("sched.switch")
async def test_a_promoted_launch_takes_over_what_only_its_points_still_know(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = await before(installation)
    async with installation.launch() as bench:
        kept = (await stop(bench, TOOL, "kept")).scope
        undone = (await stop(bench, TOOL, "undone")).scope
    for point in POINTS:
        installation.peers[point].answer = held(
            ("tool", "kept", kept.epoch, 2),
            ("tool", "undone", undone.epoch + 1, 0),
            ("tenant", "acme", make_epoch(256, 9), 2 if point == "gateway" else 0),
        )
        installation.peers[point].raised.clear()
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        await answered(bench, run)
        listed = (await ask(bench, "ListScopes", pb.ListScopesRequest(released=True))).scopes
        found = {scope.name: scope for scope in listed}
        assert {name: scope.mode for name, scope in found.items()} == {"kept": KILL, "undone": 0, "acme": KILL}
        assert all(incarnation_of(scope.epoch) == 257 for scope in listed)

        def told() -> bool:
            return all({s[1] for s in raised(bench, point)} == set(found) for point in POINTS)

        await wait_until(told, 10.0, what="all of them raised anew")


@pytest.mark.requirement("sched.switch")
async def test_a_switch_stops_no_clock(bench: Bench) -> None:
    run = await bench.client.launch("pusher", deadline=timedelta(seconds=2))
    await stop(bench, TENANT, "acme", DRAIN)
    ended = await bench.client.wait(run.run_id, settled=True, timeout_s=20)
    assert (ended.outcome, ended.failure.type) == ("expired", "DEADLINE_EXCEEDED")
