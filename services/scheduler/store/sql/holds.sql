-- Holds, their history, who acts on them, shards handed over, and queues as operators see them.

-- name: lock_changes
-- Changes of holds come one after the other: whoever has read a revision has read every change up to it.
SELECT revision FROM hold_change FOR UPDATE;

-- name: note_change
-- A change was made under the lock; its revision.
UPDATE hold_change SET revision = revision + 1 RETURNING revision;

-- name: read_in_force
-- The revision, and beside it the holds in force as of it: at least one row. After them the scopes that launch stopped, as this
-- point holds them.
SELECT c.revision, h.*, NULL::text AS stopped, NULL::text AS stopped_id, NULL::smallint AS stopped_mode
  FROM hold_change AS c LEFT JOIN hold AS h ON h.released_ms = 0
UNION ALL
SELECT c.revision, (NULL::hold).*, s.kind, s.scope_id, s.mode FROM hold_change AS c JOIN scope_fence AS s ON s.mode > 0;

-- name: read_hold
-- The hold in force on a name.
SELECT * FROM hold WHERE kind = $1 AND name = $2 AND released_ms = 0;

-- name: place_hold
-- A new hold. Nothing where one is in force.
INSERT INTO hold (kind, name, mode, reason, actor, at_ms) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING RETURNING *;

-- name: release_hold
-- Ends the hold in force on a name: this one ($3), or whichever is ($3 = 0).
UPDATE hold SET released_ms = $4, released_by = $5, release_reason = $6
 WHERE kind = $1 AND name = $2 AND released_ms = 0 AND ($3::bigint = 0 OR hold_id = $3)
RETURNING *;

-- name: list_holds
-- Newest first: in force, or all ($2), of a kind or every one ($1 = 0), below an id.
SELECT * FROM hold WHERE hold_id < $3 AND ($1::smallint = 0 OR kind = $1) AND ($2::boolean OR released_ms = 0)
 ORDER BY hold_id DESC LIMIT $4;

-- name: forget_holds
-- What was released or handed over long ago, holds of steps of which nothing is kept any more, and processes that are gone.
WITH acks AS (DELETE FROM hold_ack WHERE seen_ms < $2),
     moves AS (DELETE FROM shard_move WHERE at_ms < $1)
DELETE FROM hold AS h
 WHERE h.released_ms BETWEEN 1 AND $1
    OR h.kind = 4 AND h.at_ms < $1 AND NOT EXISTS (SELECT FROM ticket AS t WHERE t.run_id = split_part(h.name, '/', 1)::uuid);

-- name: acknowledge
-- This process acts on every change up to a revision.
INSERT INTO hold_ack AS a (member_id, revision, seen_ms) VALUES ($1, $2, $3)
ON CONFLICT (member_id) DO UPDATE SET revision = greatest(a.revision, excluded.revision), seen_ms = excluded.seen_ms;

-- name: read_acknowledged
-- Which revision each process acts on, of those heard of since $1, and when it said so.
SELECT member_id, revision, seen_ms FROM hold_ack WHERE seen_ms >= $1;

-- name: read_shard_holders
-- Who leads some shard: nobody else can commit a grant there.
SELECT DISTINCT holder, address FROM shard WHERE holder <> '';

-- name: sign_off
-- A process that grants nothing any more.
DELETE FROM hold_ack WHERE member_id = $1;

-- name: note_moves
-- Shards handed over or returned, before it is done.
INSERT INTO shard_move (shard_id, from_member, to_member, reason, actor, at_ms)
SELECT m.shard_id, m.from_member, m.to_member, $4, $5, $6
  FROM unnest($1::smallint[], $2::text[], $3::text[]) AS m(shard_id, from_member, to_member);

-- name: read_confirmed
-- Which election each shard's row confirmed last: its epoch without the generation.
SELECT shard_id, authority_epoch & ((1::bigint << 40) - 1) AS revision FROM shard;

-- name: read_extent
-- What a hold stops: by shard ($1 >= 0), tenant, project, handler, worker, step ($7, $8: its instances too), each where it is given; and
-- workers seen since $6 that have not signed off. A step was seen that ever had a ticket.
SELECT count(*) FILTER (WHERE t.state = 1 AND $5 = '') AS queued, count(*) FILTER (WHERE t.state = 2) AS live,
       (SELECT count(*) FROM worker AS w
         WHERE w.seen_ms >= $6 AND w.seen_ms > w.left_ms AND $1 < 0 AND $7::uuid IS NULL AND ($2 = '' OR w.tenant = $2)
           AND ($3 = '' OR w.project IN ('', $3))
           AND ($4 = '' OR $4 = ANY (string_to_array(w.handlers, E'\n'))) AND ($5 = '' OR w.worker_id = $5)) AS workers,
       (SELECT count(*) FROM ticket AS s WHERE s.run_id = $7 AND (s.step_key = $8::text OR starts_with(s.step_key, $8 || '[')))
       + (SELECT count(*) FROM worker AS w
         WHERE $1 < 0 AND $7::uuid IS NULL AND ($2 = '' OR w.tenant = $2) AND ($3 = '' OR w.project = $3)
           AND ($4 = '' OR $4 = ANY (string_to_array(w.handlers, E'\n'))) AND ($5 = '' OR w.worker_id = $5)) AS seen
  FROM ticket AS t
 WHERE t.open AND ($1::integer < 0 OR t.shard_id = $1) AND ($3::text = '' OR t.project = $3)
   AND ($2::text = '' OR CASE WHEN $5 <> '' AND t.fleet <> '' THEN t.fleet ELSE t.tenant END = $2)   -- a worker is of its key's tenant
   AND ($4::text = '' OR t.handler = $4) AND ($5::text = '' OR t.worker_id = $5)
   AND ($7::uuid IS NULL OR t.run_id = $7 AND (t.step_key = $8 OR starts_with(t.step_key, $8 || '[')));

-- name: read_queues
-- What waits and what is live, by tenant, project and handler, after a name; workers seen since $7 that carry it and have not signed off.
SELECT q.*, (SELECT count(*) FROM worker AS w
              WHERE w.seen_ms >= $7 AND w.seen_ms > w.left_ms AND (w.fleet OR w.tenant = q.tenant AND w.project IN ('', q.project))
                AND q.handler = ANY (string_to_array(w.handlers, E'\n'))) AS workers
  FROM (SELECT t.tenant, t.project, t.handler, count(*) FILTER (WHERE t.state = 1) AS waiting,
               coalesce(min(t.enqueued_ms) FILTER (WHERE t.state = 1), 0) AS oldest_ms,
               count(*) FILTER (WHERE t.state = 2) AS live
          FROM ticket AS t
         WHERE t.open AND ($1::text = '' OR t.tenant = $1) AND ($2::text = '' OR t.project = $2) AND ($3::text = '' OR t.handler = $3)
           AND (t.tenant, t.project, t.handler) > ($4::text, $5::text, $6::text)
         GROUP BY t.tenant, t.project, t.handler ORDER BY t.tenant, t.project, t.handler LIMIT $8) AS q
 ORDER BY q.tenant, q.project, q.handler;

-- name: read_held_queues
-- In which queues something of these steps waits or is live; of a step that is many, of its instances.
SELECT DISTINCT a.place, t.tenant, t.project, t.handler
  FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS a(run_id, step_key, place)
  JOIN ticket AS t ON t.open AND t.run_id = a.run_id AND (t.step_key = a.step_key OR starts_with(t.step_key, a.step_key || '['))
 ORDER BY a.place, t.tenant, t.project, t.handler;
