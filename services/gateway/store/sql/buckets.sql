-- Buckets: what was decided, what is in them, what tenants took.

-- name: read_version
-- Of everything about buckets.
SELECT version FROM bucket_version;

-- name: lock_version
-- Changes of buckets happen one after another: each has a version of its own.
SELECT version FROM bucket_version FOR NO KEY UPDATE;

-- name: next_version
-- One change more.
UPDATE bucket_version SET version = version + 1 RETURNING version;

-- name: read_buckets
-- Every bucket.
SELECT kind, name, unit, capacity, per_minute, level, at_ms, version, changed_ms FROM bucket ORDER BY kind, name, unit;

-- name: read_weights
-- Every weight.
SELECT kind, name, unit, tenant, weight FROM bucket_weight ORDER BY kind, name, unit, tenant;

-- name: read_uses
-- What tenants took of every bucket since; the greatest thousand of each.
SELECT kind, name, unit, tenant, taken, at_ms, wanted_ms FROM (
    SELECT *, row_number() OVER (PARTITION BY kind, name, unit ORDER BY taken DESC, tenant) AS place FROM bucket_use WHERE wanted_ms >= $1
) AS u WHERE place <= 1000 ORDER BY kind, name, unit, tenant;

-- name: lock_buckets
-- These buckets, in order: whoever takes from one waits for whoever takes from it now.
SELECT b.kind, b.name, b.unit, b.capacity, b.per_minute, b.level, b.at_ms, b.version, b.changed_ms
  FROM bucket AS b
 WHERE (b.kind, b.name, b.unit) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))
 ORDER BY b.kind, b.name, b.unit FOR NO KEY UPDATE;

-- name: uses_of
-- What tenants took of these buckets, of those that wanted something since.
SELECT kind, name, unit, tenant, taken, at_ms, wanted_ms FROM bucket_use
 WHERE (kind, name, unit) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[])) AND wanted_ms >= $4;

-- name: weights_of
-- Weights at these buckets.
SELECT kind, name, unit, tenant, weight FROM bucket_weight
 WHERE (kind, name, unit) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]));

-- name: save_levels
-- What is in buckets now.
UPDATE bucket AS b SET level = u.level, at_ms = u.at_ms
  FROM unnest($1::text[], $2::text[], $3::text[], $4::double precision[], $5::bigint[]) AS u(kind, name, unit, level, at_ms)
 WHERE b.kind = u.kind AND b.name = u.name AND b.unit = u.unit;

-- name: save_uses
-- What tenants took.
INSERT INTO bucket_use (kind, name, unit, tenant, taken, at_ms, wanted_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::double precision[], $6::bigint[], $7::bigint[])
ON CONFLICT (kind, name, unit, tenant) DO UPDATE
   SET taken = excluded.taken, at_ms = excluded.at_ms, wanted_ms = greatest(bucket_use.wanted_ms, excluded.wanted_ms);

-- name: forget_uses
-- Of who wants nothing any more.
DELETE FROM bucket_use WHERE wanted_ms < $1;

-- name: put_bucket
-- A bucket as decided; a new one is full.
INSERT INTO bucket AS b (kind, name, unit, capacity, per_minute, level, at_ms, version, changed_ms)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (kind, name, unit) DO UPDATE
   SET capacity = excluded.capacity, per_minute = excluded.per_minute, level = excluded.level, at_ms = excluded.at_ms,
       version = excluded.version, changed_ms = excluded.changed_ms;

-- name: remove_bucket
-- A bucket that nobody wants any more, with all that is kept of it but its changes.
WITH weights AS (DELETE FROM bucket_weight WHERE kind = $1 AND name = $2 AND unit = $3),
     uses AS (DELETE FROM bucket_use WHERE kind = $1 AND name = $2 AND unit = $3)
DELETE FROM bucket WHERE kind = $1 AND name = $2 AND unit = $3;

-- name: read_weight
-- One weight.
SELECT weight FROM bucket_weight WHERE kind = $1 AND name = $2 AND unit = $3 AND tenant = $4;

-- name: put_weight
-- One weight.
INSERT INTO bucket_weight (kind, name, unit, tenant, weight) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (kind, name, unit, tenant) DO UPDATE SET weight = excluded.weight;

-- name: note_change
-- Who changed what, and why.
INSERT INTO bucket_change (version, kind, name, unit, tenant, at_ms, actor, reason, former, became)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: read_changes
-- The newest changes before a version.
SELECT version, kind, name, unit, tenant, at_ms, actor, reason, former, became
  FROM bucket_change WHERE version < $1 ORDER BY version DESC LIMIT $2;
