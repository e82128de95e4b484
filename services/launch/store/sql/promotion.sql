-- A launch whose database was promoted: which runs it has not adopted yet.

-- name: adopted
-- The incarnation in which every run was adopted last.
SELECT incarnation FROM adoption WHERE one;

-- name: note_adopted
-- Never falls.
INSERT INTO adoption AS a (one, incarnation) VALUES (true, $1::bigint)
ON CONFLICT (one) DO UPDATE SET incarnation = greatest(a.incarnation, excluded.incarnation);

-- name: unadopted
-- Runs that are not terminal and whose epoch an earlier incarnation issued ($1: the least of this one), by the index of open runs.
SELECT run_id FROM run WHERE state < 9 AND deadline_ms > 0 AND epoch < $1 ORDER BY run_id LIMIT $2;

-- name: known
-- Which of these have a row.
SELECT run_id FROM run WHERE run_id = ANY ($1::uuid[]);
