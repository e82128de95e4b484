"""Every RPC of all six services, in one process, fed nonsense: a typed refusal each time, nothing stored, and work goes on.

Can go wrong: nonsense that is accepted because it is none. A refused call must leave every table as it was; what was accepted
may store, but never break what comes after.
"""

import asyncio
import importlib
import os
import pkgutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import grpc
import pytest
import runway
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from runway.common.v1 import common_pb2, policy_pb2
from runway.gateway.v1 import bucket_service_pb2 as bu
from runway.gateway.v1 import bucket_service_pb2_grpc
from runway.internal.fence.v1 import lease_pb2
from runway.launch.v1 import launch_service_pb2 as la
from runway.launch.v1 import scope_service_pb2, scope_service_pb2_grpc
from runway.scheduler.v1 import control_service_pb2 as ct
from runway.scheduler.v1 import control_service_pb2_grpc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway_sdk import Client, Target

from libs.fence.claims import Claims
from libs.fence.token import Signer
from libs.rpc.status import DETAILS_KEY, refusal_of
from libs.runtime.host import Host
from libs.runtime.service import SERVICES
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import SECRET, make_key, running_host
from libs.testkit.waiting import wait_until
from tests.rpc.garbage import Noise
from tests.rpc.plausible import SPEC, good_requests

SEED = int(os.environ.get("RUNWAY_TEST_SEED", "20260111"))
ROUNDS = int(os.environ.get("RUNWAY_TEST_GARBAGE_ROUNDS", "8"))
ORDER = (
    "launch_service",
    "readiness",
    "scheduler_service",
    "worker_service",
    "scheduler",
    "gateway",
    "checkpoint",
    "reconciler",
)
"""A run is known before it is asked for; keys are revoked last."""
LONG_POLLS = ("ClaimAttempts", "WaitRun", "WaitRuns", "WaitEffect", "WatchRun", "InvokeTool", "Generate")
"""May outlast our patience: that is their purpose."""
VOLATILE = (
    "outbox",
    "share_use",
    "bucket_use",
    "worker",
    "shard",
    "shard_reset",
    "shard_reset_order",
    "signing_key",
    "gateway_process",
    "gate_notice",
    "dead_letter",
    "hold_ack",
)
"""Tables that live by themselves."""
HANDLER = "work.act@1"
EVERYTHING = ("admin", "automation", "reviewer", "operator", "auditor", "worker")
"""What a key may do that may do everything in its tenant."""
COUNT_TABLES = """-- the tests' own
select relname::text from pg_class join pg_namespace n on n.oid = relnamespace
 where n.nspname = current_schema() and relkind in ('r', 'p') and not relispartition order by 1
"""


@dataclass
class Target6:
    """Six services, one live attempt, and its owner's and a stranger's keys."""

    host: Host
    key: str
    stranger: str
    lease: wk.Lease
    other_run: str
    channels: dict[str, grpc.aio.Channel]
    stores: dict[str, asyncpg.Connection]

    def headers(self, key: str = "", token: bytes | None = None) -> list[tuple[str, str | bytes]]:
        return [
            ("authorization", f"Bearer {key or self.key}"),
            ("runway-lease-bin", self.lease.lease_token if token is None else token),
            ("runway-service-secret", SECRET),
        ]

    async def stored(self) -> dict[str, int]:
        """Rows of every table that changes only on request, once all that was accepted has reached every service."""
        counts: dict[str, int] = {}

        async def at_rest() -> bool:
            # An event leaves its outbox only when its receiver has committed it with what follows from it. One pass may miss
            # what went backwards while it read, so two passes must agree.
            nonlocal counts
            last, counts = counts, await self._count()
            waiting = sum(rows for table, rows in counts.items() if table.endswith(".outbox"))
            return waiting == 0 and counts == last

        await wait_until(at_rest, timeout_s=20, what="outboxes that are empty")
        return {table: rows for table, rows in counts.items() if table.partition(".")[2] not in VOLATILE}

    async def _count(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name, store in self.stores.items():
            for (table,) in await store.fetch(COUNT_TABLES):
                counts[f"{name}.{table}"] = await store.fetchval(f'select count(*) from "{table}"')
        return counts


def methods() -> Iterator[tuple[str, Any]]:
    """Every RPC of the services' packages: its path and descriptor. Whatever contract there is, also a new one."""
    pool = descriptor_pool.Default()
    contracts = [p.name for p in pkgutil.walk_packages(runway.__path__, "runway.") if p.name.endswith("_service_pb2")]
    public = [name for name in contracts if not name.startswith("runway.internal.")]
    for name in sorted(public, key=lambda name: (next((i for i, part in enumerate(ORDER) if part in name), len(ORDER)), name)):
        file = importlib.import_module(name)
        for service in pool.FindFileByName(file.DESCRIPTOR.name).services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method


@pytest.fixture
async def six(
    stack_db: StackDatabase,
    etcd_server: list[str],
    etcd_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Target6]:
    urls = await stack_db(SERVICES)
    monkeypatch.setenv("RUNWAY_SCHEDULER_ETCD_PREFIX", etcd_prefix)
    monkeypatch.setenv("RUNWAY_ETCD_ENDPOINTS", ",".join(etcd_server))
    monkeypatch.setenv("RUNWAY_CHECKPOINT_STORE", (tmp_path / "objects").as_uri())
    monkeypatch.setenv("RUNWAY_GATEWAY_DATA", str(tmp_path / "gateway"))
    async with running_host(SERVICES, urls, environ={"RUNWAY_ETCD_ENDPOINTS": ",".join(etcd_server)}) as host:
        key = await make_key(host, scopes=EVERYTHING)
        stranger = await make_key(host, tenant="stranger", scopes=EVERYTHING)
        channels = {
            port: grpc.aio.insecure_channel(getattr(host.addresses, port), options=[("grpc.enable_retries", 0)])
            for port in ("public", "control", "leaf")
        }
        stores = {name: await asyncpg.connect(url) for name, url in urls.items()}
        try:
            lease, other = await _work(host, key, stranger, channels["public"])
            yield Target6(host, key, stranger, lease, other, channels, stores)
        finally:
            for store in stores.values():
                await store.close()
            for channel in channels.values():
                await channel.close()


async def _work(host: Host, key: str, stranger: str, channel: grpc.aio.Channel) -> tuple[wk.Lease, str]:
    """A run of ours with a live attempt, one with a ready step, and a stranger's run."""
    async with Client(Target(host.addresses.public, stranger, host.addresses.control)) as client:
        await client._call(client._launch.PublishWorkflowVersion, la.PublishWorkflowVersionRequest(spec=SPEC))
        other = await client.launch("work")
    async with Client(Target(host.addresses.public, key, host.addresses.control)) as client:
        await client._call(client._launch.PublishWorkflowVersion, la.PublishWorkflowVersionRequest(spec=SPEC))
        await client.launch("work", {"a": 1})
    granted = await claim_one(channel, key)
    async with Client(Target(host.addresses.public, key, host.addresses.control)) as client:
        await client.launch("work", {"a": 2})
    return granted, other.run_id


async def claim_one(channel: grpc.aio.Channel, key: str, worker_id: str = "w") -> wk.Lease:
    """A lease of the workflow's step."""
    claim = channel.unary_unary(
        "/runway.scheduler.v1.WorkerService/ClaimAttempts",
        wk.ClaimAttemptsRequest.SerializeToString,
        wk.ClaimAttemptsResponse.FromString,
    )
    asked = wk.ClaimAttemptsRequest(claim_id=uuid4().bytes, worker_id=worker_id, slots=1, handlers=[HANDLER])
    async with asyncio.timeout(20):
        while True:
            try:
                answer = await claim(asked, metadata=[("authorization", f"Bearer {key}")], timeout=25)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                continue
            if answer.leases:
                granted: wk.Lease = answer.leases[0]
                return granted


def port_of(method: Any) -> str:
    """Where an RPC is served, by its policy."""
    asked = method.GetOptions().Extensions[policy_pb2.port]
    return {policy_pb2.PORT_CONTROL: "control", policy_pb2.PORT_LEAF: "leaf"}.get(asked, "public")


async def send(six: Target6, path: str, method: Any, wire: bytes, metadata: Any, long_poll_s: float = 0.25) -> tuple[str, Any]:
    """The code and the answer (the refusal, or the last message) of one call with these bytes."""
    answer_type = GetMessageClass(method.output_type)
    kind = ("stream" if method.client_streaming else "unary") + "_" + ("stream" if method.server_streaming else "unary")
    port = port_of(method)
    call_of = getattr(six.channels[port], kind)(path, bytes, answer_type.FromString)
    patience_s = long_poll_s if method.name in LONG_POLLS else 10
    call = call_of([wire] if method.client_streaming else wire, metadata=metadata, timeout=patience_s)
    try:
        if not method.server_streaming:
            return "OK", await call
        answer = None
        async for part in call:
            answer = part
        return "OK", answer
    except grpc.aio.AioRpcError as error:
        details = dict(error.trailing_metadata() or ())
        typed = DETAILS_KEY in details or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return error.code().name if typed else "UNKNOWN", refusal_of(error)


def item_errors(message: Any) -> Iterator[common_pb2.ItemError]:
    """Refusals of items in an answer."""
    for field, value in message.ListFields() if isinstance(message, Message) else ():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for nested in value if field.is_repeated else [value]:
            if isinstance(nested, common_pb2.ItemError):
                yield nested
            else:
                yield from item_errors(nested)


def judge(path: str, method: Any, code: str, answer: Any) -> str:
    """What is wrong with an answer to nonsense; empty: nothing."""
    bad = ("INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "UNAVAILABLE")
    if code in bad or (code == "DEADLINE_EXCEEDED" and method.name not in LONG_POLLS):
        return f"{path}: {code} {answer}"
    for error in item_errors(answer) if code == "OK" else ():
        if error.reason in ("INTERNAL", "AUTHORITY_UNREACHABLE", ""):
            return f"{path}: an item answered {error.reason} {error.message}"
    return ""


def payloads(noise: Noise, method: Any, good: list[Message]) -> Iterator[tuple[str, bytes]]:
    """Nonsense for one method, with a word about each."""
    request_type = GetMessageClass(method.input_type)
    yield "nothing", b""
    for _ in range(2):
        yield "raw bytes", noise.raw()
    for _ in range(ROUNDS // 2):
        yield "noise", noise.fill(request_type()).SerializeToString()
    for template in good:
        for _ in range(ROUNDS):
            spoilt = type(template)()
            spoilt.CopyFrom(template)
            yield noise.spoil_one(spoilt), spoilt.SerializeToString()
        yield from noise.strange_texts(template)
        for _ in range(3):
            yield "damaged", noise.cut(template)


async def all_serving(six: Target6) -> None:
    """Every service serves. The noise runs in the services' own loop and may have held it up past a session with etcd: then
    the scheduler says NOT_SERVING until it leads again, by itself."""
    check = health_pb2_grpc.HealthStub(six.channels["public"])
    for name in SERVICES:
        request = health_pb2.HealthCheckRequest(service=name)

        async def serving(request: health_pb2.HealthCheckRequest = request) -> bool:
            answer = await check.Check(request, timeout=5)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        await wait_until(serving, timeout_s=20, what=f"{name} that serves")


async def test_nonsense_is_refused_with_a_reason_and_stores_nothing(six: Target6) -> None:
    noise = Noise(
        SEED,
        (six.lease.run_id, six.other_run, "work", "work@1", "act", "http.request", "acme"),
        (six.lease.attempt_id, six.lease.lease_token, UUID(six.lease.run_id).bytes),
    )
    good = good_requests(six.lease, six.other_run)
    wrong: list[str] = []
    before = await six.stored()
    assert {method.name for _, method in methods()} == set(good), "each RPC has a request to spoil"
    for path, method in methods():
        accepted = 0
        for what, wire in payloads(noise, method, good.get(method.name, [])):
            code, answer = await send(six, path, method, wire, six.headers())
            problem = judge(path, method, code, answer)
            if problem:
                wrong.append(f"{what}: {problem} for {wire[:200].hex()}")
            accepted += code in ("OK", "DEADLINE_EXCEEDED")
        after = await six.stored()
        if not accepted and after != before:
            changed = {table: count for table, count in after.items() if count != before.get(table)}
            wrong.append(f"{path}: refused everything and stored {changed}")
        before = after
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
    await all_serving(six)
    await reopen(six)
    await asyncio.wait_for(work_goes_on(six), 20)


async def reopen(six: Target6) -> None:
    """Opens the owner again: among the noise may be a stop of it, a hold of its queue, or a bucket before what the step may call,
    that is quite right."""
    scopes = scope_service_pb2_grpc.ScopeServiceStub(six.channels["control"])
    kind = scope_service_pb2.SCOPE_KIND_TENANT
    request = scope_service_pb2.ReleaseScopeRequest(kind=kind, name="acme", reason="the noise is over", actor="tests")
    try:
        await scopes.ReleaseScope(request, metadata=six.headers())
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.NOT_FOUND, "it was not stopped"  # noqa: PT017
    control = control_service_pb2_grpc.ControlServiceStub(six.channels["control"])
    for hold in (await control.ListHolds(ct.ListHoldsRequest(), metadata=six.headers())).holds:
        release = ct.ReleaseHoldRequest(kind=hold.kind, name=hold.name, reason="the noise is over", actor="tests")
        await control.ReleaseHold(release, metadata=six.headers())
    buckets = bucket_service_pb2_grpc.BucketServiceStub(six.channels["control"])
    for bucket in (await buckets.ListBuckets(bu.ListBucketsRequest(), metadata=six.headers())).buckets:
        remove = bu.RemoveBucketRequest(name=bucket.name, reason="the noise is over", actor="tests")
        await buckets.RemoveBucket(remove, metadata=six.headers())


async def work_goes_on(six: Target6) -> None:
    """A new run gets its lease, its worker is listed, and its report is taken."""
    async with Client(Target(six.host.addresses.public, six.key, six.host.addresses.control)) as client:
        run = await client.launch("work@1", {"a": 3})
        found = ""
        while found != run.run_id:
            found = (await claim_one(six.channels["public"], six.key, "honest")).run_id

        async def listed() -> bool:
            return "honest" in [worker.worker_id for worker in await client.workers()]

        await wait_until(listed, timeout_s=10, what="a worker that is listed")


def bad_leases(six: Target6) -> Iterator[tuple[str, bytes]]:
    """Tokens that nobody granted, and what they are."""
    token = six.lease.lease_token
    said = lease_pb2.LeaseToken.FromString(token)
    claims = Claims.from_bytes(said.claims)
    yield "none", b""
    yield "half", token[: len(token) // 2]
    yield "noise", Noise(SEED).random.randbytes(200)
    yield "long", token + bytes(900)
    yield "forged by another key", bytes(Signer().sign(claims))
    for index in range(0, len(token), max(1, len(token) // 12)):
        changed = bytearray(token)
        changed[index] ^= 0x10
        yield f"altered at {index}", bytes(changed)
    stolen = lease_pb2.LeaseToken(claims=said.claims, signature=Signer().sign(claims)[-64:], key_id=said.key_id)
    yield "another signature under the real key's name", stolen.SerializeToString()


async def test_forged_altered_and_strangers_credentials_open_nothing(six: Target6) -> None:
    before = await six.stored()
    good = good_requests(six.lease, six.other_run)
    leased = ("InvokeTool", "Generate", "WaitEffect", "PutChunks", "FindMissingChunks", "CommitCheckpoint", "PutArtifact")
    wrong: list[str] = []
    for path, method in methods():
        wires = [request.SerializeToString() for request in good.get(method.name, [])] or [b""]
        tries: list[tuple[str, list[tuple[str, str | bytes]]]]
        if method.GetOptions().Extensions[policy_pb2.fence] == policy_pb2.FENCE_SERVICE:
            tries = [
                ("no secret", [("authorization", f"Bearer {six.key}")]),
                ("wrong", [("runway-service-secret", SECRET[:-1])]),
            ]
        else:
            keys = ("rk_", "rk_" + "x" * 40, "Bearer", six.key[:-1], six.key + "x", "rk_" + "y" * 5_000)
            bare = {key: [item for item in six.headers(key) if item[0] != "runway-service-secret"] for key in keys}
            tries = [(f"key {key[:6]}…", headers) for key, headers in bare.items()] + [("no key", [])]
        if method.name in leased:
            tries += [(f"lease {what}", six.headers(token=token)) for what, token in bad_leases(six)]
            tries += [("stranger", six.headers(six.stranger))]
        for what, metadata in tries:
            code, answer = await send(six, path, method, wires[0], metadata)
            if code not in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT"):
                wrong.append(f"{what}: {path}: {code} {answer}")
    for name in ("GetRun", "WatchRun", "WaitRun", "ListRunEvents", "ListSteps", "ListAttempts", "ListEffects", "GetArtifact"):
        path, method = next((path, method) for path, method in methods() if method.name == name)
        code, answer = await send(six, path, method, good[name][0].SerializeToString(), six.headers(six.stranger))
        if code != "NOT_FOUND":
            wrong.append(f"a stranger: {path}: {code} {answer}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
    assert await six.stored() == before
    await all_serving(six)
