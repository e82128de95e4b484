"""Launch runs: pin, admit, store, answer; once per request_id, after the commit.

One transaction stores idempotency receipt, run, reservation, event and outbox row. A repeat of a request_id reads what the
first one stored. Can go wrong: the answer is lost after the commit; then the repeat finds the receipt and gets the same run.
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from libs.kernel.epochs import make_epoch
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value
from services.launch.domain.admission import Fork, Launch, decide
from services.launch.domain.facts import FirstReceipt, Version
from services.launch.domain.run import Run
from services.launch.ports import Ports, Tx


@value(frozen=True, slots=True)
class LaunchAsk:
    """What a caller asked, parsed. 0 where unset; `request_digest` names the whole canonical request."""

    tenant: str
    project: str
    actor: str
    request_id: str
    request_digest: bytes
    version: Version
    input: bytes
    run_class: int
    priority: int
    deadline_in_ms: int
    budget_micros: int
    budget_tokens: int
    budget_given: bool
    labels: str
    traceparent: str = ""
    fork: Fork | None = None
    start_within_ms: int = 0
    granted: tuple[str, ...] | None = None
    """The grant of the run that it continues, perhaps less than the version's, or nothing; None: what the version grants."""


@value(frozen=True, slots=True)
class Launched:
    """The run, and whether an earlier call had made it."""

    run: Run
    replayed: bool


def receipt_key(ask: LaunchAsk) -> bytes:
    """Names a launch."""
    return key_of(ask.tenant, ask.request_id)


def key_of(tenant: str, request_id: str) -> bytes:
    """Tenant and request_id, so that tenants cannot meet."""
    return digest(f"{tenant}\x00{request_id}".encode())


def _launch(ports: Ports, ask: LaunchAsk, run_id: UUID, now_ms: int) -> Launch:
    limits = ports.limits
    deadline_in = ask.deadline_in_ms or ask.version.spec.default_deadline_ms or limits.default_deadline_ms
    return Launch(
        run_id=run_id,
        tenant=ask.tenant,
        project=ask.project,
        digest=ask.version.digest,
        workflow_name=ask.version.name,
        workflow_number=ask.version.number,
        build=ask.version.spec.build,
        points=ask.version.spec.points,
        capabilities=_granted(ask),
        run_class=ask.run_class,
        priority=ask.priority,
        deadline_ms=now_ms + deadline_in,
        budget_micros=ask.budget_micros if ask.budget_given else limits.default_budget_micros,
        budget_tokens=ask.budget_tokens if ask.budget_given else limits.default_budget_tokens,
        input=ask.input,
        labels=ask.labels,
        actor=ask.actor,
        traceparent=ask.traceparent,
        fork=ask.fork,
        start_by_ms=now_ms + ask.start_within_ms if ask.start_within_ms else 0,
    )


def _granted(ask: LaunchAsk) -> tuple[str, ...]:
    """What the version grants; of a run that continues another what that one was granted, and be it nothing."""
    if ask.granted is not None:
        return ask.granted
    return ask.version.spec.capabilities + ask.version.spec.rules(ask.version.digest.hex())


def check(ports: Ports, ask: LaunchAsk) -> None:
    """Refuses what no launch may ask."""
    if len(ask.input) > ports.limits.input_limit_bytes:
        raise Refusal(
            Reason.TOO_LARGE,
            f"input has {len(ask.input)} bytes, and {ports.limits.input_limit_bytes} are the most",
            field="input",
            remedy="store the data elsewhere and launch with its address",
        )
    if ask.deadline_in_ms < 0 or ask.deadline_in_ms > ports.limits.max_deadline_ms:
        raise invalid_field("deadline", f"must be between 0 and {ports.limits.max_deadline_ms} ms", "ask for less")
    if ask.start_within_ms < 0 or ask.start_within_ms > ports.limits.max_deadline_ms:
        raise invalid_field("start_within", f"must be between 0 and {ports.limits.max_deadline_ms} ms", "ask for less")
    if ask.budget_micros < 0:
        raise invalid_field("budget.micros", "is negative", "give 0 or more")
    if ask.budget_tokens < 0:
        raise invalid_field("budget.tokens", "is negative", "give 0 or more")


async def is_repeat(ports: Ports, ask: LaunchAsk) -> bool:
    """Whether an earlier call made a run from this very request."""
    if not ask.request_id:
        return False
    standing = (await ports.reads.receipts([receipt_key(ask)])).get(receipt_key(ask))
    return standing is not None and standing.request_digest == ask.request_digest


async def launch_runs(ports: Ports, asks: Sequence[LaunchAsk]) -> list[Launched | Refusal]:
    """Each launch's run, or why it was refused; in order. Equal request_ids in one batch are one launch."""
    now = ports.clock.now_ms()
    checked: list[LaunchAsk | Refusal] = []
    for ask in asks:
        try:
            check(ports, ask)
            checked.append(ask if ask.request_id else replace(ask, request_id=f"auto-{ports.ids.random128().hex}"))
        except Refusal as refusal:
            checked.append(refusal)
    first: dict[bytes, tuple[LaunchAsk, UUID]] = {}
    for item in checked:
        if isinstance(item, LaunchAsk):
            first.setdefault(receipt_key(item), (item, ports.ids.uuid7()))
    made = await _store(ports, first, now) if first else set()
    standing = await ports.reads.receipts([key for key in first if key not in made])
    run_of = {key: standing[key].run_id if key in standing else run_id for key, (_, run_id) in first.items()}
    runs = await ports.reads.runs(list(run_of.values()))
    answers: list[Launched | Refusal] = []
    given: set[bytes] = set()
    for item in checked:
        if isinstance(item, Refusal):
            answers.append(item)
            continue
        key = receipt_key(item)
        stored = standing[key].request_digest if key in standing else first[key][0].request_digest
        if stored != item.request_digest:
            answers.append(reused(item.request_id, item.request_digest, stored, run_of[key]))
            continue
        if run_of[key] not in runs:
            answers.append(forgotten(item.request_id, run_of[key]))
            continue
        answers.append(Launched(runs[run_of[key]], replayed=key not in made or key in given))
        given.add(key)
    return answers


def reused(request_id: str, asked: bytes, stored: bytes, run_id: UUID) -> Refusal:
    """Another request came under this request_id before."""
    return Refusal(
        Reason.REQUEST_ID_REUSED,
        f"request_id {request_id!r} made run {run_id} from another request",
        field="request_id",
        remedy="repeat the first request unchanged, or use a new request_id",
        detail={"digest": stored.hex(), "your_digest": asked.hex(), "run_id": str(run_id)},
    )


def forgotten(request_id: str, run_id: UUID) -> Refusal:
    """The request is known, and what it made is gone."""
    return Refusal(
        Reason.NOT_FOUND,
        f"request_id {request_id!r} made run {run_id}, which was dropped after its retention",
        field="request_id",
        remedy="use a new request_id to launch again",
        detail={"run_id": str(run_id)},
    )


async def _store(ports: Ports, first: dict[bytes, tuple[LaunchAsk, UUID]], now: int) -> set[bytes]:
    """Stores what wins its request_id; the keys that did."""
    receipts = [FirstReceipt(key, ask.request_digest, run_id) for key, (ask, run_id) in sorted(first.items())]

    async def work(tx: Tx) -> set[bytes]:
        won = await tx.take_receipts(receipts, now)
        if len(won) < len(receipts):
            await tx.prove()
        launches = [_launch(ports, *first[key], now) for key in first if key in won]
        if launches:
            accounts = await tx.lock_accounts(sorted({launch.tenant for launch in launches}))
            admitted = decide(accounts, launches)
            await tx.admit(admitted, tx.incarnation, now)
            await tx.note_forks([item.launch for item in admitted if item.launch.fork is not None], now)
            await tx.note_start_by([item.launch for item in admitted if item.launch.start_by_ms and item.denied is None])
            epoch = make_epoch(tx.incarnation, 1)
            await tx.send([ports.notices.launched(item, epoch, now) for item in admitted if item.denied is None], now)
        return won

    return await ports.db.run(work)
