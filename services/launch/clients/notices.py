"""Builds the events that launch sends; protobuf stays at the edge. Implements `ports.Notices`.

Every event carries the trace of the work that caused it.
"""

from dataclasses import replace
from uuid import UUID

from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2

from libs.kernel.epochs import Mode
from libs.kernel.ids import IdSource
from libs.telemetry.traces import traceparent
from services.launch.domain.admission import Admitted
from services.launch.domain.adopting import Adopted, Orphan
from services.launch.domain.children import BudgetWait, JoinedFacts, SliceBack
from services.launch.domain.closing import Decided
from services.launch.domain.facts import Notice
from services.launch.domain.joining import Join, JoinKey
from services.launch.domain.pausing import Moved
from services.launch.domain.run import RunHead, mode_of
from services.launch.domain.spawning import Child, HeldSpawn, SpawnAsk
from services.launch.domain.workflow import POINT_NAMES
from services.launch.translate_children import budget_result, join_result, plain_bytes, spawn_ask

RAISE = "raise_fences"


def gate_message(decided: Decided) -> fence_pb2.RunGate:
    """The gate that closes a run."""
    return _gate(decided.head, decided.epoch, Mode.CLOSED, decided.closing.outcome)


def moved_gate(moved: Moved) -> fence_pb2.RunGate:
    """The gate of a paused or resumed run."""
    return _gate(moved.head, moved.epoch, moved.mode, "")


def open_gate(head: RunHead) -> fence_pb2.RunGate:
    """The gate of a run as it is."""
    return _gate(head, head.epoch, mode_of(head.state), head.outcome)


def _gate(head: RunHead, epoch: int, mode: Mode, outcome: str) -> fence_pb2.RunGate:
    return fence_pb2.RunGate(
        run_id=head.run_id.bytes,
        epoch=epoch,
        mode=fence_pb2.Mode.ValueType(int(mode)),
        outcome=outcome,
        capabilities=head.capabilities,
        granted_micros=head.budget_micros,
        envelope_sequence=head.budget_sequence,
        tenant=head.tenant,
        project=head.project,
    )


class EventNotices:
    """Implements `ports.Notices`."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    def _event(self, run_id: UUID, kind: str, receiver: str, now_ms: int, trace: str = "", **fact: object) -> Notice:
        event = events_pb2.Event(
            event_id=self._ids.random128().bytes,
            at_ms=now_ms,
            traceparent=trace or traceparent(),
            **fact,  # type: ignore[arg-type]
        )
        return Notice(receiver, kind, run_id, event.SerializeToString())

    def launched(self, admitted: Admitted, epoch: int, now_ms: int) -> Notice:
        """RunLaunched."""
        launch = admitted.launch
        fact = events_pb2.RunLaunched(
            run_id=launch.run_id.bytes,
            tenant=launch.tenant,
            project=launch.project,
            workflow_digest=launch.digest,
            build=launch.build,
            run_class=launch.run_class,
            priority=launch.priority,
            deadline_ms=launch.deadline_ms,
            input=launch.input,
            epoch=epoch,
            capabilities=launch.capabilities,
            launched_by=launch.actor.removeprefix("key:"),
            fork_of=launch.fork.of.bytes if launch.fork else b"",
            fork_from=launch.fork.from_steps if launch.fork else (),
        )
        return self._event(launch.run_id, "run_launched", "readiness", now_ms, launch.traceparent, run_launched=fact)

    def spawn_again(self, held: HeldSpawn) -> SpawnAsk:
        """From the command's payload."""
        run_id, step_key, slot = held.key
        said = events_pb2.CommandRecorded(run_id=run_id.bytes, step_key=step_key, slot=slot, payload=held.payload)
        return spawn_ask(said)

    def spawned(self, parent: RunHead, child: Child, epoch: int, now_ms: int) -> Notice:
        """RunLaunched of a child: tenant, project and class are its parent's."""
        fact = events_pb2.RunLaunched(
            run_id=child.run_id.bytes,
            tenant=parent.tenant,
            project=parent.project,
            workflow_digest=child.version.digest,
            build=child.version.spec.build,
            run_class=parent.run_class,
            priority=child.priority,
            deadline_ms=child.deadline_ms,
            input=child.asked.input,
            epoch=epoch,
            capabilities=child.capabilities,
            launched_by=parent.launched_by,
            root_run_id=(parent.root_id or parent.run_id).bytes,
        )
        return self._event(child.run_id, "run_launched", "readiness", now_ms, run_launched=fact)

    def slice_back(self, item: SliceBack, now_ms: int) -> Notice:
        """SliceReturned."""
        fact = events_pb2.SliceReturned(run_id=item.parent_id.bytes, delegation=item.delegation, spent_micros=item.spent)
        return self._event(item.parent_id, "slice_returned", "gateway", now_ms, slice_returned=fact)

    def joined(self, joined: JoinedFacts, now_ms: int) -> Notice:
        """CommandAnswered of a join."""
        return self._answered(joined.join.key, events_pb2.COMMAND_KIND_JOIN, now_ms, join_result(joined), "launch")

    def refused_join(self, join: Join, problem: str, now_ms: int) -> Notice:
        """CommandAnswered of a join that cannot be read."""
        return self._answered(join.key, events_pb2.COMMAND_KIND_JOIN, now_ms, b"", problem, refused=True)

    def budget_told(self, wait: BudgetWait, micros: int, now_ms: int) -> Notice:
        """CommandAnswered of a wait for a greater budget."""
        key = (wait.run_id, wait.step_key, wait.slot)
        result = budget_result(micros, wait.sequence)
        return self._answered(key, events_pb2.COMMAND_KIND_BUDGET, now_ms, result, "launch")

    def _answered(
        self,
        key: JoinKey,
        kind: events_pb2.CommandKind.ValueType,
        now_ms: int,
        result: bytes,
        by: str,
        *,
        refused: bool = False,
    ) -> Notice:
        run_id, step_key, slot = key
        fact = events_pb2.CommandAnswered(
            run_id=run_id.bytes,
            step_key=step_key,
            slot=slot,
            kind=kind,
            refused=refused,
            result=result,
            by=by,
            at_ms=now_ms,
        )
        return self._event(run_id, "command_answered", "readiness", now_ms, command_answered=fact)

    def envelope(self, head: RunHead, micros: int, sequence: int) -> Notice:
        """The gate as it is, with another envelope."""
        gate = open_gate(head)
        gate.granted_micros, gate.envelope_sequence = micros, sequence
        raised = fence_pb2.RaiseFencesRequest(service="gateway", gates=[gate])
        return Notice("gateway", RAISE, head.run_id, raised.SerializeToString())

    def plain(self, value: bytes) -> object:
        """A serialized Value as Python data."""
        return plain_bytes(value)

    def closing(self, decided: Decided, now_ms: int) -> list[Notice]:
        """One raise per point, and RunClosing where readiness did not report the end itself."""
        run_id = decided.head.run_id
        gate = gate_message(decided)
        notices = [
            Notice(name, RAISE, run_id, fence_pb2.RaiseFencesRequest(service=name, gates=[gate]).SerializeToString())
            for bit, name in POINT_NAMES.items()
            if decided.head.points & bit
        ]
        if decided.closing.actor != "readiness":
            fact = events_pb2.RunClosing(run_id=run_id.bytes, epoch=decided.epoch, outcome=decided.closing.outcome)
            notices.append(self._event(run_id, "run_closing", "readiness", now_ms, run_closing=fact))
        return notices

    def moved(self, moved: Moved) -> list[Notice]:
        """The gate at every point that the run touches."""
        gate = moved_gate(moved)
        return self._everywhere(moved.head.run_id, gate, moved.head.points, 0, closing=False)

    def adopted(self, adopted: Adopted, now_ms: int) -> list[Notice]:
        """The gate anew at every point; RunClosing for readiness where there is an outcome."""
        head = replace(adopted.head, capabilities=adopted.grant)
        gate = _gate(head, adopted.epoch, mode_of(adopted.state), adopted.outcome)
        return self._everywhere(head.run_id, gate, head.points, now_ms, closing=bool(adopted.outcome))

    def orphaned(self, orphan: Orphan, now_ms: int) -> list[Notice]:
        """Closes it at every point."""
        closed = fence_pb2.Mode.ValueType(int(Mode.CLOSED))
        gate = fence_pb2.RunGate(run_id=orphan.run_id.bytes, epoch=orphan.epoch, mode=closed, outcome="cancelled")
        return self._everywhere(orphan.run_id, gate, sum(POINT_NAMES), now_ms, closing=True)

    def _everywhere(self, run_id: UUID, gate: fence_pb2.RunGate, points: int, now_ms: int, *, closing: bool) -> list[Notice]:
        notices = [
            Notice(name, RAISE, run_id, fence_pb2.RaiseFencesRequest(service=name, gates=[gate]).SerializeToString())
            for bit, name in POINT_NAMES.items()
            if points & bit
        ]
        if closing:
            fact = events_pb2.RunClosing(run_id=run_id.bytes, epoch=gate.epoch, outcome=gate.outcome)
            notices.append(self._event(run_id, "run_closing", "readiness", now_ms, run_closing=fact))
        return notices
