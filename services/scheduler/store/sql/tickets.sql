-- Tickets, leases and their ends. All of it runs behind `take_locks`: shards, then scopes, then gates, each in order. A statement
-- that judges comes after the locks, so its snapshot is younger than every raise that was committed before them.

-- name: take_locks
-- Locks, in the one order; answers the shards' epochs as they stand.
SELECT shard_id, authority_epoch FROM take_locks($1::smallint[], $2::text[], $3::text[], $4::uuid[]);

-- name: put_tickets
-- New tickets of runs whose gate is known and not closed. A ticket with a lower or equal sequence, or one of a step that is held
-- or whose end is under way, changes nothing. $24: incarnation to note for a step met for the first time (0: raise it first).
-- Answers who had the step before and how that ended, and whether anything of its run was ever leased: both are part of its place.
WITH made AS (
INSERT INTO ticket AS t (run_id, step_key, shard_id, open, state, ticket_sequence, tenant, project, run_class, priority, deadline_ms,
                         handler, timeout_ms, lease_ttl_ms, tools, models, requires, points, input, workflow_digest,
                         attempt_number, traceparent, resources, launched_by, enqueued_ms, incarnation, wanted)
SELECT a.run_id, a.step_key, a.shard_id, true, 1, a.ticket_sequence, a.tenant, a.project, a.run_class, a.priority, a.deadline_ms,
       a.handler, a.timeout_ms, a.lease_ttl_ms, a.tools, a.models, a.requires, a.points, a.input, a.workflow_digest,
       a.attempt_number, a.traceparent, a.resources, a.launched_by, $23, $24, a.wanted
  FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::int[], $5::text[], $6::text[], $7::smallint[], $8::int[], $9::bigint[],
              $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::text[], $16::smallint[], $17::bytea[],
              $18::bytea[], $19::int[], $20::text[], $21::text[], $22::text[], $26::text[])
       AS a(run_id, step_key, shard_id, ticket_sequence, tenant, project, run_class, priority, deadline_ms, handler, timeout_ms,
            lease_ttl_ms, tools, models, requires, points, input, workflow_digest, attempt_number, traceparent,
            resources, launched_by, wanted)
  JOIN run_gate AS g ON g.run_id = a.run_id
 WHERE g.mode < 2 AND g.stamp = $25
 ORDER BY a.run_id, a.step_key
ON CONFLICT (run_id, step_key) DO UPDATE SET
       open = true, state = 1, ticket_sequence = excluded.ticket_sequence, tenant = excluded.tenant, project = excluded.project,
       run_class = excluded.run_class, priority = excluded.priority, deadline_ms = excluded.deadline_ms, handler = excluded.handler,
       timeout_ms = excluded.timeout_ms, lease_ttl_ms = excluded.lease_ttl_ms, tools = excluded.tools, models = excluded.models,
       requires = excluded.requires, points = excluded.points, input = excluded.input, workflow_digest = excluded.workflow_digest,
       attempt_number = excluded.attempt_number, traceparent = excluded.traceparent, resources = excluded.resources,
       launched_by = excluded.launched_by, enqueued_ms = excluded.enqueued_ms, wanted = excluded.wanted,
       unresolved = ''
 WHERE excluded.ticket_sequence > t.ticket_sequence AND t.state NOT IN (2, 3)
RETURNING t.run_id, t.step_key, t.authority_epoch, t.lease_epoch, t.attempt_id, t.incarnation, t.raise_need, t.worker_id, t.end_kind)
SELECT m.*, g.first_leased_ms > 0 AS started FROM made AS m JOIN run_gate AS g USING (run_id);

-- name: put_leased
-- Tickets of steps met for the first time, leased as they are stored: what `put_tickets` and `grant` would do one after the other, with
-- what both demand: an open gate that was read in this incarnation ($24), open scopes, and for steps that touch points a fence
-- that no earlier incarnation can have lost ($25). A step that is there already is left as it is.
WITH made AS (
    INSERT INTO ticket (run_id, step_key, shard_id, open, state, ticket_sequence, tenant, project, run_class, priority, deadline_ms,
                        handler, timeout_ms, lease_ttl_ms, tools, models, requires, points, input, workflow_digest,
                        attempt_number, traceparent, resources, launched_by, enqueued_ms, incarnation, authority_epoch, lease_epoch, attempt_id,
                        worker_id, claim_id, fleet, leased_ms)
    SELECT a.run_id, a.step_key, a.shard_id, true, 2, a.ticket_sequence, a.tenant, a.project, a.run_class, a.priority, a.deadline_ms,
           a.handler, a.timeout_ms, a.lease_ttl_ms, a.tools, a.models, a.requires, a.points, a.input, a.workflow_digest,
           a.attempt_number, a.traceparent, a.resources, a.launched_by, $23, $24, a.authority_epoch, 1, a.attempt_id, a.worker_id, a.claim_id,
           a.fleet, $23
      FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::int[], $5::text[], $6::text[], $7::smallint[], $8::int[],
                  $9::bigint[], $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::text[], $16::smallint[],
                  $17::bytea[], $18::bytea[], $19::int[], $20::text[], $21::text[], $22::text[], $26::bigint[], $27::uuid[],
                  $28::text[], $29::uuid[], $30::text[])
           AS a(run_id, step_key, shard_id, ticket_sequence, tenant, project, run_class, priority, deadline_ms, handler, timeout_ms,
                lease_ttl_ms, tools, models, requires, points, input, workflow_digest, attempt_number, traceparent,
                resources, launched_by, authority_epoch, attempt_id, worker_id, claim_id, fleet)
      JOIN run_gate AS g ON g.run_id = a.run_id
     WHERE g.mode = 0 AND g.stamp = $24 AND (a.points = 0 OR $25 = $24)
       AND NOT EXISTS (SELECT 1 FROM scope_fence AS s
                        WHERE s.mode > 0 AND (s.kind = 'tenant' AND s.scope_id = a.tenant
                                           OR s.kind = 'project' AND s.scope_id = a.tenant || '/' || a.project))
     ORDER BY a.run_id, a.step_key
    ON CONFLICT (run_id, step_key) DO NOTHING
    RETURNING run_id, step_key)
SELECT m.run_id, m.step_key, g.epoch AS gate_epoch, g.first_leased_ms FROM made AS m JOIN run_gate AS g USING (run_id);

-- name: read_tickets
-- Rows as they stand, without their inputs.
SELECT t.run_id, t.step_key, t.state, t.ticket_sequence, t.tenant, t.project, t.run_class, t.priority, t.deadline_ms, t.handler,
       t.timeout_ms, t.lease_ttl_ms, t.tools, t.models, t.requires, t.resources, t.launched_by, t.wanted, t.points,
       t.workflow_digest, t.attempt_number, t.enqueued_ms,
       t.authority_epoch, t.lease_epoch, t.attempt_id, t.incarnation, t.raise_need, t.worker_id, t.claim_id, t.fleet, t.leased_ms,
       t.ended_attempt, t.ended_authority, t.ended_lease, t.ended_ms, t.end_kind, t.failure_class, t.failure_message, t.failure_type, t.report,
       t.unresolved, t.awaits, octet_length(t.input) AS input_bytes,
       coalesce(g.first_leased_ms, 0) > 0 AS started
  FROM unnest($1::uuid[], $2::text[]) AS a(run_id, step_key) JOIN ticket AS t USING (run_id, step_key)
  LEFT JOIN run_gate AS g USING (run_id);

-- name: read_open_keys
-- Steps with an open ticket in these shards, as their new leader loads them: what is leased or ending, then what waits, people first.
SELECT t.run_id, t.step_key, t.state = 1 AS waits
  FROM ticket AS t
 WHERE t.open AND t.shard_id = ANY ($1::smallint[])
 ORDER BY t.state = 1, t.run_class IN (2, 3), t.enqueued_ms, t.run_id, t.step_key;

-- name: read_open_of_runs
-- Everything open of these runs.
SELECT t.run_id, t.step_key, t.state, t.ticket_sequence, t.tenant, t.project, t.run_class, t.priority, t.deadline_ms, t.handler,
       t.timeout_ms, t.lease_ttl_ms, t.tools, t.models, t.requires, t.resources, t.launched_by, t.wanted, t.points,
       t.workflow_digest, t.attempt_number, t.enqueued_ms,
       t.authority_epoch, t.lease_epoch, t.attempt_id, t.incarnation, t.raise_need, t.worker_id, t.claim_id, t.fleet, t.leased_ms,
       t.ended_attempt, t.ended_authority, t.ended_lease, t.ended_ms, t.end_kind, t.failure_class, t.failure_message, t.failure_type, t.report,
       t.unresolved, t.awaits, octet_length(t.input) AS input_bytes,
       coalesce(g.first_leased_ms, 0) > 0 AS started
  FROM ticket AS t LEFT JOIN run_gate AS g USING (run_id) WHERE t.run_id = ANY ($1::uuid[]) AND t.open;

-- name: grant
-- Leases what is ready, under an open gate that was read in this incarnation ($10) and open scopes, and only where the last end is
-- acknowledged by every point the step touches, in this incarnation. Answers what was granted, with what the attempt needs.
UPDATE ticket AS t
   SET state = 2, lease_epoch = t.lease_epoch + 1, authority_epoch = a.authority_epoch, attempt_id = a.attempt_id,
       worker_id = a.worker_id, claim_id = a.claim_id, fleet = a.fleet, leased_ms = $9, incarnation = $10
  FROM unnest($1::uuid[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::uuid[], $7::text[], $8::uuid[],
              $11::text[])
       AS a(run_id, step_key, ticket_sequence, lease_epoch, authority_epoch, attempt_id, worker_id, claim_id, fleet)
  JOIN run_gate AS g ON g.run_id = a.run_id
 WHERE t.run_id = a.run_id AND t.step_key = a.step_key
   AND t.state = 1 AND t.ticket_sequence = a.ticket_sequence AND t.lease_epoch = a.lease_epoch
   AND (t.points = 0 OR (t.incarnation = $10 AND t.raise_need = 0))
   AND g.mode = 0 AND g.stamp = $10
   AND NOT EXISTS (SELECT 1 FROM scope_fence AS s
                    WHERE s.mode > 0 AND (s.kind = 'tenant' AND s.scope_id = t.tenant
                                       OR s.kind = 'project' AND s.scope_id = t.tenant || '/' || t.project))
RETURNING t.run_id, t.step_key, t.lease_epoch, t.input, t.traceparent, g.epoch AS gate_epoch, g.first_leased_ms;

-- name: mark_first_lease
-- Runs whose first attempt is leased now. Their gates are locked.
UPDATE run_gate AS g SET first_leased_ms = $2
 WHERE g.run_id = ANY ($1::uuid[]) AND g.first_leased_ms = 0;

-- name: read_inputs
-- Inputs of live leases, for a claim that is repeated.
SELECT t.run_id, t.step_key, t.input, t.traceparent
  FROM unnest($1::uuid[], $2::text[]) AS a(run_id, step_key) JOIN ticket AS t USING (run_id, step_key);

-- name: succeed
-- Success: the lease is exactly this one, granted in this incarnation ($7), under a gate that is not closed, read in this
-- incarnation, of the token's epoch, and scopes that are not closed. The fence of its end is raised beside. Of attempts with known
-- successors ($11) it answers what those inherit; of each, under which slots the step's attempts asked for instances.
WITH won AS (
    UPDATE ticket AS t
       SET state = 4, open = false, lease_epoch = t.lease_epoch + 1, authority_epoch = a.leader_epoch,
           attempt_id = '00000000-0000-0000-0000-000000000000', raise_need = t.points, incarnation = $8, input = '',
           ended_attempt = a.attempt_id, ended_authority = a.authority_epoch, ended_lease = a.lease_epoch, ended_ms = $9, end_kind = 1,
           failure_class = '', failure_message = '', failure_type = '', report = a.report, unresolved = ''
      FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::uuid[], $6::bytea[], $7::bigint[], $10::bigint[],
                  $11::boolean[])
           AS a(run_id, step_key, authority_epoch, lease_epoch, attempt_id, report, epoch, leader_epoch, continues)
      JOIN run_gate AS g ON g.run_id = a.run_id
     WHERE t.run_id = a.run_id AND t.step_key = a.step_key
       AND t.state = 2 AND (t.authority_epoch, t.lease_epoch, t.attempt_id) = (a.authority_epoch, a.lease_epoch, a.attempt_id)
       AND t.incarnation = $8 AND g.stamp = $8 AND g.mode < 2 AND g.epoch = a.epoch
       AND NOT EXISTS (SELECT 1 FROM scope_fence AS s
                        WHERE s.mode = 2 AND (s.kind = 'tenant' AND s.scope_id = t.tenant
                                           OR s.kind = 'project' AND s.scope_id = t.tenant || '/' || t.project))
    RETURNING t.run_id, t.step_key, t.ticket_sequence, t.points, t.authority_epoch, t.lease_epoch, t.attempt_number, t.worker_id,
              t.leased_ms, t.ended_attempt, t.ended_authority, t.report, g.mode AS gate_mode, t.priority, t.traceparent,
              CASE WHEN a.continues THEN old.input END AS input),
history AS (
    INSERT INTO attempt (run_id, step_key, lease_epoch, attempt_id, authority_epoch, attempt_number, worker_id, leased_ms, ended_ms,
                         end_kind, failure_class, failure_message, failure_type, report)
    SELECT w.run_id, w.step_key, w.lease_epoch - 1, w.ended_attempt, w.ended_authority, w.attempt_number, w.worker_id, w.leased_ms,
           $9, 1, '', '', '', w.report
      FROM won AS w)
SELECT w.run_id, w.step_key, w.ticket_sequence, w.points, w.authority_epoch, w.lease_epoch, w.worker_id, w.gate_mode, w.priority,
       w.traceparent, w.input,
       ARRAY(SELECT c.slot FROM command AS c WHERE c.run_id = w.run_id AND c.step_key = w.step_key AND c.kind = 2) AS expanded
  FROM won AS w;

-- name: end_leases
-- Any other end: compare-and-set on the lease alone. Where the step touches points its end is under way until each has
-- acknowledged the fence raised now; else it is over.
UPDATE ticket AS t
   SET state = CASE WHEN t.points = 0 THEN 4 ELSE 3 END, open = t.points <> 0,
       lease_epoch = t.lease_epoch + 1, authority_epoch = a.leader_epoch, attempt_id = '00000000-0000-0000-0000-000000000000',
       raise_need = t.points, incarnation = $11, input = '',
       ended_attempt = a.attempt_id, ended_authority = a.authority_epoch, ended_lease = a.lease_epoch, ended_ms = $12, end_kind = a.end_kind,
       failure_class = a.failure_class, failure_message = a.failure_message, failure_type = a.failure_type, report = a.report,
       unresolved = '', awaits = a.awaits
  FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::uuid[], $6::smallint[], $7::text[], $8::text[], $9::text[],
              $10::bytea[], $13::bigint[], $14::text[])
       AS a(run_id, step_key, authority_epoch, lease_epoch, attempt_id, end_kind, failure_class, failure_message, failure_type,
            report, leader_epoch, awaits)
 WHERE t.run_id = a.run_id AND t.step_key = a.step_key
   AND t.state = 2 AND (t.authority_epoch, t.lease_epoch, t.attempt_id) = (a.authority_epoch, a.lease_epoch, a.attempt_id)
RETURNING t.run_id, t.step_key;

-- name: acknowledge
-- A point committed the raise of this very end, in this incarnation of ours. What is in doubt there is kept while it is under way.
UPDATE ticket AS t
   SET raise_need = t.raise_need & ~a.points, unresolved = CASE WHEN t.state = 3 THEN t.unresolved || a.unresolved ELSE '' END
  FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::smallint[], $6::text[])
       AS a(run_id, step_key, authority_epoch, lease_epoch, points, unresolved)
 WHERE t.run_id = a.run_id AND t.step_key = a.step_key
   AND (t.authority_epoch, t.lease_epoch) = (a.authority_epoch, a.lease_epoch)
   AND t.incarnation = $7 AND (t.raise_need & a.points) <> 0
RETURNING t.run_id, t.step_key;

-- name: finish
-- Ends that nothing is awaited for any more: over, and in the history as they were told.
WITH over AS (
    UPDATE ticket AS t SET state = 4, open = false
      FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::smallint[]) AS a(run_id, step_key, lease_epoch, told)
     WHERE t.run_id = a.run_id AND t.step_key = a.step_key AND t.lease_epoch = a.lease_epoch
       AND t.state IN (3, 4) AND t.raise_need = 0 AND t.end_kind <> 1
    RETURNING t.*, a.told)
INSERT INTO attempt (run_id, step_key, lease_epoch, attempt_id, authority_epoch, attempt_number, worker_id, leased_ms, ended_ms,
                     end_kind, failure_class, failure_message, failure_type, report)
SELECT o.run_id, o.step_key, o.ended_lease, o.ended_attempt, o.ended_authority, o.attempt_number, o.worker_id, o.leased_ms,
       o.ended_ms, o.told, o.failure_class, o.failure_message, o.failure_type, o.report
  FROM over AS o
ON CONFLICT DO NOTHING
RETURNING run_id, step_key;

-- name: raise_anew
-- Fences of an earlier incarnation: what that one granted may be lost to us, so a greater end is raised whatever is noted here.
UPDATE ticket AS t
   SET lease_epoch = t.lease_epoch + CASE WHEN t.lease_epoch % 2 = 1 THEN 1 ELSE 2 END, authority_epoch = a.leader_epoch,
       attempt_id = '00000000-0000-0000-0000-000000000000', raise_need = t.points, incarnation = $3
  FROM unnest($1::uuid[], $2::text[], $4::bigint[]) AS a(run_id, step_key, leader_epoch)
 WHERE t.run_id = a.run_id AND t.step_key = a.step_key
   AND t.state IN (1, 3) AND t.points <> 0 AND t.incarnation <> $3
RETURNING t.run_id, t.step_key;

-- name: drop_ready
-- Tickets that wait and are not wanted any more, up to and including this sequence; and of a step whose former ticket is over,
-- the place of one that did not come yet, which will find its sequence taken.
UPDATE ticket AS t SET state = 5, open = false, input = '', ticket_sequence = greatest(t.ticket_sequence, a.ticket_sequence)
  FROM unnest($1::uuid[], $2::text[], $3::int[]) AS a(run_id, step_key, ticket_sequence)
 WHERE t.run_id = a.run_id AND t.step_key = a.step_key
   AND (t.state = 1 AND t.ticket_sequence <= a.ticket_sequence OR t.state IN (4, 5) AND t.ticket_sequence < a.ticket_sequence)
RETURNING t.run_id, t.step_key, t.ticket_sequence;

-- name: note_revoked
-- A withdrawal that overtook its ticket: the ticket will find its sequence taken.
INSERT INTO ticket (run_id, step_key, shard_id, open, state, ticket_sequence, tenant, project, run_class, priority, deadline_ms, handler,
                    timeout_ms, lease_ttl_ms, tools, models, requires, points, input, workflow_digest, attempt_number, traceparent,
                    enqueued_ms, incarnation)
SELECT a.run_id, a.step_key, a.shard_id, false, 5, a.ticket_sequence, '', '', 0, 0, 0, '', 0, 0, '', '', '', 0, '', '', 0, '', $5, $6
  FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::int[]) AS a(run_id, step_key, shard_id, ticket_sequence)
 ORDER BY a.run_id, a.step_key
ON CONFLICT (run_id, step_key) DO NOTHING
RETURNING run_id, step_key;

-- name: quiet_runs
-- Runs that are not open and hold nothing live or ending here: claims the report, once per run and epoch.
UPDATE run_gate AS g SET quiesced_epoch = g.epoch
 WHERE g.run_id = ANY ($1::uuid[]) AND g.mode <> 0 AND g.quiesced_epoch < g.epoch
   AND NOT EXISTS (SELECT 1 FROM ticket AS t WHERE t.run_id = g.run_id AND t.state IN (2, 3))
RETURNING g.run_id, g.epoch;

-- name: put_commands
-- What attempts ask, once per slot: a repeat is the first one.
INSERT INTO command (run_id, step_key, slot, kind, attempt_id, lease_epoch, recorded_ms)
SELECT a.run_id, a.step_key, a.slot, a.kind, a.attempt_id, a.lease_epoch, $7
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::uuid[], $6::bigint[])
       AS a(run_id, step_key, slot, kind, attempt_id, lease_epoch)
 ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING
RETURNING run_id, step_key, slot;

-- name: read_reports
-- Reports of ended attempts, for repeats.
SELECT t.run_id, t.step_key, t.attempt_id, t.report, t.end_kind
  FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS a(run_id, step_key, lease_epoch)
  JOIN attempt AS t ON t.run_id = a.run_id AND t.step_key = a.step_key AND t.lease_epoch = a.lease_epoch;

-- name: read_notices
-- Runs whose gate was raised while they had open tickets.
SELECT run_id FROM gate_notice WHERE shard_id = ANY ($1::smallint[]) LIMIT $2;

-- name: put_notices
-- In the transaction of a raise, behind the gates' locks.
INSERT INTO gate_notice (run_id, shard_id)
SELECT a.run_id, a.shard_id FROM unnest($1::uuid[], $2::smallint[]) AS a(run_id, shard_id) ORDER BY 1
ON CONFLICT DO NOTHING;

-- name: forget_notices
-- Acted upon, behind the gates' locks.
DELETE FROM gate_notice WHERE run_id = ANY ($1::uuid[]);

-- name: count_open
-- What is live, ending and ready of these runs.
SELECT t.run_id, count(*) FILTER (WHERE t.state = 2) AS live, count(*) FILTER (WHERE t.state = 3) AS ending,
       count(*) FILTER (WHERE t.state = 1) AS ready
  FROM ticket AS t WHERE t.run_id = ANY ($1::uuid[]) AND t.open GROUP BY t.run_id;

-- name: read_gates
-- Gates as they stand.
SELECT run_id, epoch, mode, stamp, outcome FROM run_gate WHERE run_id = ANY ($1::uuid[]);

-- name: step_fences
-- Every step of these runs, and these steps, for cold reads of points.
SELECT t.run_id, t.step_key, t.authority_epoch, t.lease_epoch, t.attempt_id, t.state, t.incarnation
  FROM ticket AS t WHERE t.run_id = ANY ($1::uuid[]);
