-- What is read to say why tickets wait, and what is recorded of those that were. Reads only.

-- name: read_stopped
-- Scopes of a tenant and its project, and tools, that are not open here.
SELECT kind, scope_id, mode FROM scope_fence
 WHERE mode > 0 AND (kind = 'tenant' AND scope_id = $1::text OR kind = 'project' AND scope_id = $1::text || '/' || $2::text OR kind = 'tool')
 ORDER BY kind = 'tool', kind DESC, scope_id;

-- name: read_carriers
-- Workers seen since $1 that carry one of these handlers and have not signed off.
SELECT w.tenant, w.worker_id, w.project, w.handlers, w.capabilities, w.fleet, w.resources, w.process FROM worker AS w
 WHERE w.seen_ms >= $1 AND w.seen_ms > w.left_ms AND string_to_array(w.handlers, E'\n') && $2::text[]
 ORDER BY w.tenant, w.worker_id;

-- name: export_tickets
-- Steps of runs from an id ($1) to before another ($2), after one ($3, $4), in order; of one tenant, or of all.
SELECT t.run_id, t.step_key, t.state, t.tenant, t.project, t.run_class, t.priority, t.deadline_ms, t.handler, t.requires, t.enqueued_ms,
       t.attempt_number, t.leased_ms, t.ended_ms, t.ended_lease, t.worker_id, t.fleet, t.resources,
       t.launched_by
  FROM ticket AS t
 WHERE t.run_id >= $1 AND t.run_id < $2 AND (t.run_id, t.step_key) > ($3::uuid, $4::text) AND t.tenant <> ''
   AND ($5::text = '' OR t.tenant = $5)
 ORDER BY t.run_id, t.step_key LIMIT $6;

-- name: export_attempts
-- Ended attempts of these steps, in order.
SELECT a.run_id, a.step_key, a.lease_epoch, a.attempt_number, a.leased_ms, a.ended_ms, a.worker_id
  FROM unnest($1::uuid[], $2::text[]) AS k(run_id, step_key) JOIN attempt AS a USING (run_id, step_key)
 ORDER BY a.run_id, a.step_key, a.lease_epoch;
