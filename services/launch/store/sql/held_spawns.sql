-- Spawns that wait until their parent has the money. Whoever writes holds the parent's lock, but for `put_off`, which only moves a time.

-- name: held_known
-- Which of these commands wait.
SELECT h.run_id, h.step_key, h.slot FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot)
  JOIN held_spawn AS h USING (run_id, step_key, slot);

-- name: held_counts
-- How many wait of each of these runs.
SELECT run_id, count(*)::int AS held FROM held_spawn WHERE run_id = ANY ($1::uuid[]) GROUP BY run_id;

-- name: held_of
-- What waits of a run, in order; at most $2.
SELECT run_id, step_key, slot, children, micros, why, payload, held_ms FROM held_spawn WHERE run_id = $1 ORDER BY number LIMIT $2;

-- name: due_spawns
-- Those whose time to be judged again has come; at most $2.
SELECT run_id, step_key, slot, children, micros, why, payload, held_ms FROM held_spawn WHERE due_ms <= $1 ORDER BY due_ms, number LIMIT $2;

-- name: put_held
-- Spawns that wait from now on, in this order; the first of a run is looked at again at $9, those behind it when it is gone.
INSERT INTO held_spawn (run_id, step_key, slot, children, micros, why, payload, held_ms, due_ms)
SELECT a.run_id, a.step_key, a.slot, a.children, a.micros, a.why, a.payload, $8::bigint,
       CASE WHEN a.place > min(a.place) OVER (PARTITION BY a.run_id) OR EXISTS (SELECT FROM held_spawn AS h WHERE h.run_id = a.run_id)
            THEN 4611686018427387904 ELSE $9::bigint END
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[], $7::bytea[]) WITH ORDINALITY
       AS a(run_id, step_key, slot, children, micros, why, payload, place)
 ORDER BY a.place
ON CONFLICT DO NOTHING;

-- name: put_off
-- Those that still cannot be: looked at again later, each time twice as late, by $5 ms at first and by $6 at most.
UPDATE held_spawn AS h SET tries = h.tries + 1, why = a.why, due_ms = $7::bigint + least($6::bigint, $5::bigint << least(h.tries, 20))
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS a(run_id, step_key, slot, why)
 WHERE h.run_id = a.run_id AND h.step_key = a.step_key AND h.slot = a.slot;

-- name: drop_held
-- Spawns that have been judged.
DELETE FROM held_spawn AS h USING unnest($1::uuid[], $2::text[], $3::text[]) AS a(run_id, step_key, slot)
 WHERE h.run_id = a.run_id AND h.step_key = a.step_key AND h.slot = a.slot;

-- name: wake_held
-- The first that waits of each of these runs is judged again at once.
UPDATE held_spawn AS h SET due_ms = $2::bigint, tries = 0
  FROM (SELECT run_id, min(number) AS number FROM held_spawn WHERE run_id = ANY ($1::uuid[]) GROUP BY run_id) AS first
 WHERE h.run_id = first.run_id AND h.number = first.number;
