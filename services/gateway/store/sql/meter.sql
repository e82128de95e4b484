-- Meter events. Appended behind the gates' locks, in the transaction in which their receipts land.

-- name: append_meter
-- What tries used; the next part of each.
INSERT INTO meter_event (tenant, project, run_id, step_key, slot, n, part, tool, micros, tokens, at_ms)
SELECT a.tenant, a.project, a.run_id, a.step_key, a.slot, a.n, coalesce(m.part, 0) + 1, a.tool, a.micros, a.tokens, $10::bigint
  FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::integer[], $7::text[], $8::bigint[], $9::bigint[])
    AS a(tenant, project, run_id, step_key, slot, n, tool, micros, tokens)
  LEFT JOIN LATERAL (
    SELECT max(e.part) AS part FROM meter_event AS e WHERE (e.run_id, e.step_key, e.slot, e.n) = (a.run_id, a.step_key, a.slot, a.n)) AS m
    ON true;

-- name: meter_page
-- Events of a tenant beyond an ordinal, oldest first.
SELECT * FROM meter_event AS e
 WHERE e.tenant = $1 AND ($2 = '' OR e.project = $2) AND e.ordinal > $3 ORDER BY e.ordinal LIMIT $4;

-- name: meter_of_run
-- The same of one run.
SELECT * FROM meter_event AS e
 WHERE e.run_id = $5 AND e.tenant = $1 AND ($2 = '' OR e.project = $2) AND e.ordinal > $3 ORDER BY e.ordinal LIMIT $4;
