"""`runway shard|worker|queue|hold …` for operators: hold, drain, hand over, and undo it. Every change wants a reason."""

from typing import Any

import typer

from libs.cli.commands.things import shard_app, worker_app
from libs.cli.operating import actor, operators
from libs.cli.output import FORM, Form, plain, rows_of, run_async, say, short, show_one, show_rows, wrong_usage

queue_app = typer.Typer(help="Queues: a tenant, a project (`tenant/project`) or a handler.", no_args_is_help=True)
hold_app = typer.Typer(help="What is held back.", no_args_is_help=True)

REASON = typer.Option(..., "--reason", help="why, for whoever looks at this later")
DRY_RUN = typer.Option(False, "--dry-run", help="say what it would stop, change nothing")
ASK_LIVE = typer.Option(False, "--drain", help="also ask live attempts to finish or to yield at a checkpoint")
UNSEEN = typer.Option(False, "--unseen", help="although nothing of that name was seen yet")
STEP = typer.Option(
    False, "--step", help="the name is RUN_ID/STEP_KEY: one step of one run, with all its instances, or one instance"
)
SHARD, QUEUE, WORKER, ONE_STEP = 1, 2, 3, 4
HOLD, DRAIN = 1, 2
KIND, MODE = "HOLD_KIND_", "HOLD_MODE_"


def _who_acts(replicas: list[dict[str, Any]]) -> None:
    late = [replica for replica in replicas if not replica["acted"]]
    for replica in late:
        say(f"{replica['address'] or replica['member_id']} has not said yet that it acts on this")
    if replicas and not late:
        say(f"{len(replicas)} of {len(replicas)} scheduler processes act on it")


def _words(hold: dict[str, Any]) -> dict[str, str]:
    """For people, who do not read enums."""
    return {"kind": short(hold["kind"], KIND), "mode": short(hold["mode"], MODE)}


def _show(answer: Any, form: Form, *, dry_run: bool) -> None:
    """A hold, what it stops and who acts on it: all of it for programs, the point of it for people."""
    row = plain(answer)
    if form is not Form.text:
        show_one(row | {"dry_run": dry_run}, form)
        return
    if dry_run:
        say("dry run: nothing was changed; this is what it would do")
    hold, extent = row["hold"], row["extent"]
    names = ("hold_id", "kind", "name", "mode", "reason", "actor", "released_by")
    show_one({name: hold[name] for name in names} | _words(hold) | extent, form)
    if not dry_run:
        _who_acts(row["replicas"])


def _put(kind: int, name: str, mode: int, reason: str, dry_run: bool, unseen: bool, form: Form) -> None:
    async def work() -> None:
        from runway.scheduler.v1 import control_service_pb2 as pb

        request = pb.PutHoldRequest(
            kind=pb.HoldKind.ValueType(kind),
            name=name,
            mode=pb.HoldMode.ValueType(mode),
            reason=reason,
            actor=actor(),
            dry_run=dry_run,
            unseen=unseen,
        )
        async with operators() as ask:
            _show(await ask("PutHold", request), form, dry_run=dry_run)

    run_async(work)


def _release(kind: int, name: str, reason: str, dry_run: bool, form: Form) -> None:
    async def work() -> None:
        from runway.scheduler.v1 import control_service_pb2 as pb

        request = pb.ReleaseHoldRequest(
            kind=pb.HoldKind.ValueType(kind), name=name, reason=reason, actor=actor(), dry_run=dry_run
        )
        async with operators() as ask:
            _show(await ask("ReleaseHold", request), form, dry_run=dry_run)

    run_async(work)


@hold_app.command("list")
def list_holds(released: bool = typer.Option(False, "--all", help="also released ones"), form: Form = FORM) -> None:
    """What is held back, by whom and why."""

    async def work() -> None:
        from runway.scheduler.v1 import control_service_pb2 as pb

        holds, token, replicas = [], "", []
        async with operators() as ask:
            while True:
                page = await ask("ListHolds", pb.ListHoldsRequest(released=released, page_size=500, page_token=token))
                holds += rows_of(page.holds)
                replicas, token = rows_of(page.replicas), page.next_page_token
                if not token:
                    break
        columns = ["hold_id", "kind", "name", "mode", "actor", "placed_at", "reason", *(["released_by"] if released else [])]
        show_rows([hold | _words(hold) for hold in holds] if form is Form.text else holds, columns, form)
        _who_acts(replicas)

    run_async(work)


def _named(hold: dict[str, Any]) -> str:
    """A hold in a few words."""
    kind, mode = short(hold["kind"], KIND), short(hold["mode"], MODE)
    return f"{'drained' if mode == 'drain' else 'held'}{' step' if kind == 'step' else ''}: {hold['name']} ({hold['reason']})"


@queue_app.command("describe")
def describe_queue(name: str = typer.Argument("", help="only this one"), form: Form = FORM) -> None:
    """What waits, since when, what is live, who carries it, and the holds on it."""

    async def work() -> None:
        from runway.scheduler.v1 import control_service_pb2 as pb

        rows, token = [], ""
        async with operators() as ask:
            while True:
                page = await ask("ListQueues", pb.ListQueuesRequest(name=name, page_size=500, page_token=token))
                rows += rows_of(page.queues)
                token = page.next_page_token
                if not token:
                    break
        if form is Form.text:
            rows = [row | {"holds": ", ".join(map(_named, [*row["holds"], *row["step_holds"]]))} for row in rows]
        columns = ["tenant", "project", "handler", "waiting", "oldest_at", "live_leases", "workers", "holds"]
        show_rows(rows, columns, form)

    run_async(work)


@queue_app.command("hold")
def hold_queue(
    name: str = typer.Argument(help="tenant, tenant/project, workflow.step@build, or with --step RUN_ID/STEP_KEY"),
    reason: str = REASON,
    step: bool = STEP,
    drain: bool = ASK_LIVE,
    dry_run: bool = DRY_RUN,
    unseen: bool = UNSEEN,
    form: Form = FORM,
) -> None:
    """Nothing of a queue, or of one step, is granted until it is released; its tickets wait."""
    _put(ONE_STEP if step else QUEUE, name, DRAIN if drain else HOLD, reason, dry_run, unseen, form)


@queue_app.command("release")
def release_queue(
    name: str = typer.Argument(help="as it was held"),
    reason: str = REASON,
    step: bool = STEP,
    dry_run: bool = DRY_RUN,
    form: Form = FORM,
) -> None:
    """Undoes `queue hold`."""
    _release(ONE_STEP if step else QUEUE, name, reason, dry_run, form)


def _whole_name(name: str) -> None:
    """Wrong usage where the tenant is missing: two tenants may have workers of one name."""
    if "/" not in name:
        wrong_usage(f"name the worker with its tenant, as TENANT/{name}: the tenant of its key, `default` at a `runway dev`")


@worker_app.command("drain")
def drain_worker(
    name: str = typer.Argument(help="tenant/worker_id"),
    reason: str = REASON,
    dry_run: bool = DRY_RUN,
    unseen: bool = UNSEEN,
    form: Form = FORM,
) -> None:
    """A worker process gets nothing new, and its attempts are asked to finish or to yield. None is killed."""
    _whole_name(name)
    _put(WORKER, name, DRAIN, reason, dry_run, unseen, form)


@worker_app.command("release")
def release_worker(
    name: str = typer.Argument(help="tenant/worker_id"), reason: str = REASON, dry_run: bool = DRY_RUN, form: Form = FORM
) -> None:
    """Undoes `worker drain`."""
    _whole_name(name)
    _release(WORKER, name, reason, dry_run, form)


@shard_app.command("hold")
def hold_shard(
    shard: int = typer.Argument(min=0, max=63),
    reason: str = REASON,
    drain: bool = ASK_LIVE,
    dry_run: bool = DRY_RUN,
    form: Form = FORM,
) -> None:
    """Nothing of a shard is granted until it is released; whoever leads it goes on leading it."""
    _put(SHARD, str(shard), DRAIN if drain else HOLD, reason, dry_run, False, form)


@shard_app.command("drain")
def drain_shards(
    shards: list[int] = typer.Argument(None, min=0, max=63, help="which; none: all that --member leads"),
    member: str = typer.Option("", help="the scheduler process that gives them up, by control address or id"),
    to: str = typer.Option("", help="the one that takes them; empty: the others share them"),
    reason: str = REASON,
    dry_run: bool = DRY_RUN,
    form: Form = FORM,
) -> None:
    """Hands shards over to another scheduler process, for a planned restart: work goes on there within moments."""

    async def work() -> int:
        from runway.scheduler.v1 import control_service_pb2 as pb

        if not shards and not member:
            wrong_usage("name shards, or the process that gives them up with --member")
        request = pb.DrainShardsRequest(
            shards=shards or [], member=member, to=to, reason=reason, actor=actor(), dry_run=dry_run
        )
        async with operators() as ask:
            moves = rows_of((await ask("DrainShards", request)).moves)
        if dry_run:
            say("dry run: nothing was handed over; this is what it would do")
        show_rows(moves, ["shard_id", "from_member", "to_member", "to_address", "done", "took"], form)
        return 0 if dry_run or all(move["done"] for move in moves) else 1

    run_async(work)


@shard_app.command("reset")
def reset_shards(
    etcd_lost: bool = typer.Option(False, "--etcd-lost", help="etcd was restored to an older state, or emptied"),
    reason: str = REASON,
    form: Form = FORM,
) -> None:
    """Lets leaders begin anew where shards refuse them because etcd lost its memory; for two minutes, kept with who and why."""

    async def work() -> None:
        from runway.scheduler.v1 import control_service_pb2 as pb

        async with operators() as ask:
            answer = await ask("ResetShards", pb.ResetShardsRequest(etcd_lost=True, reason=reason, actor=actor()))
        show_one(plain(answer), form)
        say("shards have leaders again within seconds: `runway shard list`")

    if not etcd_lost:
        wrong_usage("nothing but a lost etcd is a reason: say --etcd-lost")
    run_async(work)


@shard_app.command("release")
def release_shards(
    shards: list[int] = typer.Argument(None, min=0, max=63, help="which; none: all that were handed over"),
    reason: str = REASON,
    form: Form = FORM,
) -> None:
    """Undoes `shard drain` and, for shards that are named, `shard hold`."""

    async def work() -> None:
        from runway.scheduler.v1 import control_service_pb2 as pb

        named = shards or []
        async with operators() as ask:
            request = pb.ReturnShardsRequest(shards=named, reason=reason, actor=actor())
            back = set((await ask("ReturnShards", request)).shards)
            held = {
                hold.name
                for hold in (await ask("ListHolds", pb.ListHoldsRequest(kind=pb.HOLD_KIND_SHARD, page_size=500))).holds
            }
            freed = [shard for shard in named if str(shard) in held]
            for shard in freed:
                release = pb.ReleaseHoldRequest(kind=pb.HOLD_KIND_SHARD, name=str(shard), reason=reason, actor=actor())
                await ask("ReleaseHold", release)
        rows = [{"shard_id": s, "returned": s in back, "released": s in freed} for s in sorted(back | set(named))]
        show_rows(rows, ["shard_id", "returned", "released"], form)

    run_async(work)
