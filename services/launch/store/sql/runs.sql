-- Runs: admission, closings, receipts, log. Authoritative for the ONE order in which launch takes locks, so that no two of its
-- transactions wait for each other: (1) a request_id, (2) every run the transaction will touch, in one statement, in order of ids
-- (lock_heads, start_runs; lock_family and lock_trees in children.sql), (3) tenants, in order of names. Nothing locks a run behind
-- the lock of another, or of a tenant. One exception: children that were spawned while lock_trees waited are locked behind the
-- others. Their ids are the greater but where clocks jump; then the server may undo one of two, and `Database.run` does it again.

-- name: take_receipts
-- Picks the launches that are new under their request_id. Sorted by key, so that batches cannot deadlock.
INSERT INTO launch_receipt (key_digest, request_digest, run_id, created_ms)
SELECT ask.key_digest, ask.request_digest, ask.run_id, $4::bigint
  FROM unnest($1::bytea[], $2::bytea[], $3::uuid[]) AS ask(key_digest, request_digest, run_id)
 ORDER BY ask.key_digest
ON CONFLICT DO NOTHING
RETURNING key_digest;

-- name: lock_accounts
-- The tenants of a batch of launches, in order.
SELECT tenant, limit_micros, reserved_micros, spent_micros, max_active_runs, active_runs, version, max_active_descendants,
       active_descendants, suspended
  FROM tenant WHERE tenant = ANY ($1::text[]) ORDER BY tenant FOR NO KEY UPDATE;

-- name: admit
-- Stores admitted and denied runs with their first event; reserves for the admitted. The tenants are locked.
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::int[], $7::text[], $8::smallint[],
                         $9::bigint[], $10::smallint[], $11::text[], $12::smallint[], $13::int[], $14::bigint[],
                         $15::bigint[], $16::bigint[], $17::bytea[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[])
        AS a(run_id, tenant, project, digest, workflow_name, workflow_number, build, state, epoch, points, capabilities,
             run_class, priority, deadline_ms, budget_micros, budget_tokens, input, labels, actor,
             failure_class, failure_message, failure_type)),
made AS (
    INSERT INTO run (run_id, tenant, project, digest, workflow_name, workflow_number, build, state, outcome, epoch, sequence, points,
                     capabilities, run_class, priority, deadline_ms, created_ms, changed_ms, finished_ms, budget_micros,
                     budget_tokens, input, labels, failure_class, failure_message, failure_type, launched_by)
    SELECT run_id, tenant, project, digest, workflow_name, workflow_number, build, state, CASE state WHEN 13 THEN 'denied' ELSE '' END,
           epoch, 1, points, coalesce(string_to_array(nullif(capabilities, ''), ' '), '{}'), run_class, priority, deadline_ms, $23::bigint, $23::bigint,
           CASE state WHEN 13 THEN $23::bigint ELSE 0 END, budget_micros, budget_tokens, input, labels,
           failure_class, failure_message, failure_type, regexp_replace(actor, '^key:', '')
      FROM ask),
logged AS (
    INSERT INTO run_event (run_id, sequence, at_ms, kind, state, step_key, actor, detail)
    SELECT run_id, 1, $23::bigint, CASE state WHEN 13 THEN 'run.denied' ELSE 'run.accepted' END, state, '', actor,
           CASE state WHEN 13 THEN json_build_object('type', failure_type, 'reason', failure_message)::text ELSE '{}' END
      FROM ask),
posted AS (
    INSERT INTO ledger_posting (run_id, kind, sequence, tenant, debit, credit, micros, at_ms)
    SELECT run_id, 'reserve', 1, tenant, 'tenant:free', 'run:reserved', budget_micros, $23::bigint
      FROM ask WHERE state <> 13 AND budget_micros > 0)
UPDATE tenant AS t
   SET reserved_micros = t.reserved_micros + total.micros, active_runs = t.active_runs + total.runs
  FROM (SELECT tenant, sum(budget_micros)::bigint AS micros, count(*)::int AS runs FROM ask WHERE state <> 13 GROUP BY tenant) AS total
 WHERE t.tenant = total.tenant;

-- name: note_forks
-- Runs that were just admitted, and continue others.
UPDATE run AS r SET fork_of = a.fork_of FROM unnest($1::uuid[], $2::uuid[]) AS a(run_id, fork_of) WHERE r.run_id = a.run_id;

-- name: note_start_by
-- When runs that were just admitted expire if nothing of them has begun.
UPDATE run AS r SET start_by_ms = a.start_by_ms FROM unnest($1::uuid[], $2::bigint[]) AS a(run_id, start_by_ms) WHERE r.run_id = a.run_id;

-- name: lock_heads
-- The one lock of a run, in order of ids, with what decisions look at.
SELECT run_id, tenant, project, state, outcome, epoch, version, points, enforced, quiesced, capabilities, budget_micros, used_micros,
       deadline_ms, paused_ms, awaits, parent_id, root_id, depth, independent, children, open_children, delegated_micros, budget_sequence,
       run_class, priority, digest, promised, pause_until_ms, launched_by, deepest, revoking
  FROM run WHERE run_id = ANY ($1::uuid[]) ORDER BY run_id FOR NO KEY UPDATE;

-- name: apply_closings
-- One outcome each, conditional on the version that was judged; receipts begin anew under the new epoch.
UPDATE run AS r
   SET state = ask.state, outcome = ask.outcome, epoch = ask.epoch, version = r.version + 1, changed_ms = $10::bigint,
       output = ask.output, failure_class = ask.failure_class, failure_message = ask.failure_message,
       failure_type = ask.failure_type, enforced = 0, quiesced = 0
  FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bytea[], $7::text[], $8::text[], $9::text[])
       AS ask(run_id, version, state, outcome, epoch, output, failure_class, failure_message, failure_type)
 WHERE r.run_id = ask.run_id AND r.version = ask.version AND r.outcome = ''
RETURNING r.run_id;

-- name: apply_pauses
-- Pausing and resuming, conditional on the version that was judged. Receipts begin anew; a resume moves the deadline.
UPDATE run AS r
   SET state = ask.state, epoch = ask.epoch, version = r.version + 1, changed_ms = $8::bigint, enforced = 0, quiesced = 0,
       deadline_ms = ask.deadline_ms, paused_ms = ask.paused_ms, pause_until_ms = ask.pause_until_ms
  FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
       AS ask(run_id, version, state, epoch, deadline_ms, paused_ms, pause_until_ms)
 WHERE r.run_id = ask.run_id AND r.version = ask.version AND r.outcome = '';

-- name: apply_revocations
-- A smaller grant under the next epoch, conditional on the version that was judged. Receipts begin anew.
UPDATE run AS r
   SET epoch = ask.epoch, version = r.version + 1, changed_ms = $5::bigint, capabilities = string_to_array(ask.capabilities, E'\n'),
       enforced = 0, quiesced = 0, revoked_epoch = ask.epoch, revoking = r.points <> 0
  FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[]) AS ask(run_id, version, epoch, capabilities)
 WHERE r.run_id = ask.run_id AND r.version = ask.version AND r.outcome = '';

-- name: adopt
-- Runs of an earlier incarnation under an epoch of this one, conditional on the version that was judged; receipts begin anew.
UPDATE run AS r
   SET state = ask.state, outcome = ask.outcome, epoch = ask.epoch, awaits = ask.awaits, version = r.version + 1, changed_ms = $10::bigint,
       enforced = 0, quiesced = 0, capabilities = string_to_array(ask.capabilities, E'\n'),
       revoking = r.revoking OR ask.narrowed AND r.points <> 0,
       revoked_epoch = CASE WHEN ask.narrowed THEN ask.epoch ELSE r.revoked_epoch END,
       failure_class = CASE WHEN ask.failure_class = '' THEN r.failure_class ELSE ask.failure_class END,
       failure_message = CASE WHEN ask.failure_class = '' THEN r.failure_message ELSE ask.failure_message END,
       failure_type = CASE WHEN ask.failure_class = '' THEN r.failure_type ELSE ask.failure_type END
  FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::boolean[], $7::text[], $8::text[], $9::text[],
              $11::text[], $12::boolean[])
       AS ask(run_id, version, state, outcome, epoch, awaits, failure_class, failure_message, failure_type, capabilities, narrowed)
 WHERE r.run_id = ask.run_id AND r.version = ask.version;

-- name: tell_again
-- What belongs to an adopted outcome.
UPDATE run AS r
   SET output = ask.output, failure_class = ask.failure_class, failure_message = ask.failure_message,
       failure_type = ask.failure_type, awaits = false, version = r.version + 1, changed_ms = $6::bigint
  FROM unnest($1::uuid[], $2::bytea[], $3::text[], $4::text[], $5::text[])
       AS ask(run_id, output, failure_class, failure_message, failure_type)
 WHERE r.run_id = ask.run_id AND r.awaits;

-- name: lock_accounts_of
-- The tenants of runs that are about to be settled.
SELECT tenant FROM tenant WHERE tenant = ANY ($1::text[]) ORDER BY tenant FOR NO KEY UPDATE;

-- name: apply_progress
-- Records receipts; where the state is terminal, settles: what was used is spent, the rest is free again; that of a child goes back to
-- its parent, where that one has not settled (`back`). What it gave on is its children's, and settled by them.
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::smallint[], $5::smallint[], $7::boolean[])
        AS a(run_id, version, enforced, quiesced, state, back)),
moved AS (
    UPDATE run AS r
       SET enforced = ask.enforced, quiesced = ask.quiesced, state = ask.state, version = r.version + 1, changed_ms = $6::bigint,
           enforced_ms = CASE WHEN ask.enforced = r.points AND r.enforced <> r.points THEN $6::bigint ELSE r.enforced_ms END,
           revoking = r.revoking AND ask.enforced <> r.points,
           finished_ms = CASE WHEN ask.state >= 9 THEN $6::bigint ELSE 0 END
      FROM ask
     WHERE r.run_id = ask.run_id AND r.version = ask.version
    RETURNING r.run_id, r.tenant, r.state, r.budget_micros - r.delegated_micros AS own, r.used_micros, r.parent_id, ask.back),
settled AS (
    INSERT INTO ledger_posting (run_id, kind, sequence, tenant, debit, credit, micros, at_ms)
    SELECT run_id, 'settle', 1, tenant, 'run:reserved', 'tenant:spent', least(used_micros, own), $6::bigint
      FROM moved WHERE state >= 9 AND least(used_micros, own) > 0
    UNION ALL
    SELECT run_id, 'overrun', 1, tenant, 'tenant:free', 'tenant:spent', used_micros - own, $6::bigint
      FROM moved WHERE state >= 9 AND used_micros > own
    UNION ALL
    SELECT run_id, CASE WHEN back THEN 'return' ELSE 'release' END, 1, tenant, 'run:reserved',
           CASE WHEN back THEN 'parent:reserved' ELSE 'tenant:free' END, own - used_micros, $6::bigint
      FROM moved WHERE state >= 9 AND own > used_micros)
UPDATE tenant AS t
   SET reserved_micros = t.reserved_micros - total.reserved, spent_micros = t.spent_micros + total.spent,
       active_runs = t.active_runs - total.runs, active_descendants = t.active_descendants - total.children
  FROM (SELECT tenant, sum(CASE WHEN back THEN least(own, used_micros) ELSE own END)::bigint AS reserved,
               sum(used_micros)::bigint AS spent, count(*) FILTER (WHERE parent_id IS NULL)::int AS runs, count(parent_id)::int AS children
          FROM moved WHERE state >= 9 GROUP BY tenant) AS total
 WHERE t.tenant = total.tenant;

-- name: start_runs
-- accepted → running, where the run is still accepted.
UPDATE run AS r SET state = 3, version = r.version + 1, changed_ms = $2::bigint
  FROM (SELECT run_id FROM run WHERE run_id = ANY ($1::uuid[]) AND state IN (1, 2) ORDER BY run_id FOR NO KEY UPDATE) AS due
 WHERE r.run_id = due.run_id
RETURNING r.run_id;

-- name: apply_usage
-- A later report replaces an earlier one. What a settled run turns out to have used besides is an adjustment, by append.
-- The runs are locked, and where a settled one is adjusted its tenant.
WITH ask AS MATERIALIZED (
    SELECT a.*, r.tenant, r.state, r.used_micros AS known
      FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS a(run_id, sequence, micros, tokens)
      JOIN run AS r USING (run_id) WHERE r.usage_sequence < a.sequence),
moved AS (
    UPDATE run AS r SET used_micros = ask.micros, used_tokens = ask.tokens, usage_sequence = ask.sequence
      FROM ask WHERE r.run_id = ask.run_id),
posted AS (
    INSERT INTO ledger_posting (run_id, kind, sequence, tenant, debit, credit, micros, at_ms)
    SELECT run_id, 'adjust', sequence, tenant, CASE WHEN micros >= known THEN 'tenant:free' ELSE 'tenant:spent' END,
           CASE WHEN micros >= known THEN 'tenant:spent' ELSE 'tenant:free' END, abs(micros - known), $5::bigint
      FROM ask WHERE state >= 9 AND micros <> known)
UPDATE tenant AS t SET spent_micros = t.spent_micros + total.micros
  FROM (SELECT tenant, sum(micros - known)::bigint AS micros FROM ask WHERE state >= 9 GROUP BY tenant) AS total
 WHERE t.tenant = total.tenant;

-- name: append_events
-- Under each run's next sequences, in the order given.
WITH ask AS MATERIALIZED (
    SELECT a.*, row_number() OVER (PARTITION BY a.run_id ORDER BY a.ord) AS place
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::smallint[], $5::text[], $6::text[], $7::text[])
           WITH ORDINALITY AS a(run_id, at_ms, kind, state, step_key, actor, detail, ord)),
bumped AS (
    UPDATE run AS r SET sequence = r.sequence + total.n
      FROM (SELECT run_id, count(*) AS n FROM ask GROUP BY run_id) AS total
     WHERE r.run_id = total.run_id
    RETURNING r.run_id, r.sequence - total.n AS base)
INSERT INTO run_event (run_id, sequence, at_ms, kind, state, step_key, actor, detail)
SELECT ask.run_id, bumped.base + ask.place, ask.at_ms, ask.kind, ask.state, ask.step_key, ask.actor, ask.detail
  FROM ask JOIN bumped USING (run_id);

-- name: append_events_once
-- The same, but an entry whose kind and step ($8: and words) the run's log has already is left out. Each is looked up by its run: a plain NOT
-- EXISTS is planned as a scan of the whole log.
WITH ask AS MATERIALIZED (
    SELECT a.*, row_number() OVER (PARTITION BY a.run_id ORDER BY a.ord) AS place
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::smallint[], $5::text[], $6::text[], $7::text[])
           WITH ORDINALITY AS a(run_id, at_ms, kind, state, step_key, actor, detail, ord)
      LEFT JOIN LATERAL (SELECT true AS there FROM run_event AS e
                          WHERE e.run_id = a.run_id AND e.kind = a.kind AND e.step_key = a.step_key
                            AND (NOT $8::boolean OR e.detail = a.detail) LIMIT 1) AS known ON true
     WHERE known.there IS NULL),
bumped AS (
    UPDATE run AS r SET sequence = r.sequence + total.n
      FROM (SELECT run_id, count(*) AS n FROM ask GROUP BY run_id) AS total
     WHERE r.run_id = total.run_id
    RETURNING r.run_id, r.sequence - total.n AS base)
INSERT INTO run_event (run_id, sequence, at_ms, kind, state, step_key, actor, detail)
SELECT ask.run_id, bumped.base + ask.place, ask.at_ms, ask.kind, ask.state, ask.step_key, ask.actor, ask.detail
  FROM ask JOIN bumped USING (run_id);
