-- Shards, signing keys, workers, and what people read.

-- name: note_birth
-- Incarnation in which this database was first used.
INSERT INTO birth (incarnation) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: read_birth
-- See note_birth.
SELECT incarnation FROM birth;

-- name: confirm
-- Makes these elections leaders: only with an epoch greater than the row has. Waits for commits under the former epoch.
WITH asked AS (SELECT * FROM unnest($1::smallint[], $2::bigint[]) AS a(shard_id, revision)),
held AS MATERIALIZED (
    SELECT s.shard_id FROM shard AS s WHERE s.shard_id IN (SELECT shard_id FROM asked) ORDER BY s.shard_id FOR NO KEY UPDATE)
UPDATE shard AS s
   SET authority_epoch = (s.generation << 40) + a.revision, holder = $3, address = $4, confirmed_ms = $5
  FROM asked AS a JOIN held AS h ON h.shard_id = a.shard_id
 WHERE s.shard_id = a.shard_id AND s.authority_epoch < (s.generation << 40) + a.revision
RETURNING s.shard_id, s.authority_epoch;

-- name: raise_generation
-- For shards whose row is ahead of what etcd has ever said ($2): etcd was lost. Audited.
WITH raised AS (
    UPDATE shard AS s SET generation = s.generation + 1
     WHERE s.shard_id = ANY ($1::smallint[]) AND s.authority_epoch & ((1::bigint << 40) - 1) > $2 AND s.authority_epoch >> 40 = s.generation
    RETURNING s.shard_id, s.generation, s.authority_epoch)
INSERT INTO shard_reset (shard_id, generation, at_ms, actor, former)
SELECT shard_id, generation, $3, $4, authority_epoch FROM raised
RETURNING shard_id;

-- name: put_reset_order
-- What an operator orders, for a while.
INSERT INTO shard_reset_order (at_ms, until_ms, actor, reason) VALUES ($1, $2, $3, $4);

-- name: read_reset_order
-- The newest order that still holds.
SELECT actor, reason FROM shard_reset_order WHERE at_ms <= $1 AND until_ms > $1 ORDER BY number DESC LIMIT 1;

-- name: read_shards
-- All shards.
SELECT shard_id, authority_epoch, holder, address, confirmed_ms FROM shard ORDER BY shard_id;

-- name: put_key
-- The public half of this process' key, before the first token is used, and again while it lives.
INSERT INTO signing_key (key_id, public_key, created_ms, seen_ms) VALUES ($1, $2, $3, $3)
ON CONFLICT (key_id) DO UPDATE SET seen_ms = excluded.seen_ms;

-- name: forget_keys
-- Keys of processes that are gone for longer than any token lives.
DELETE FROM signing_key WHERE seen_ms < $1;

-- name: read_keys
-- Public halves.
SELECT key_id, public_key FROM signing_key WHERE key_id = ANY ($1::bytea[]);

-- name: put_workers
-- Workers seen lately.
INSERT INTO worker AS w (tenant, worker_id, project, handlers, capabilities, seen_ms, fleet, resources, process)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::boolean[], $8::text[], $9::text[])
           AS a(tenant, worker_id, project, handlers, capabilities, seen_ms, fleet, resources, process) ORDER BY 1, 2
ON CONFLICT (tenant, worker_id) DO UPDATE
   SET handlers = CASE WHEN excluded.handlers <> '' THEN excluded.handlers ELSE w.handlers END,
       capabilities = CASE WHEN excluded.handlers <> '' THEN excluded.capabilities ELSE w.capabilities END,
       resources = CASE WHEN excluded.handlers <> '' THEN excluded.resources ELSE w.resources END,
       process = CASE WHEN excluded.handlers <> '' AND excluded.seen_ms >= w.seen_ms THEN excluded.process ELSE w.process END,
       seen_ms = greatest(w.seen_ms, excluded.seen_ms),
       fleet = w.fleet OR excluded.fleet;

-- name: leave_workers
-- Workers that claim nothing more, whatever is still written down of them; another process of the name that is written down stays.
UPDATE worker AS w SET left_ms = greatest(w.seen_ms, gone.at_ms)
  FROM (SELECT a.tenant, a.worker_id, a.at_ms
          FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS a(tenant, worker_id, at_ms, process)
          JOIN worker AS o USING (tenant, worker_id)
         WHERE a.process = '' OR o.process IN ('', a.process) ORDER BY 1, 2 FOR NO KEY UPDATE OF o) AS gone
 WHERE w.tenant = gone.tenant AND w.worker_id = gone.worker_id;

-- name: forget_workers
-- Not seen for long.
DELETE FROM worker WHERE seen_ms < $1;

-- name: read_workers
-- Workers of a tenant (and project, where one is given), by name, with their live leases; those that signed off while any is left.
-- Those of its fleet carry handlers of other tenants: they come only where $5 says so.
SELECT w.worker_id, w.handlers, w.capabilities, w.seen_ms, w.fleet, w.resources, w.seen_ms <= w.left_ms AS leaving, l.live
  FROM worker AS w,
       LATERAL (SELECT count(*) AS live FROM ticket AS t
                 WHERE t.open AND t.state = 2 AND t.worker_id = w.worker_id
                   AND CASE WHEN t.fleet = '' THEN t.tenant ELSE t.fleet END = w.tenant) AS l
 WHERE w.tenant = $1 AND ($2 = '' OR w.project = $2 OR w.project = '') AND w.worker_id > $3 AND (NOT w.fleet OR $5)
   AND (w.seen_ms > w.left_ms OR l.live > 0)
 ORDER BY w.worker_id LIMIT $4;

-- name: read_carried
-- Handlers that workers seen since $1 carry, but for those that signed off.
SELECT DISTINCT handler FROM worker AS w, LATERAL string_to_table(w.handlers, E'\n') AS handler
 WHERE w.seen_ms >= $1 AND w.seen_ms > w.left_ms;

-- name: forget_runs
-- What is left of closed runs older than an id (ids begin with their time), without open tickets. A gate that is missing is
-- asked of launch again, so nothing is admitted by forgetting.
WITH old AS MATERIALIZED (
    SELECT g.run_id FROM run_gate AS g
     WHERE g.run_id < $1 AND g.mode = 2 AND NOT EXISTS (SELECT 1 FROM ticket AS t WHERE t.run_id = g.run_id AND t.open)
     ORDER BY g.run_id LIMIT $2 FOR UPDATE SKIP LOCKED),
tickets AS (DELETE FROM ticket AS t USING old WHERE t.run_id = old.run_id),
attempts AS (DELETE FROM attempt AS t USING old WHERE t.run_id = old.run_id),
commands AS (DELETE FROM command AS t USING old WHERE t.run_id = old.run_id)
DELETE FROM run_gate AS g USING old WHERE g.run_id = old.run_id
RETURNING g.run_id;

-- name: read_owner
-- Whose run it is, by its tickets.
SELECT tenant, project FROM ticket WHERE run_id = $1 AND tenant <> '' LIMIT 1;

-- name: read_attempts
-- Attempts of a run, oldest first: ended ones, and what is live or ending. Pages by grant time, then by attempt.
SELECT * FROM (
    SELECT step_key, attempt_id, attempt_number, end_kind, worker_id, authority_epoch, lease_epoch, leased_ms, ended_ms,
           failure_class, failure_message, failure_type
      FROM attempt WHERE run_id = $1
    UNION ALL
    SELECT step_key, CASE WHEN state = 2 THEN attempt_id ELSE ended_attempt END, attempt_number,
           CASE WHEN state = 2 THEN 0 ELSE end_kind END, worker_id,
           CASE WHEN state = 2 THEN authority_epoch ELSE ended_authority END,
           CASE WHEN state = 2 THEN lease_epoch ELSE ended_lease END, leased_ms,
           CASE WHEN state = 2 THEN 0 ELSE ended_ms END,
           CASE WHEN state = 2 THEN '' ELSE failure_class END, CASE WHEN state = 2 THEN '' ELSE failure_message END,
           CASE WHEN state = 2 THEN '' ELSE failure_type END
      FROM ticket WHERE run_id = $1 AND state IN (2, 3)) AS a
 WHERE (a.leased_ms, a.attempt_id) > ($2, $3)
 ORDER BY a.leased_ms, a.attempt_id LIMIT $4;

-- name: waiting_long
-- Tickets that have waited since before $1, oldest first.
SELECT run_id, step_key, tenant, project, handler, enqueued_ms, raise_need FROM ticket
 WHERE open AND state = 1 AND enqueued_ms < $1 ORDER BY enqueued_ms LIMIT $2;

-- name: ending_long
-- Ends that wait for the acknowledgement of a point since before $1.
SELECT run_id, step_key, ended_ms, raise_need FROM ticket
 WHERE open AND state = 3 AND ended_ms < $1 ORDER BY ended_ms LIMIT $2;
