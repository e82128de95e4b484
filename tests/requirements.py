"""What the product promises so far: a stable id, the promise, and the source it comes from. Authoritative for the ids that
tests wear: `@pytest.mark.requirement(id)`. Every promise has a test and every such test a promise (tests/architecture says so).

Sources: 000 Runway Control, 001 control-plane workflows, 002 canonical run and execution model, 004 orchestration; `field`
where users of such systems expect it; `protocol` for the rules of the fencing protocol.
"""

from typing import NamedTuple


class Requirement(NamedTuple):
    """One promise."""

    promise: str
    source: str


REQUIREMENTS: dict[str, Requirement] = {
    "wf.validate": Requirement(
        "A workflow version is an immutable, validated graph of steps with contracts; every violation is listed; validate_only.",
        "000 002",
    ),
    "wf.pin": Requirement(
        "A run pins workflow version and worker build; an edit never changes a run in flight.", "000 002 004"
    ),
    "launch.once": Requirement(
        "Retrying a launch gives one run and one reservation, also under concurrency; another request under the key is refused.",
        "000 001 002",
    ),
    "launch.denied": Requirement(
        "A refusal by budget or quota is a stored denied run with its reason; nothing ran.", "004 001"
    ),
    "launch.after-commit": Requirement("A launch is answered only after its commit; no accepted run is ever lost.", "000 002"),
    "cmd.conditional": Requirement("Commands are idempotent and may be conditional on the expected version.", "000 002"),
    "run.states": Requirement("The run's state machine: each transition deduplicated, version-checked, logged.", "002 001 004"),
    "run.terminal": Requirement(
        "Terminal is immutable; success and cancel are decided by one compare-and-set; leases and effects are accounted for first.",
        "002",
    ),
    "run.events": Requirement("A gapless log per run; watching resumes from any sequence; no secret in it.", "002 004"),
    "run.abort": Requirement(
        "A cancel reaches calls under way where the provider supports it: model calls are cut, processes signalled; what may have "
        "happened is never called undone.",
        "000 002",
    ),
    "run.cancel": Requirement(
        "ACCEPTED, ENFORCED, QUIESCED with receipts and effects in flight; cannot be resurrected.", "000 002"
    ),
    "run.pause": Requirement(
        "Pause drains to a checkpoint and freezes the deadline; resume re-checks under a new epoch; also by step, tenant, project, tool "
        "and provider.",
        "002 field",
    ),
    "run.deadline": Requirement("Every run has a deadline; the default is a setting.", "004"),
    "run.expire": Requirement(
        "Queue, run, input, approval and pause deadlines end in expired, or as their own rule says, with the reason.", "002 004"
    ),
    "run.explain": Requirement(
        "Why a run or a step does not move: ordered blockers with a remedy each, its place, an estimate with its basis.",
        "field",
    ),
    "run.search": Requirement(
        "Runs are listed by state, project, workflow, class, labels, time and what they continue, in stable pages.", "field"
    ),
    "run.retry-fork": Requirement(
        "An ended run is begun again from a boundary as a new run that refers to it; what came before keeps what it gave.",
        "001 field",
    ),
    "run.lineage": Requirement(
        "What a run used and made, as JSON and OpenLineage: versions, effects, approvals, artifacts, cost; the same bytes each time.",
        "000 field",
    ),
    "dag.ready": Requirement(
        "A step is ready only when every configured condition holds; the same result under any order and repetition of events.",
        "000 002",
    ),
    "step.durable": Requirement("A crash resumes at the last completed step or checkpoint, never from the start.", "004"),
    "step.retry": Requirement(
        "Failures are retried by class with backoff inside the budget; policy never, uncertain never.", "001 000"
    ),
    "dag.expand": Requirement(
        "Bounded dynamic fan-out, sealed before its join is evaluated; over a cap it is refused whole.",
        "000",
    ),
    "dag.join": Requirement(
        "Joins by need, on_failure and rest, with presets; the same under any order; losers are revoked before a successor with "
        "effects runs.",
        "002",
    ),
    "dag.conditions": Requirement(
        "Branches on data by expression, checked when published, bounded, and never silently false.",
        "004",
    ),
    "step.wait": Requirement(
        "A step waits for time, event, approval, child or capacity without a lease: asked once per slot, woken once, at no cost.",
        "000 002",
    ),
    "run.input": Requirement("User input is asked once and answered once, by schema, with a deadline.", "002"),
    "fx.approval": Requirement(
        "A call that a rule names, and what a step asks of itself, needs an approval bound to exact content, policy, run and step: scoped, "
        "expiring, M of N, by neither requester nor owner, signed, used once; a new proposal makes it stale; break-glass with a reason.",
        "001 002",
    ),
    "child.bounded": Requirement(
        "A spawn intersects capabilities, slices the budget, and counts depth, fan-out and the tenant's descendants, behind the parent's "
        "lock; it cannot widen, promote or change tenant, and leaves no orphan beside a cancel.",
        "000 002",
    ),
    "child.approval": Requirement(
        "A child neither approves itself nor asks people by itself: what it asks stands under the root of its tree, whose log and "
        "explanation tell of it, and nobody decides it who launched the root or published a run on the way.",
        "002",
    ),
    "child.join": Requirement(
        "A parent waits for children under a join policy; cancel and failure propagate as declared; a child's output is validated "
        "before it is used.",
        "000 002",
    ),
    "gw.budget": Requirement(
        "Reserve, commit, refund inside the run's envelope: parallel calls and children cannot overspend it; at the cap a call that "
        "asks to wait waits, and goes on when the run's budget is raised.",
        "000 002",
    ),
    "money.settle": Requirement(
        "Settled at terminal, the rest released once, down the tree; adjusted later by append; variance is visible.", "001 002"
    ),
    "attempt.fenced": Requirement("Only the current epochs commit progress, checkpoint or effect.", "000"),
    "sched.claim": Requirement("A claim is a compare-and-set with a new epoch; at most one live lease a step.", "000"),
    "sched.fair": Requirement(
        "An interactive reserve; weighted shares over tenants, of the resource each takes most of; project and user quotas; "
        "priority, deadline, aging; started runs first.",
        "000",
    ),
    "sched.capability": Requirement(
        "Tickets go to workers that have the labels they require, stand in their region and have what they take free; what no "
        "worker has is explained, not stuck in silence.",
        "000",
    ),
    "sched.migration": Requirement(
        "Migrations are capped, borrow idle slots, and give them back at checkpoints when others wait; they are asked, never killed.",
        "000",
    ),
    "sched.simulate": Requirement(
        "Recorded tickets are replayed by the planner itself under changed shares, bounds or capacity, beside how it was.",
        "field",
    ),
    "slo.start": Requirement(
        "An interactive run starts at once where capacity exists, also under a flood: `make numbers` has p95 below 100 ms.",
        "000",
    ),
    "sched.flood": Requirement("One tenant's flood cannot take every slot.", "000"),
    "sched.bulkheads": Requirement(
        "Under overload bulk is shed first, with a time to come again; heartbeats, cancels and raises stay prompt, no lease expires,"
        " and no tenant's polls or tickets keep out another's.",
        "004",
    ),
    "sched.authority": Requirement("One epoch per shard, confirmed in the database; never two authorities.", "000"),
    "sched.buckets": Requirement(
        "Provider, model and tool buckets are seen by the scheduler: a ticket waits for them, no lease does.", "000 field"
    ),
    "sched.switch": Requirement(
        "Drain, hold and kill per shard, queue, worker, tenant, project, tool, provider: reason, dry run, who acts on it, release.",
        "000",
    ),
    "gw.rate": Requirement("Token buckets per provider, model and tool, with tenant shares.", "000"),
    "gw.fence": Requirement(
        "Every model and tool call checks scope, run and step fences in the intent's transaction.", "000 002"
    ),
    "fx.intent": Requirement(
        "Intent before call, receipt after; the slot is the identity; recorded answers replay.", "000 002"
    ),
    "fx.unknown": Requirement("Unknown is a state: looked up, else a person decides; never blindly repeated.", "000 002 001"),
    "cp.exact": Requirement(
        "A checkpoint names exact versions and boundary; signed, verified on write and restore.", "000 002"
    ),
    "cp.bytes": Requirement("Checkpoint bytes are content-addressed, compressed, delta against the previous.", "000"),
    "cp.corrupt": Requirement("A flipped byte, a missing chunk, a full disk: refused by type, nothing dangling.", "000"),
    "sec.tenant": Requirement(
        "Another tenant's thing is NOT_FOUND everywhere; every method says which roles may call it; keys are made once per "
        "request, expire and are revoked at once.",
        "000 002",
    ),
    "project.onboard": Requirement("Projects are onboarded, suspended and resumed; a suspended one launches nothing.", "001"),
    "sec.dataclass": Requirement("Tenant and data class are part of every object's key.", "000"),
    "art.store": Requirement("Artifacts by digest, streamed, size-limited, verified.", "000 002"),
    "ux.dev": Requirement("Two commands from nothing to a crash survived, no Docker, no key.", "field"),
    "ops.drills": Requirement(
        "Drills on real processes: traffic beside one fault, a recorded history, a model, a report with a verdict.", "000"
    ),
    "sec.secrets": Requirement("Secrets never reach logs, events, traces, checkpoints or error text.", "002"),
}
