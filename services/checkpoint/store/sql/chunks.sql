-- What is known of chunks. Rows are locked in key order by everyone; the sweep waits for nobody.

-- name: announce
-- Before bytes are written. A chunk that a sweep has taken does not come back; `known`: it was stored before.
INSERT INTO chunk AS c (tenant, digest, touched_ms)
SELECT n.tenant, n.digest, $3 FROM unnest($1::text[], $2::bytea[]) AS n(tenant, digest) ORDER BY 1, 2
ON CONFLICT (tenant, digest) DO UPDATE SET touched_ms = greatest(c.touched_ms, excluded.touched_ms) WHERE c.doomed_ms = 0
RETURNING c.tenant, c.digest, c.stored;

-- name: mark_stored
-- $3: the bytes are there, or were found missing.
WITH locked AS MATERIALIZED (
    SELECT c.tenant, c.digest FROM unnest($1::text[], $2::bytea[]) AS n(tenant, digest) JOIN chunk AS c USING (tenant, digest)
     WHERE c.stored <> $3 ORDER BY 1, 2 FOR NO KEY UPDATE OF c)
UPDATE chunk AS c SET stored = $3 FROM locked AS l WHERE c.tenant = l.tenant AND c.digest = l.digest;

-- name: touch_stored
-- Those stored; they stay for the grace period from now.
WITH locked AS MATERIALIZED (
    SELECT c.tenant, c.digest FROM unnest($1::text[], $2::bytea[]) AS n(tenant, digest) JOIN chunk AS c USING (tenant, digest)
     ORDER BY 1, 2 FOR NO KEY UPDATE OF c)
UPDATE chunk AS c SET touched_ms = greatest(c.touched_ms, $3)
  FROM locked AS l WHERE c.tenant = l.tenant AND c.digest = l.digest AND c.stored AND c.doomed_ms = 0
RETURNING c.tenant, c.digest;

-- name: name_chunks
-- Those stored are named by a manifest or artifact of run $3 from here on. The touch makes a sweep that waited for the row look away.
WITH locked AS MATERIALIZED (
    SELECT c.tenant, c.digest FROM (SELECT DISTINCT tenant, digest FROM unnest($1::text[], $2::bytea[]) AS u(tenant, digest)) AS n
      JOIN chunk AS c USING (tenant, digest)
     ORDER BY 1, 2 FOR NO KEY UPDATE OF c),
named AS (
    UPDATE chunk AS c SET touched_ms = greatest(c.touched_ms, $4), named = true
      FROM locked AS l WHERE c.tenant = l.tenant AND c.digest = l.digest AND c.stored AND c.doomed_ms = 0
    RETURNING c.tenant, c.digest),
noted AS (
    INSERT INTO chunk_run (tenant, digest, run_id)
    SELECT DISTINCT n.tenant, n.digest, n.run_id
      FROM unnest($1::text[], $2::bytea[], $3::uuid[]) AS n(tenant, digest, run_id) JOIN named USING (tenant, digest)
     ORDER BY 1, 2, 3
    ON CONFLICT DO NOTHING)
SELECT tenant, digest FROM named;

-- name: lock_chunks_of
-- Chunks that these runs name: who names one of them now waits, and finds it as it is left.
SELECT c.tenant, c.digest
  FROM (SELECT DISTINCT tenant, digest FROM chunk_run WHERE run_id = ANY ($1::uuid[])) AS n JOIN chunk AS c USING (tenant, digest)
 ORDER BY 1, 2 FOR NO KEY UPDATE OF c;

-- name: unname_chunks
-- Behind their locks, in a statement of its own, which sees who named them until then: those that no other run names wait for the
-- sweep from $2 on.
WITH gone AS (DELETE FROM chunk_run WHERE run_id = ANY ($1::uuid[]) RETURNING tenant, digest)
UPDATE chunk AS c SET named = false, touched_ms = greatest(c.touched_ms, $2)
  FROM (SELECT DISTINCT tenant, digest FROM gone) AS g
 WHERE c.tenant = g.tenant AND c.digest = g.digest AND c.counted
   AND NOT EXISTS (SELECT FROM chunk_run AS o WHERE o.tenant = c.tenant AND o.digest = c.digest AND o.run_id <> ALL ($1::uuid[]));

-- name: doom
-- A sweep takes what nothing names since $1, and what another sweep took before $2 and gave up.
WITH old AS MATERIALIZED (
    SELECT tenant, digest FROM chunk
     WHERE NOT named AND touched_ms < $1 AND (doomed_ms = 0 OR doomed_ms < $2)
     ORDER BY touched_ms LIMIT $4 FOR UPDATE SKIP LOCKED)
UPDATE chunk AS c SET doomed_ms = $3, stored = false FROM old WHERE c.tenant = old.tenant AND c.digest = old.digest
RETURNING c.tenant, c.digest;

-- name: forget
-- The bytes are gone; unless another sweep has taken the row over.
DELETE FROM chunk AS c USING unnest($1::text[], $2::bytea[]) AS n(tenant, digest)
 WHERE c.tenant = n.tenant AND c.digest = n.digest AND c.doomed_ms = $3;

-- name: list_doomed
-- Chunks that a sweep took before $1 and did not finish with.
SELECT count(*) AS n, min(doomed_ms) AS since_ms FROM chunk WHERE NOT named AND doomed_ms > 0 AND doomed_ms < $1;
