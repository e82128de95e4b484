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
-- Those stored are named by a manifest or artifact from here on. The touch makes a sweep that waited for the row look away.
WITH locked AS MATERIALIZED (
    SELECT c.tenant, c.digest FROM unnest($1::text[], $2::bytea[]) AS n(tenant, digest) JOIN chunk AS c USING (tenant, digest)
     ORDER BY 1, 2 FOR NO KEY UPDATE OF c)
UPDATE chunk AS c SET touched_ms = greatest(c.touched_ms, $3), named = true
  FROM locked AS l WHERE c.tenant = l.tenant AND c.digest = l.digest AND c.stored AND c.doomed_ms = 0
RETURNING c.tenant, c.digest;

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
