"""`runway bucket …` for operators: rate limits of providers, models and tools. Every change wants a reason."""

from typing import TYPE_CHECKING, Any

import typer

from libs.cli.operating import actor, operators
from libs.cli.output import FORM, Form, rows_of, run_async, show_one, show_rows, wrong_usage

if TYPE_CHECKING:
    from runway.gateway.v1 import bucket_service_pb2 as pb

bucket_app = typer.Typer(help="Rate limits of providers, models and tools.", no_args_is_help=True)
KIND = typer.Argument(help="tool, model or provider")
NAME = typer.Argument(help="its name")
UNIT = typer.Option("calls", "--unit", help="calls, or tokens (of models)")
REASON = typer.Option(..., "--reason", help="why, for whoever looks at this later")
EXPECTED = typer.Option(None, "--expected-version", help="only if it still has this version")
COLUMNS = ["kind", "name", "unit", "level", "capacity", "per_minute", "tenants", "version"]


@bucket_app.command("list")
def list_buckets(form: Form = FORM) -> None:
    """Every bucket: what is in it now, what flows in, who took from it lately."""

    async def work() -> None:
        from runway.gateway.v1 import bucket_service_pb2 as pb

        async with operators("buckets") as ask:
            answer = await ask("ListBuckets", pb.ListBucketsRequest())
        show_rows([_row(bucket) for bucket in answer.buckets], COLUMNS, form)

    run_async(work)


@bucket_app.command("put")
def put_bucket(
    kind: str = KIND,
    name: str = NAME,
    per_minute: int = typer.Option(..., help="units that flow in a minute"),
    capacity: int = typer.Option(None, help="the largest burst; unset: what flows in a second, at least 1"),
    unit: str = UNIT,
    expected: int = EXPECTED,
    reason: str = REASON,
    form: Form = FORM,
) -> None:
    """Makes or changes a bucket; in force in every gateway within a second."""

    async def work() -> None:
        from runway.gateway.v1 import bucket_service_pb2 as pb

        request = pb.PutBucketRequest(
            name=_name(kind, name, unit),
            capacity=max(1, per_minute // 60) if capacity is None else capacity,
            per_minute=per_minute,
            actor=actor(),
            reason=reason,
            **_expected(expected),
        )
        async with operators("buckets") as ask:
            show_one(_row((await ask("PutBucket", request)).bucket), form)

    run_async(work)


@bucket_app.command("remove")
def remove_bucket(
    kind: str = KIND, name: str = NAME, unit: str = UNIT, expected: int = EXPECTED, reason: str = REASON, form: Form = FORM
) -> None:
    """Takes a bucket away: calls are not bounded by it any more."""

    async def work() -> None:
        from runway.gateway.v1 import bucket_service_pb2 as pb

        request = pb.RemoveBucketRequest(name=_name(kind, name, unit), actor=actor(), reason=reason, **_expected(expected))
        async with operators("buckets") as ask:
            show_one({"removed": f"{kind} {name} ({unit})", "version": (await ask("RemoveBucket", request)).version}, form)

    run_async(work)


@bucket_app.command("weight")
def put_weight(
    kind: str = KIND,
    name: str = NAME,
    tenant: str = typer.Argument(help="the tenant"),
    weight: int = typer.Argument(help="among tenants that want at the same time, from 1"),
    unit: str = UNIT,
    reason: str = REASON,
    form: Form = FORM,
) -> None:
    """Changes a tenant's part of a bucket."""

    async def work() -> None:
        from runway.gateway.v1 import bucket_service_pb2 as pb

        request = pb.PutBucketWeightRequest(
            name=_name(kind, name, unit), tenant=tenant, weight=weight, actor=actor(), reason=reason
        )
        async with operators("buckets") as ask:
            bucket = (await ask("PutBucketWeight", request)).bucket
        show_one({**_named(bucket.name), "tenant": tenant, "weight": _weight(bucket, tenant), "version": bucket.version}, form)

    run_async(work)


@bucket_app.command("changes")
def changes(form: Form = FORM) -> None:
    """Who changed which bucket, when, from what to what, and why; newest first."""

    async def work() -> None:
        from runway.gateway.v1 import bucket_service_pb2 as pb

        async with operators("buckets") as ask:
            answer = await ask("ListBucketChanges", pb.ListBucketChangesRequest(page_size=500))
        rows = [row | _named(change.name) for row, change in zip(rows_of(answer.changes), answer.changes, strict=True)]
        columns = ["version", "kind", "name", "unit", "tenant", "changed_at", "actor", "reason", "former", "became"]
        show_rows(rows, columns, form)

    run_async(work)


def _expected(version: int | None) -> dict[str, Any]:
    return {} if version is None else {"expected_version": version}


def _name(kind: str, name: str, unit: str) -> "pb.BucketName":
    from runway.gateway.v1 import bucket_service_pb2 as pb

    kinds = {"tool": pb.BUCKET_KIND_TOOL, "model": pb.BUCKET_KIND_MODEL, "provider": pb.BUCKET_KIND_PROVIDER}
    units = {"calls": pb.BUCKET_UNIT_CALLS, "tokens": pb.BUCKET_UNIT_TOKENS}
    if kind not in kinds:
        wrong_usage(f"{kind!r} is no kind of bucket: give tool, model or provider")
    if unit not in units:
        wrong_usage(f"{unit!r} is no unit: give calls or tokens")
    return pb.BucketName(kind=kinds[kind], name=name, unit=units[unit])


def _named(name: "pb.BucketName") -> dict[str, str]:
    from runway.gateway.v1 import bucket_service_pb2 as pb

    kind, unit = pb.BucketKind.Name(name.kind), pb.BucketUnit.Name(name.unit)
    return {
        "kind": kind.removeprefix("BUCKET_KIND_").lower(),
        "name": name.name,
        "unit": unit.removeprefix("BUCKET_UNIT_").lower(),
    }


def _weight(bucket: "pb.Bucket", tenant: str) -> int | None:
    return next((one.weight for one in bucket.tenants if one.tenant == tenant), None)


def _row(bucket: "pb.Bucket") -> dict[str, Any]:
    tenants = [f"{t.tenant} {t.taken:.1f}{' over its part' if t.over else ''}" for t in bucket.tenants]
    return _named(bucket.name) | {
        "level": round(bucket.level, 1),
        "capacity": bucket.capacity,
        "per_minute": bucket.per_minute,
        "tenants": ", ".join(tenants),
        "version": bucket.version,
    }
