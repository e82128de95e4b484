-- What is read to say why tickets wait, and what is recorded of those that were. Reads only.

-- name: read_stopped
-- Scopes of a tenant and its project that are not open here.
SELECT kind, scope_id, mode FROM scope_fence
 WHERE mode > 0 AND (kind = 'tenant' AND scope_id = $1::text OR kind = 'project' AND scope_id = $1::text || '/' || $2::text)
 ORDER BY kind DESC;

-- name: read_carriers
-- Workers seen since $1 that carry one of these handlers.
SELECT w.tenant, w.worker_id, w.project, w.handlers, w.capabilities, w.fleet FROM worker AS w
 WHERE w.seen_ms >= $1 AND string_to_array(w.handlers, E'\n') && $2::text[]
 ORDER BY w.tenant, w.worker_id;

-- name: export_tickets
-- Attempts, and what waits or lives, of runs from an id ($1) to before another ($2), after a place ($3, $4, $5), by run, step and
-- lease. The newest attempt of a step has its ready time in the ticket's row; of earlier ones it is not kept. A ticket without an
-- attempt in the history is what waits, lives or ends.
SELECT * FROM (
    SELECT t.run_id, t.step_key, a.lease_epoch, a.attempt_number, t.tenant, t.project, t.run_class, t.priority, t.deadline_ms,
           t.handler, t.requires, a.leased_ms, a.ended_ms, a.worker_id,
           CASE WHEN a.lease_epoch = t.ended_lease AND t.state = 4 THEN t.enqueued_ms ELSE 0 END AS ready_ms,
           CASE WHEN a.lease_epoch = t.ended_lease AND t.state = 4 THEN t.fleet ELSE '' END AS fleet
      FROM ticket AS t JOIN attempt AS a ON a.run_id = t.run_id AND a.step_key = t.step_key
     WHERE t.run_id >= $1 AND t.run_id < $2 AND (t.run_id, t.step_key) >= ($3::uuid, $4::text) AND ($6::text = '' OR t.tenant = $6)
    UNION ALL
    SELECT t.run_id, t.step_key, t.lease_epoch, t.attempt_number, t.tenant, t.project, t.run_class, t.priority, t.deadline_ms,
           t.handler, t.requires, CASE WHEN t.state = 1 THEN 0 ELSE t.leased_ms END, CASE WHEN t.state = 3 THEN t.ended_ms ELSE 0 END,
           CASE WHEN t.state = 1 THEN '' ELSE t.worker_id END, t.enqueued_ms, CASE WHEN t.state = 1 THEN '' ELSE t.fleet END
      FROM ticket AS t
     WHERE t.run_id >= $1 AND t.run_id < $2 AND (t.run_id, t.step_key) >= ($3::uuid, $4::text) AND ($6::text = '' OR t.tenant = $6)
       AND t.open) AS r
 WHERE (r.run_id, r.step_key, r.lease_epoch) > ($3::uuid, $4::text, $5::bigint)
 ORDER BY r.run_id, r.step_key, r.lease_epoch LIMIT $7;
