"""Child runs of a step: spawned under its lease, once a slot; joined by a policy, while the step holds nothing.

Authoritative for nothing: launch judges a spawn, keeps it inside its parent's limits, and says what became of it. Can go
wrong: a spawn that is refused. It is told where the children are joined, as `refused`; a join that is not met raises
ChildrenFailed.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message
from runway.launch.v1 import launch_service_pb2, tree_service_pb2, tree_service_pb2_grpc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway.scheduler.v1 import worker_service_pb2_grpc

from runway_sdk.connection import Connection
from runway_sdk.errors import StepFailed, item_error_of
from runway_sdk.values import from_value, to_value
from runway_sdk.waiting import StepWaits, milliseconds

MOST_CHILDREN = 1_000
MOST_BYTES = 1_000_000
"""Of one command."""
_PAGE = 500
_RETRIED = frozenset({"attempt", "infrastructure", "transient"})
_OUTCOMES = {
    launch_service_pb2.RUN_STATE_SUCCEEDED: "succeeded",
    launch_service_pb2.RUN_STATE_FAILED: "failed",
    launch_service_pb2.RUN_STATE_CANCELLED: "cancelled",
    launch_service_pb2.RUN_STATE_EXPIRED: "expired",
}


@dataclass(frozen=True, slots=True)
class Child:
    """A child run to spawn. Its budget comes out of its parent's; unset limits are its parent's, or its workflow's."""

    workflow: str
    input: Any = None
    name: str = ""
    budget_micros: int = 0
    budget_tokens: int = 0
    capabilities: Sequence[str] | None = None
    priority: int | None = None
    deadline: timedelta | None = None

    def payload(self) -> dict[str, Any]:
        """As the command says it."""
        said: dict[str, Any] = {"workflow": self.workflow, "input": self.input}
        if self.name:
            said["name"] = self.name
        if self.budget_micros or self.budget_tokens:
            said["budget"] = {"micros": self.budget_micros, "tokens": self.budget_tokens}
        if self.capabilities is not None:
            said["capabilities"] = list(self.capabilities)
        if self.priority is not None:
            said["priority"] = self.priority
        if self.deadline is not None:
            said["deadline_ms"] = milliseconds(self.deadline)
        return said


@dataclass(frozen=True, slots=True)
class Children:
    """Children that were asked for: their group, and the slots of the commands that did."""

    group: str
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinPolicy:
    """How many must succeed, what a failure means (fail, count, ignore), what becomes of the rest (await, cancel); `warns`:
    whether children that it goes on without are told in the run's log."""

    need: int | str = "all"
    on_failure: str = "count"
    rest: str = "await"
    warns: bool = False


ALL = JoinPolicy("all", "count", "await")
FAIL_FAST = JoinPolicy("all", "fail", "cancel")
ANY = JoinPolicy(1, "count", "cancel")
COLLECT_PARTIAL = JoinPolicy("all", "ignore", "await")
BEST_EFFORT = JoinPolicy("all", "ignore", "await", warns=True)


def k_of_n(k: int) -> JoinPolicy:
    """So many must succeed; the rest is waited for."""
    return JoinPolicy(k, "count", "await")


def quorum(k: int) -> JoinPolicy:
    """So many must succeed; the rest is cancelled."""
    return JoinPolicy(k, "count", "cancel")


@dataclass(frozen=True, slots=True)
class ChildResult:
    """A child that was joined. `outcome`: succeeded, failed, cancelled or expired; empty while it still ends."""

    name: str
    run_id: str
    outcome: str
    output: Any
    failure: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """What came of children. `refused`: spawns that made none, each with slot, children, class, type and message."""

    met: bool
    total: int
    succeeded: int
    failed: int
    cancelled: int
    denied: int
    children: list[ChildResult]
    refused: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def outputs(self) -> dict[str, Any]:
        """Outputs of children that succeeded, by name."""
        return {child.name: child.output for child in self.children if child.outcome == "succeeded"}


class ChildrenFailed(StepFailed):
    """Too few children succeeded. `joined` says what came of each."""

    def __init__(self, joined: Joined) -> None:
        why, failure_class = "", "policy"
        if joined.refused:
            first = joined.refused[0]
            why, failure_class = f"; {first['type']}: {first['message']}", str(first["class"])
        failed = next((child for child in joined.children if child.failure), None)
        if failed is not None and failed.failure is not None and not why:
            why = f"; {failed.name}: {failed.failure['message']}"
        ended = f"{joined.succeeded} of {joined.total} children succeeded, {joined.failed} failed"
        text = f"{ended}, {joined.cancelled} were cancelled, {joined.denied} were never made{why}"
        # a further attempt would be told the same: never a class that is retried by default
        super().__init__(text[:1000], "policy" if failure_class in _RETRIED else failure_class, "CHILDREN_FAILED")
        self.joined = joined


class ChildContext(ABC):
    """What of a step's Context is about children."""

    run_id: str
    step_key: str
    _connection: Connection
    _waits: StepWaits

    @abstractmethod
    async def _leased(
        self, method: Callable[..., Awaitable[Any]], request: Any, call_s: float, end: float | None = None
    ) -> Any:
        """A call under the attempt's lease."""

    @abstractmethod
    def _token(self) -> bytes:
        """The lease's present token."""

    async def spawn(
        self,
        workflow: str,
        input: Any = None,
        *,
        group: str = "",
        independent: bool = False,
        slot: str = "",
        wait_for_budget: bool = False,
        **limits: Any,
    ) -> Children:
        """Starts one child run of a published workflow, once: a later attempt that comes here again gets the same.

        `limits`: name, budget_micros, budget_tokens, capabilities, priority, deadline (see `Child`). `wait_for_budget`: see
        `spawn_many`.
        """
        child = Child(workflow, input, **limits)
        slot = slot or self._waits.slot("spawn", "")
        return await self.spawn_many([child], group=group, independent=independent, slot=slot, wait_for_budget=wait_for_budget)

    async def spawn_many(
        self,
        children: Iterable[Child],
        *,
        group: str = "",
        independent: bool = False,
        slot: str = "",
        wait_for_budget: bool = False,
    ) -> Children:
        """Starts many child runs, by the thousand in a command; each command is judged whole.

        With `wait_for_budget` a command that this run's budget does not allow waits, and is obeyed once the budget was raised
        or children have given back what they did not use; a join of it waits as long. Else it is refused, as the join is told.
        """
        slot = self._waits.slot("spawn", slot)
        group = group or slot
        slots = []
        for number, part in enumerate(_parts([child.payload() for child in children])):
            name = f"{slot}/{number}" if number else slot
            payload = {"children": part, "group": group, "independent": independent}
            if wait_for_budget:
                payload["wait_for_budget"] = True
            await self._record(
                wk.CommandItem(slot=name, type=wk.COMMAND_TYPE_SPAWN, payload=to_value(payload, f"spawn {name}"))
            )
            slots.append(name)
        return Children(group, tuple(slots))

    async def _record(self, command: wk.CommandItem) -> None:
        """Durable when this returns; a repeat under the slot is the first one."""
        stub = self._connection.stub_of_control("scheduler", worker_service_pb2_grpc.WorkerServiceStub)

        async def record(_: Message, **kwargs: Any) -> None:
            asked = wk.AttemptCommands(lease_token=self._token(), commands=[command])
            answer = await stub.RecordCommands(wk.RecordCommandsRequest(attempts=[asked]), **kwargs)
            if not answer.results[0].recorded:
                raise item_error_of(answer.results[0].error)

        await self._leased(record, command, 30)

    async def join(self, *spawned: Children, policy: JoinPolicy = ALL, slot: str = "") -> Joined:
        """Waits for children without holding anything. Raises ChildrenFailed where the policy is not met.

        Of attempts that join under one slot, the first one's policy holds.
        """
        groups = list(dict.fromkeys(one.group for one in spawned))
        payload = {
            "groups": groups,
            "slots": list(dict.fromkeys(name for one in spawned for name in one.slots)),
            "need": policy.need,
            "on_failure": policy.on_failure,
            "rest": policy.rest,
        }
        if policy.warns:
            payload["warns"] = True
        answer = await self._waits.wait("children", self._waits.slot("join", slot), payload)
        told = answer.value
        children = [_told(child) for child in told["children"]]
        if not told["whole"]:
            children = [child for group in groups for child in await self._page(group)]
        counts = {name: int(told[name]) for name in ("total", "succeeded", "failed", "cancelled", "denied")}
        joined = Joined(met=told["met"], children=children, refused=told["refused"], **counts)
        if not joined.met:
            raise ChildrenFailed(joined)
        return joined

    async def _page(self, group: str) -> list[ChildResult]:
        """Every child of a group, where they were too many to be told at once."""
        stub = self._connection.stub("launch", tree_service_pb2_grpc.TreeServiceStub)
        found: list[ChildResult] = []
        request = tree_service_pb2.ListChildrenRequest(
            run_id=self.run_id, step_key=self.step_key, group=group, outputs=True, page_size=_PAGE
        )
        while True:
            answer = await self._connection.call(stub.ListChildren, request)
            found += [_listed(child) for child in answer.children]
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token


def _parts(payloads: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """As few commands as may be."""
    parts: list[list[dict[str, Any]]] = []
    size = MOST_BYTES
    for payload in payloads:
        weight = to_value(payload, "child").ByteSize()
        if not parts or len(parts[-1]) == MOST_CHILDREN or size + weight > MOST_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(payload)
        size += weight
    return parts


def _told(child: Mapping[str, Any]) -> ChildResult:
    return ChildResult(child["name"], child["run_id"], child["outcome"], child["output"], child.get("failure"))


def _listed(child: tree_service_pb2.Child) -> ChildResult:
    run = child.run
    failure = run.failure if run.HasField("failure") else None
    return ChildResult(
        child.name,
        run.run_id,
        _OUTCOMES.get(run.state, ""),
        from_value(run.output) if run.HasField("output") else None,
        {"class": failure.failure_class, "type": failure.type, "message": failure.message} if failure else None,
    )
