-- Shares: what was decided, and what leaders tell each other.

-- name: read_policy
-- What holds for the installation, and the version of everything about shares.
SELECT version, reserve_permille, migration_permille, half_life_ms, entry_penalty_ms, most_waiting FROM share_policy;

-- name: read_parts
-- Every tenant's part, and every project's bound.
SELECT tenant, project, weight, most_leases, most_waiting, version, changed_ms FROM share ORDER BY tenant, project;

-- name: lock_policy
-- Changes of shares happen one after another: each has a version of its own.
SELECT version, reserve_permille, migration_permille, half_life_ms, entry_penalty_ms, most_waiting FROM share_policy FOR NO KEY UPDATE;

-- name: read_part
-- One part as it is.
SELECT weight, most_leases, most_waiting, version, changed_ms FROM share WHERE tenant = $1 AND project = $2;

-- name: put_policy
-- The next policy, and the next version.
UPDATE share_policy SET version = version + 1, reserve_permille = $1, migration_permille = $2, half_life_ms = $3,
       entry_penalty_ms = $4, most_waiting = $5
RETURNING version;

-- name: put_part
-- A part, under the next version.
WITH next AS (UPDATE share_policy SET version = version + 1 RETURNING version)
INSERT INTO share AS s (tenant, project, weight, most_leases, most_waiting, version, changed_ms)
SELECT $1, $2, $3, $4, $6, next.version, $5 FROM next
ON CONFLICT (tenant, project) DO UPDATE
   SET weight = excluded.weight, most_leases = excluded.most_leases, most_waiting = excluded.most_waiting,
       version = excluded.version, changed_ms = excluded.changed_ms
RETURNING version;

-- name: note_change
-- Who changed what, and why.
INSERT INTO share_change (version, tenant, project, at_ms, actor, reason, former, became) VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: read_changes
-- The newest changes before a version.
SELECT version, tenant, project, at_ms, actor, reason, former, became FROM share_change WHERE version < $1 ORDER BY version DESC LIMIT $2;

-- name: put_use
-- What this process sees, all of it: what is not named any more goes. Answers what had no row: a row that an upsert inserted, and did
-- not update, has no xmax.
WITH said AS (SELECT * FROM unnest($2::text[], $3::text[], $4::integer[], $5::double precision[], $7::integer[],
                                       $8::double precision[])
                  AS u(tenant, project, running, average, waiting, extra)),
gone AS (DELETE FROM share_use AS o WHERE o.holder = $1 AND NOT EXISTS (
    SELECT 1 FROM said WHERE said.tenant = o.tenant AND said.project = o.project)),
put AS (INSERT INTO share_use AS u (holder, tenant, project, running, average, beat, waiting, extra)
    SELECT $1, tenant, project, running, average, $6, waiting, extra FROM said ORDER BY tenant, project
    ON CONFLICT (holder, tenant, project) DO UPDATE SET running = excluded.running, average = excluded.average, beat = excluded.beat,
           waiting = excluded.waiting, extra = excluded.extra
    RETURNING u.tenant, u.project, u.xmax = 0 AS fresh)
SELECT tenant, project FROM put WHERE fresh;

-- name: read_use
-- What the other processes said last.
SELECT holder, tenant, project, running, average, beat, waiting, extra FROM share_use WHERE holder <> $1;

-- name: read_holders
-- Who leads some shard.
SELECT DISTINCT holder FROM shard WHERE holder <> '';

-- name: inherit_use
-- What processes said that are silent since this beat: whoever deletes it takes it over.
DELETE FROM share_use AS o USING unnest($1::text[], $2::bigint[]) AS s(holder, beat) WHERE o.holder = s.holder AND o.beat = s.beat
RETURNING o.holder, o.tenant, o.project, o.running, o.average, o.beat, 0 AS waiting, 0::double precision AS extra;
