-- Envelopes and the slices of them that children have. Whatever changes a slice does so behind lock_gates of libs.fence, in the
-- same transaction.

-- name: read_envelopes
-- What the gates hold.
SELECT g.run_id, g.mode, g.granted, g.held, g.used, g.delegated, g.envelope_sequence FROM run_gate AS g WHERE g.run_id = ANY ($1::uuid[]);

-- name: read_delegations
-- Slices by name.
SELECT d.run_id, d.delegation, d.sequence, d.micros, d.returned_ms
  FROM unnest($1::uuid[], $2::bytea[]) AS n(run_id, delegation) JOIN delegation AS d USING (run_id, delegation);

-- name: take_slices
-- New slices, those of a later sequence, and greater ones of the same; what they take besides is counted.
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bigint[], $4::bigint[]) AS a(run_id, delegation, sequence, micros)),
former AS MATERIALIZED (
    SELECT ask.run_id, ask.delegation, d.micros FROM ask JOIN delegation AS d USING (run_id, delegation)),
put AS (
    INSERT INTO delegation AS d (run_id, delegation, sequence, micros, taken_ms)
    SELECT run_id, delegation, sequence, micros, $5::bigint FROM ask ORDER BY run_id, delegation
    ON CONFLICT (run_id, delegation) DO UPDATE SET sequence = excluded.sequence, micros = excluded.micros
      WHERE (d.sequence, d.micros) < (excluded.sequence, excluded.micros) AND d.returned_ms = 0
    RETURNING d.run_id, d.delegation, d.micros)
UPDATE run_gate AS g SET delegated = g.delegated + s.more
  FROM (SELECT p.run_id, sum(p.micros - coalesce(f.micros, 0))::bigint AS more
          FROM put AS p LEFT JOIN former AS f USING (run_id, delegation) GROUP BY p.run_id) AS s
 WHERE g.run_id = s.run_id;

-- name: name_slices
-- Slices that come back and are not known yet. Waits for whoever takes one now, and perhaps makes its gate: the gates are locked after it.
INSERT INTO delegation (run_id, delegation, sequence, micros, taken_ms)
SELECT DISTINCT run_id, delegation, 0, 0, $3::bigint FROM unnest($1::uuid[], $2::bytea[]) AS a(run_id, delegation) ORDER BY 1, 2
ON CONFLICT DO NOTHING;

-- name: return_slices
-- Slices that came back, once each: what was not used is free again. One that is not known was taken from a database that has lost
-- it: what it used counts all the same.
WITH ask AS MATERIALIZED (
    SELECT DISTINCT ON (run_id, delegation) * FROM unnest($1::uuid[], $2::bytea[], $3::bigint[]) AS a(run_id, delegation, spent)
     ORDER BY run_id, delegation, spent DESC),
former AS MATERIALIZED (
    SELECT ask.run_id, ask.delegation, d.micros FROM ask JOIN delegation AS d USING (run_id, delegation)),
put AS (
    INSERT INTO delegation AS d (run_id, delegation, sequence, micros, spent, returned_ms, taken_ms)
    SELECT run_id, delegation, 1, 0, spent, $4::bigint, $4::bigint FROM ask ORDER BY run_id, delegation
    ON CONFLICT (run_id, delegation) DO UPDATE SET spent = excluded.spent, returned_ms = excluded.returned_ms
      WHERE d.returned_ms = 0
    RETURNING d.run_id, d.delegation, d.spent)
UPDATE run_gate AS g SET delegated = g.delegated + s.more
  FROM (SELECT p.run_id, sum(p.spent - coalesce(f.micros, 0))::bigint AS more
          FROM put AS p LEFT JOIN former AS f USING (run_id, delegation) GROUP BY p.run_id) AS s
 WHERE g.run_id = s.run_id;
