"""Authoritative for every metric of the product: its name, unit, labels and meaning. A metric that is not here does not exist.

Names carry their unit (`_seconds`, `_bytes`, `_total` for counts). Labels are few and bounded: methods, codes, service
names, states; never a run, a step or a free text. Labels of tenants are bounded by the number of tenants.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry(auto_describe=True)
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
_SLOW = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def _counter(name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"runway_{name}", meaning, labels, registry=REGISTRY)


def _gauge(name: str, meaning: str, *labels: str) -> Gauge:
    return Gauge(f"runway_{name}", meaning, labels, registry=REGISTRY)


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"runway_{name}", meaning, labels, registry=REGISTRY, buckets=buckets)


# Calls and batches
RPC_CALLS = _counter("rpc_calls_total", "Calls answered, by method and gRPC code.", "method", "code")
RPC_REFUSALS = _counter("rpc_refusals_total", "Calls refused with a typed reason.", "method", "reason")
RPC_SECONDS = _histogram("rpc_seconds", "Time from a call's admission to its answer.", _FAST, "method")
RPC_SHED = _counter("rpc_shed_total", "Calls sent away with OVERLOADED.", "port", "criticality", "bound")
RPC_WAITING = _gauge("rpc_waiting", "Calls that wait for a place, by port and criticality.", "port", "criticality")
RPC_PLACES = _gauge("rpc_places_open", "Calls that may be under way at once; fewer while the event loop is late.", "port")
RPC_LASTING = _gauge("rpc_lasting_open", "Long polls and streams that are open, by port and method.", "port", "method")
RPC_IN_FLIGHT = _gauge("rpc_in_flight", "Calls being handled now, by port.", "port")
BATCH_ITEMS = _histogram("batch_items", "Calls that shared one batch.", _SIZES, "batcher")
BATCH_SECONDS = _histogram("batch_seconds", "Time one batch took in its handler.", _FAST, "batcher")
BATCH_WAITING = _gauge("batch_waiting_items", "Calls waiting for the next batch.", "batcher")
CALLER_CACHE = _counter("caller_cache_total", "Look-ups of API keys: hit, miss, unknown, or stale (authority away).", "result")

# The process
LOOP_FAILURES = _counter("loop_failures_total", "Times a supervised loop failed and was restarted.", "loop")
LOOP_LAG_SECONDS = _gauge("event_loop_lag_seconds", "How late the event loop ran its last timer.")
SERVICE_HEALTHY = _gauge("service_healthy_ratio", "1 while a hosted service can work, 0 while it cannot.", "service")

# The database and the outbox
DB_SECONDS = _histogram("db_statement_seconds", "Time of one statement, by its name.", _FAST, "service", "statement")
DB_UNREACHABLE = _counter("db_unreachable_total", "Times the database did not answer.", "service")
OUTBOX_PENDING = _gauge("outbox_pending_rows", "Rows committed, not acknowledged, as the relay knows.", "service", "receiver")
OUTBOX_SENT = _counter("outbox_sent_total", "Rows sent, by what became of them.", "service", "receiver", "verdict")
OUTBOX_DEAD = _gauge("outbox_dead_letter_rows", "Refused rows that wait for a person: an alarm.", "service")
OUTBOX_AGE_SECONDS = _gauge("outbox_oldest_seconds", "Age of the oldest row not acknowledged.", "service")
INBOX_EVENTS = _counter("inbox_events_total", "Events received, by what became of them.", "service", "verdict")

# Fences
FENCE_RAISES = _counter("fence_raises_total", "Fences raised here, by kind and whether committed.", "service", "kind", "result")
FENCE_VERDICTS = _counter("fence_verdicts_total", "Judgements of the fence statements, by verdict.", "service", "verdict")
FENCE_COLD_READS = _counter("fence_cold_reads_total", "Cold reads of gates and step fences, by result.", "service", "result")
FENCE_COLD_SECONDS = _histogram("fence_cold_read_seconds", "Time of one cold read.", _FAST, "service")
ZOMBIES_REFUSED = _counter("zombies_refused_total", "Calls of attempts that no longer hold their step.", "service")

# Runs
RUNS_LAUNCHED = _counter("runs_launched_total", "Launches decided, by class and answer.", "run_class", "answer")
RUNS_ENDED = _counter("runs_ended_total", "Runs that became terminal, by outcome.", "outcome")
RUNS_LIVE = _gauge("runs_live", "Runs that are not terminal, by state.", "state")
START_SECONDS = _histogram("start_seconds", "Time from a run's acceptance to its first lease.", _SLOW, "run_class")
RUN_SECONDS = _histogram("run_seconds", "Time from acceptance to the decided outcome.", _SLOW, "run_class", "outcome")
CANCEL_ENFORCED_SECONDS = _histogram("cancel_enforced_seconds", "Time from ACCEPTED to ENFORCED.", _FAST)
STEPS_ENDED = _counter("steps_ended_total", "Steps that became terminal, by state.", "state")
STEP_RETRIES = _counter("step_retries_total", "Attempts that follow an ended one, by failure class.", "failure_class")

# Scheduling
TICKETS_WAITING = _gauge("tickets_waiting", "Ready steps that wait for a worker.", "run_class")
TICKET_AGE_SECONDS = _gauge("ticket_oldest_seconds", "Age of the oldest ticket.", "run_class")
TICKETS_TURNED_AWAY = _counter("tickets_turned_away_total", "Tickets not taken now: enough of the tenant's wait.", "tenant")
GRANTS = _counter("grants_total", "Leases granted, by class.", "run_class")
LEASES_LIVE = _gauge("leases_live", "Live leases of the shards led here.")
LEASES_ENDED = _counter("leases_ended_total", "Leases ended, by how.", "end")
HEARTBEATS = _counter("heartbeats_total", "Heartbeats received, by answer.", "answer")
SHARDS_LED = _gauge("shards_led", "Shards that this process leads.")
TAKEOVERS = _counter("shard_takeovers_total", "Shards taken over, by result.", "result")
TAKEOVER_SECONDS = _histogram("shard_takeover_seconds", "Time from election to serving.", _SLOW)
CLAIM_CYCLE_SECONDS = _histogram("claim_cycle_seconds", "Time of one claim cycle with its commit.", _FAST)
SWEEPS_HELD = _counter("expiry_sweeps_held_total", "Expiry sweeps held once on evidence against ourselves.")

# Effects, checkpoints, cases
EFFECTS = _counter("effects_total", "Effects by tool and where their dispatch ended.", "tool", "state")
EFFECT_SECONDS = _histogram("effect_seconds", "Time of the call to the outside.", _SLOW, "tool")
EFFECTS_ABORTED = _counter("effects_aborted_total", "Calls cut because their run was closed.", "tool")
EFFECTS_REPLAYED = _counter("effects_replayed_total", "Answers given from the ledger without a call.", "tool")
BUCKET_REFUSALS = _counter("bucket_refusals_total", "Calls refused because a bucket had too little.", "kind", "unit")
DUPLICATE_EFFECTS = _counter("duplicate_effects_total", "Two successes on one slot: an alarm.", "tool")
CHECKPOINTS = _counter("checkpoints_total", "Checkpoint manifests, by answer.", "answer")
CHECKPOINT_BYTES = _counter("checkpoint_bytes_total", "Bytes of chunks: logical, or stored after compression.", "kind")
CASES_OPEN = _gauge("cases_open", "Unknown effects not resolved yet, by who must act.", "state")
CASES_RESOLVED = _counter("cases_resolved_total", "Cases resolved, by answer.", "answer")
