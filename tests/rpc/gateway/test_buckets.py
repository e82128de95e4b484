"""Buckets over real gRPC: calls beyond them are refused before anything is stored, by every gateway together; kept with who and why."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from runway.gateway.v1 import bucket_service_pb2 as pb
from runway.gateway.v1 import bucket_service_pb2_grpc
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.internal.gateway.v1 import gateway_internal_pb2, gateway_internal_pb2_grpc
from runway_sdk.values import to_value

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.harness import SECRET, Attempt, Stack, asked, gateway_stack, refused
from tests.rpc.gateway.provider import Provider
from tests.rpc.gateway.test_effects import call

WHO = {"actor": "ops@example.org", "reason": "the provider's limit"}
TOOL = pb.BucketName(kind=pb.BUCKET_KIND_TOOL, name="http.request", unit=pb.BUCKET_UNIT_CALLS)
PROVIDER = pb.BucketName(kind=pb.BUCKET_KIND_PROVIDER, name="api", unit=pb.BUCKET_UNIT_CALLS)
TOKENS = pb.BucketName(kind=pb.BUCKET_KIND_MODEL, name="small", unit=pb.BUCKET_UNIT_TOKENS)


def operator(stack: Stack) -> Any:
    channel = open_channel(stack.host.addresses.control, secret=SECRET)
    stack._channels.append(channel)
    return bucket_service_pb2_grpc.BucketServiceStub(channel)


async def put(stack: Stack, name: pb.BucketName, capacity: int, per_minute: int = 0) -> pb.Bucket:
    request = pb.PutBucketRequest(name=name, capacity=capacity, per_minute=per_minute, **WHO)
    bucket: pb.Bucket = (await asked(operator(stack).PutBucket(request))).bucket
    return bucket


async def level(stack: Stack, name: pb.BucketName) -> float:
    found = await asked(operator(stack).ListBuckets(pb.ListBucketsRequest()))
    return next(float(bucket.level) for bucket in found.buckets if bucket.name == name)


async def outcome(call_: Awaitable[Any]) -> str:
    try:
        await call_
    except Refusal as no:
        return no.reason.value
    return "done"


@pytest.mark.requirement("gw.rate")
async def test_a_call_beyond_the_bucket_is_refused_and_nothing_is_stored(stack: Stack, provider: Provider) -> None:
    await put(stack, TOOL, 2, 30)
    attempt = stack.grant()
    await stack.tool(attempt, "http.request", call(), slot="a")
    await stack.tool(attempt, "http.request", call(), slot="b")
    no = await refused(stack.tool(attempt, "http.request", call(), slot="c"))
    assert (no.reason, no.detail["bucket"]) == (Reason.PROVIDER_SATURATED, "tool http.request (calls)")
    assert 1_000 < no.retry_after_ms <= 2_000
    assert [effect.slot for effect in await stack.ledger(attempt)] == ["a", "b"]
    assert len(provider.asked("/act")) == 2
    again = await stack.tool(attempt, "http.request", call(), slot="a")
    assert again.replayed, "what the ledger answers takes nothing"
    await operator(stack).RemoveBucket(pb.RemoveBucketRequest(name=TOOL, **WHO))
    await stack.tool(attempt, "http.request", call(), slot="c")


async def waiting(stack: Stack) -> float:
    stub = stack.host.peers.stub("gateway", gateway_internal_pb2_grpc.BucketViewServiceStub, port="control")
    (view,) = (await asked(stub.ReadBuckets(gateway_internal_pb2.ReadBucketsRequest()))).buckets
    return float(view.waiting)


@pytest.mark.requirement("sched.buckets")
async def test_calls_that_come_again_are_counted_once_until_they_have_what_they_want(stack: Stack) -> None:
    await put(stack, TOOL, 1, 30)
    attempt = stack.grant()
    await stack.tool(attempt, "http.request", call(), slot="a")
    for slot in ("b", "c", "b", "b"):
        assert await outcome(stack.tool(attempt, "http.request", call(), slot=slot)) == "PROVIDER_SATURATED"
    assert await waiting(stack) == 2
    await put(stack, TOOL, 100, 6_000)
    for slot in ("b", "c"):

        async def done(slot: str = slot) -> bool:
            return await outcome(stack.tool(attempt, "http.request", call(), slot=slot)) == "done"

        await wait_until(done, 5.0, what="a call once there is enough")
    assert await waiting(stack) == 0


@pytest.mark.requirement("gw.rate")
async def test_the_strictest_bucket_decides_and_the_others_get_theirs_back(stack: Stack) -> None:
    await put(stack, TOOL, 10)
    await put(stack, PROVIDER, 1)
    attempt = stack.grant()
    assert [await outcome(stack.tool(attempt, "http.request", call(), slot=slot)) for slot in "abcd"] == [
        "done",
        *["PROVIDER_SATURATED"] * 3,
    ]
    other = await outcome(stack.tool(attempt, "http.request", call(target="keyed"), slot="e"))
    assert other == "done", "another provider has no bucket of its own"

    async def given_back() -> bool:
        return await level(stack, TOOL) == 8.0

    await wait_until(given_back, 5.0, what="what was taken of the other bucket")


@pytest.mark.requirement("gw.rate")
async def test_two_gateways_never_make_more_calls_than_the_bucket_has(
    gateway_url: str, configured: None, provider: Provider
) -> None:
    async with gateway_stack(gateway_url) as one, gateway_stack(gateway_url, one.world) as other:
        await put(one, PROVIDER, 7)

        async def seen() -> bool:
            return await level(other, PROVIDER) == 7.0

        await wait_until(seen, 5.0, what="the bucket at the other gateway")
        calls = [outcome(stack.tool(one.grant(), "http.request", call())) for stack in [one, other] * 20]
        answers = await asyncio.gather(*calls)
        assert sorted(set(answers)) == ["PROVIDER_SATURATED", "done"]
        assert len(provider.asked("/act")) == 7
    async with gateway_stack(gateway_url) as third:
        assert await level(third, PROVIDER) == 0.0, "a restart fills nothing"


async def test_a_call_that_is_never_made_takes_nothing(stack: Stack, provider: Provider) -> None:
    await put(stack, TOOL, 3)
    denied = stack.grant(capabilities=["tool:git.push"])
    for _ in range(5):
        assert await outcome(stack.tool(denied, "http.request", call(), slot="x")) == "CAPABILITY_DENIED"
    attempt = stack.grant()
    for _ in range(5):
        assert await outcome(stack.tool(attempt, "http.request", call(target="nowhere"), slot="y")) == "AUTHORITY_UNREACHABLE"
    assert [await outcome(stack.tool(attempt, "http.request", call(), slot=s)) for s in "abcd"] == [
        "done",
        "done",
        "done",
        "PROVIDER_SATURATED",
    ]
    assert len(provider.asked("/act")) == 3


async def generate(stack: Stack, attempt: Attempt, slot: str, most: int) -> Any:
    body = to_value({"messages": [{"role": "user", "content": "hi"}], "max_tokens": most}, "body")
    return await asked(stack.gateway(attempt).Generate(gw.GenerateRequest(slot=slot, model="small", body=body)))


@pytest.mark.requirement("gw.rate")
async def test_tokens_that_a_call_did_not_use_go_back_and_what_it_used_beyond_is_owed(stack: Stack, provider: Provider) -> None:
    await put(stack, TOKENS, 1_000)
    attempt = stack.grant(models=["small"])
    usage = {"prompt_tokens": 10, "completion_tokens": 20}
    provider.answers["/v1/chat/completions"] = (200, {"choices": [], "usage": usage})
    assert [await outcome(generate(stack, attempt, slot, 700)) for slot in "ab"] == ["done", "done"]

    async def settled(units: float) -> bool:
        return await level(stack, TOKENS) == units

    await wait_until(lambda: settled(940.0), 5.0, what="the tokens that were not used")
    usage["completion_tokens"] = 1_490
    assert await outcome(generate(stack, attempt, "c", 900)) == "done"
    await wait_until(lambda: settled(-560.0), 5.0, what="the tokens beyond")
    assert await outcome(generate(stack, attempt, "d", 1)) == "PROVIDER_SATURATED"
    assert await outcome(stack.tool(attempt, "http.request", call(), slot="e")) == "done"


async def test_what_is_decided_is_kept_with_who_and_why(stack: Stack) -> None:
    stub = operator(stack)
    made = await put(stack, TOOL, 5, 60)
    assert (made.level, made.capacity, made.per_minute) == (5, 5, 60)
    stale = pb.PutBucketRequest(name=TOOL, capacity=9, per_minute=9, expected_version=0, **WHO)
    assert (await refused(stub.PutBucket(stale))).reason is Reason.VERSION_CONFLICT
    smaller = pb.PutBucketRequest(name=TOOL, capacity=2, per_minute=0, expected_version=made.version, **WHO)
    assert (await asked(stub.PutBucket(smaller))).bucket.level == 2
    weighed = await asked(stub.PutBucketWeight(pb.PutBucketWeightRequest(name=TOOL, tenant="acme", weight=4, **WHO)))
    assert [(t.tenant, t.weight) for t in weighed.bucket.tenants] == [("acme", 4)]
    await asked(stub.RemoveBucket(pb.RemoveBucketRequest(name=TOOL, **WHO)))
    for gone in (
        stub.RemoveBucket(pb.RemoveBucketRequest(name=TOOL, **WHO)),
        stub.PutBucketWeight(pb.PutBucketWeightRequest(name=TOOL, tenant="acme", weight=4, **WHO)),
    ):
        assert (await refused(gone)).reason is Reason.NOT_FOUND
    changes = (await asked(stub.ListBucketChanges(pb.ListBucketChangesRequest()))).changes
    assert [(c.tenant, bool(c.former), bool(c.became)) for c in changes] == [
        ("", True, False),
        ("acme", False, True),
        ("", True, True),
        ("", False, True),
    ]
    assert {(c.actor, c.reason) for c in changes} == {(WHO["actor"], WHO["reason"])}
    page = await asked(stub.ListBucketChanges(pb.ListBucketChangesRequest(before_version=changes[0].version, page_size=1)))
    assert list(page.changes) == [changes[1]]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.PutBucketRequest(name=TOOL, capacity=0, **WHO), "capacity"),
        (pb.PutBucketRequest(name=TOOL, capacity=1, per_minute=-1, **WHO), "per_minute"),
        (pb.PutBucketRequest(name=TOOL, capacity=1, actor="x", reason=" "), "reason"),
        (pb.PutBucketRequest(name=pb.BucketName(kind=1, name="t", unit=2), capacity=1, **WHO), "unit"),
        (pb.PutBucketRequest(name=pb.BucketName(name="t", unit=1), capacity=1, **WHO), "kind"),
        (pb.PutBucketRequest(capacity=1, **WHO), "name"),
        (pb.PutBucketRequest(name=pb.BucketName(kind=1, name="a\nb", unit=1), capacity=1, **WHO), "name"),
        (pb.PutBucketWeightRequest(name=TOOL, tenant="a", weight=0, **WHO), "weight"),
        (pb.PutBucketWeightRequest(name=TOOL, tenant="", weight=1, **WHO), "tenant"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_no_bucket_can_be_is_refused_and_changes_nothing(stack: Stack, request_: Any, field: str) -> None:
    stub = operator(stack)
    method = stub.PutBucket if isinstance(request_, pb.PutBucketRequest) else stub.PutBucketWeight
    no = await refused(method(request_))
    assert no.reason is Reason.INVALID_FIELD
    assert field in f"{no.field} {no.message} {no.detail}"
    assert not (await asked(stub.ListBuckets(pb.ListBucketsRequest()))).buckets
