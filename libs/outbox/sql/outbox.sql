-- name: append
-- Stores events in the transaction that made them true. An event that is there already is the same event.
INSERT INTO outbox (event_id, receiver, kind, key, payload, created_ms)
SELECT e.event_id, e.receiver, e.kind, e.key, e.payload, $6
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::bytea[]) AS e (event_id, receiver, kind, key, payload)
ON CONFLICT (event_id) DO NOTHING;

-- name: claim
-- Takes rows that nobody has: due at $1 and committed before $2 (younger ones are in their writer's memory), or, with $8,
-- whoever has them. Marks them taken until $3, by which a pass also knows what it has taken. Rows from beyond $4, or due
-- beyond $9, were written by a clock that has been set back since. At most $5, none of the lanes ($6 receiver, $7 whether it is the lane of raises)
-- that have no room. Never waits for another relay.
WITH taken AS (
    SELECT o.event_id
      FROM outbox AS o
     WHERE ((o.due_ms <= $1 AND o.created_ms < $2) OR o.due_ms > $9 OR o.created_ms > $4 OR $8::boolean)
       AND o.due_ms <> $3
       AND NOT EXISTS (SELECT 1
                         FROM unnest($6::text[], $7::boolean[]) AS f (receiver, raises)
                        WHERE f.receiver = o.receiver AND f.raises = (o.kind = 'raise_fences'))
     LIMIT $5
       FOR UPDATE SKIP LOCKED
)
UPDATE outbox AS o
   SET due_ms = $3
  FROM taken
 WHERE o.event_id = taken.event_id
RETURNING o.event_id, o.receiver, o.kind, o.key, o.payload;

-- name: put_aside
-- Leaves rows ($1) alone until $2: their receiver does not want them now. Locked in key order.
WITH locked AS MATERIALIZED (
    SELECT o.event_id
      FROM outbox AS o
     WHERE o.event_id = ANY ($1::uuid[])
     ORDER BY o.event_id
       FOR UPDATE
)
UPDATE outbox AS o
   SET due_ms = $2
  FROM locked
 WHERE o.event_id = locked.event_id;

-- name: take_back
-- Rows that were put aside, to be sent again; taken until $2. Those that another relay has at this moment are left out.
WITH taken AS (
    SELECT o.event_id
      FROM outbox AS o
     WHERE o.event_id = ANY ($1::uuid[])
     ORDER BY o.event_id
       FOR UPDATE SKIP LOCKED
)
UPDATE outbox AS o
   SET due_ms = $2
  FROM taken
 WHERE o.event_id = taken.event_id
RETURNING o.event_id, o.receiver, o.kind, o.key, o.payload;

-- name: forget
-- Deletes delivered rows without waiting for the disk: a delete that is lost is one more delivery. Locked in key order,
-- since two relays may have delivered the same rows.
WITH setting AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS value
), locked AS MATERIALIZED (
    SELECT o.event_id
      FROM outbox AS o
     WHERE o.event_id = ANY ($1::uuid[])
     ORDER BY o.event_id
       FOR UPDATE
)
DELETE FROM outbox AS o
 USING locked, setting
 WHERE o.event_id = locked.event_id AND setting.value = 'off';

-- name: keep
-- Moves delivered rows ($1, acknowledged in incarnation $2) to where they are kept, without waiting for the disk.
WITH setting AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS value
), acknowledged AS MATERIALIZED (
    SELECT a.event_id, a.incarnation
      FROM unnest($1::uuid[], $2::bigint[]) AS a (event_id, incarnation)
), locked AS MATERIALIZED (
    SELECT o.event_id
      FROM outbox AS o
     WHERE o.event_id = ANY ($1::uuid[])
     ORDER BY o.event_id
       FOR UPDATE
), gone AS (
    DELETE FROM outbox AS o
     USING locked, setting
     WHERE o.event_id = locked.event_id AND setting.value = 'off'
    RETURNING o.event_id, o.receiver, o.kind, o.key, o.payload, o.created_ms
)
INSERT INTO outbox_kept (event_id, receiver, kind, key, payload, created_ms, acknowledged_ms, incarnation)
SELECT gone.event_id, gone.receiver, gone.kind, gone.key, gone.payload, gone.created_ms, $3, a.incarnation
  FROM gone
  JOIN acknowledged AS a ON a.event_id = gone.event_id
ON CONFLICT (event_id) DO NOTHING;

-- name: bring_back
-- The receiver $1 answers in incarnation $2: what another incarnation acknowledged it may have lost, so it is due again.
WITH back AS (
    DELETE FROM outbox_kept AS k
     WHERE k.receiver = $1 AND k.incarnation <> $2
    RETURNING k.event_id, k.receiver, k.kind, k.key, k.payload, k.created_ms
)
INSERT INTO outbox (event_id, receiver, kind, key, payload, created_ms)
SELECT back.event_id, back.receiver, back.kind, back.key, back.payload, back.created_ms
  FROM back
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id;

-- name: drop_kept
-- Forgets kept rows that were acknowledged before $1.
DELETE FROM outbox_kept AS k
 WHERE k.acknowledged_ms < $1;

-- name: read_probes
-- One kept row of each receiver: sent again when nothing else is, to learn whether the receiver's incarnation changed.
SELECT DISTINCT ON (k.receiver) k.event_id, k.receiver, k.kind, k.key, k.payload
  FROM outbox_kept AS k
 ORDER BY k.receiver;

-- name: bury
-- Moves refused rows to the dead letters, with the receiver's reasons.
WITH refused AS MATERIALIZED (
    SELECT r.event_id, r.reason
      FROM unnest($1::uuid[], $2::text[]) AS r (event_id, reason)
), gone AS (
    DELETE FROM outbox AS o
     USING refused
     WHERE o.event_id = refused.event_id
    RETURNING o.event_id, o.receiver, o.kind, o.key, o.payload, o.created_ms
)
INSERT INTO dead_letter (event_id, receiver, kind, key, payload, created_ms, refused_ms, reason)
SELECT gone.event_id, gone.receiver, gone.kind, gone.key, gone.payload, gone.created_ms, $3, refused.reason
  FROM gone
  JOIN refused ON refused.event_id = gone.event_id
ON CONFLICT (event_id) DO NOTHING;

-- name: list_undelivered
-- Events committed before $1 that are still not delivered, oldest first, at most $2.
SELECT o.event_id, o.receiver, o.kind, o.key, o.created_ms, '' AS reason
  FROM outbox AS o
 WHERE o.created_ms < $1
 ORDER BY o.created_ms, o.event_id
 LIMIT $2;

-- name: list_dead_letters
-- Events that a receiver refused, oldest first, at most $1.
SELECT d.event_id, d.receiver, d.kind, d.key, d.created_ms, d.reason
  FROM dead_letter AS d
 ORDER BY d.refused_ms, d.event_id
 LIMIT $1;

-- name: requeue
-- Dead letters become due again; one row for each that was there.
WITH back AS (
    DELETE FROM dead_letter AS d
     WHERE d.event_id = ANY ($1::uuid[])
    RETURNING d.event_id, d.receiver, d.kind, d.key, d.payload, d.created_ms
)
INSERT INTO outbox (event_id, receiver, kind, key, payload, created_ms)
SELECT back.event_id, back.receiver, back.kind, back.key, back.payload, back.created_ms
  FROM back
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id;

-- name: discard
-- Drops dead letters for good; one row for each that was there.
DELETE FROM dead_letter AS d
 WHERE d.event_id = ANY ($1::uuid[])
RETURNING d.event_id;
