-- Child runs: spawned, counted when they end, joined. The parent's row is the one lock of all that is about its children.
-- How several runs are locked: see runs.sql.

-- name: spawns_known
-- Which of these commands have been judged.
SELECT s.run_id, s.step_key, s.slot FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot)
  JOIN spawn AS s USING (run_id, step_key, slot);

-- name: lock_family
-- Runs and their parents, in order of ids, with what decisions look at.
SELECT run_id, tenant, project, state, outcome, epoch, version, points, enforced, quiesced, capabilities, budget_micros, used_micros,
       deadline_ms, paused_ms, awaits, parent_id, root_id, depth, independent, children, open_children, delegated_micros, budget_sequence,
       run_class, priority, digest, promised, pause_until_ms, launched_by, deepest, revoking
  FROM run
 WHERE run_id = ANY ($1::uuid[] || ARRAY(SELECT c.parent_id FROM run AS c WHERE c.run_id = ANY ($1::uuid[]) AND c.parent_id IS NOT NULL))
 ORDER BY run_id FOR NO KEY UPDATE;

-- name: lock_trees
-- Runs ($1) with everything that came of them, is not terminal and does not outlive its parent; besides, the parents of those that
-- wait to be told their outcome, and $2 by themselves. All in one statement, in order of ids.
WITH RECURSIVE below AS (
    SELECT c.run_id, c.open_children FROM run AS p JOIN run AS c ON c.parent_id = p.run_id
     WHERE p.run_id = ANY ($1::uuid[]) AND p.open_children > 0 AND NOT c.independent AND c.state < 9
    UNION ALL
    SELECT c.run_id, c.open_children FROM below AS b JOIN run AS c ON c.parent_id = b.run_id
     WHERE b.open_children > 0 AND NOT c.independent AND c.state < 9)
SELECT run_id, tenant, project, state, outcome, epoch, version, points, enforced, quiesced, capabilities, budget_micros, used_micros,
       deadline_ms, paused_ms, awaits, parent_id, root_id, depth, independent, children, open_children, delegated_micros, budget_sequence,
       run_class, priority, digest, promised, pause_until_ms, launched_by, deepest, revoking
  FROM run
 WHERE run_id = ANY ($1::uuid[] || $2::uuid[] || ARRAY(SELECT b.run_id FROM below AS b)
                     || ARRAY(SELECT w.parent_id FROM run AS w WHERE w.run_id = ANY ($1::uuid[]) AND w.awaits AND w.parent_id IS NOT NULL))
 ORDER BY run_id FOR NO KEY UPDATE;

-- name: below
-- Everything that came of these runs, is not terminal, and does not outlive its parent.
WITH RECURSIVE below AS (
    SELECT c.run_id, c.open_children FROM run AS c WHERE c.parent_id = ANY ($1::uuid[]) AND NOT c.independent AND c.state < 9
    UNION ALL
    SELECT c.run_id, c.open_children FROM below AS b JOIN run AS c ON c.parent_id = b.run_id
     WHERE b.open_children > 0 AND NOT c.independent AND c.state < 9)
SELECT run_id FROM below ORDER BY run_id;

-- name: admit_children
-- Stores children with their first event and their slices; their parents, which are locked, count them. A parent that gives money
-- touches the gateway from now on; where that is not asked what is under way (a pause, a revocation), it has nothing of the run to stop.
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[], $5::int[], $6::text[], $7::smallint[], $8::text[], $9::int[],
                         $10::bigint[], $11::bigint[], $12::bigint[], $13::bytea[], $14::text[], $15::text[], $16::text[], $17::text[],
                         $18::bytea[], $19::text[], $20::boolean[], $23::smallint[])
        AS a(run_id, parent_id, digest, workflow_name, workflow_number, build, points, capabilities, priority, deadline_ms,
             budget_micros, budget_tokens, input, spawn_step, spawn_slot, spawn_group, spawn_name, delegation, promised, independent, deepest)),
born AS MATERIALIZED (
    SELECT a.*, p.tenant, p.project, coalesce(p.root_id, p.run_id) AS root_id, p.depth + 1 AS depth, p.run_class, p.labels, p.launched_by,
           p.paused_ms, p.pause_until_ms, CASE WHEN p.state IN (5, 6) THEN 6 ELSE 1 END AS state
      FROM ask AS a JOIN run AS p ON p.run_id = a.parent_id),
made AS (
    INSERT INTO run (run_id, tenant, project, digest, workflow_name, workflow_number, build, state, epoch, sequence, points, capabilities,
                     run_class, priority, deadline_ms, created_ms, changed_ms, budget_micros, budget_tokens, input, labels, parent_id,
                     root_id, depth, independent, spawn_step, spawn_slot, spawn_group, spawn_name, delegation, promised, paused_ms,
                     pause_until_ms, launched_by, deepest)
    SELECT run_id, tenant, project, digest, workflow_name, workflow_number, build, state, $21::bigint, 1, points,
           coalesce(string_to_array(nullif(capabilities, ''), ' '), '{}'), run_class, priority, deadline_ms, $22::bigint, $22::bigint,
           budget_micros, budget_tokens, input, labels, parent_id, root_id, depth, independent, spawn_step, spawn_slot, spawn_group,
           spawn_name, delegation, promised, paused_ms, pause_until_ms, launched_by, deepest
      FROM born),
logged AS (
    INSERT INTO run_event (run_id, sequence, at_ms, kind, state, step_key, actor, detail)
    SELECT run_id, 1, $22::bigint, 'run.accepted', state, '', 'run:' || parent_id,
           json_build_object('parent_id', parent_id, 'step', spawn_step, 'slot', spawn_slot, 'name', spawn_name)::text
      FROM born),
posted AS (
    INSERT INTO ledger_posting (run_id, kind, sequence, tenant, debit, credit, micros, at_ms)
    SELECT run_id, 'delegate', 1, tenant, 'parent:reserved', 'run:reserved', budget_micros, $22::bigint FROM born WHERE budget_micros > 0),
counted AS (
    UPDATE tenant AS t SET active_descendants = t.active_descendants + total.n
      FROM (SELECT tenant, count(*)::int AS n FROM born GROUP BY tenant) AS total
     WHERE t.tenant = total.tenant)
UPDATE run AS p
   SET children = p.children + total.n, open_children = p.open_children + total.open,
       delegated_micros = p.delegated_micros + total.micros, points = p.points | CASE WHEN total.micros > 0 THEN 1 ELSE 0 END,
       enforced = CASE WHEN (p.revoking OR p.state = 5) AND total.micros > 0 AND p.points & 1 = 0 THEN p.enforced | 1 ELSE p.enforced END,
       quiesced = CASE WHEN p.state = 5 AND total.micros > 0 AND p.points & 1 = 0 THEN p.quiesced | 1 ELSE p.quiesced END
  FROM (SELECT parent_id, count(*)::int AS n, count(*) FILTER (WHERE NOT independent)::int AS open, sum(budget_micros)::bigint AS micros
          FROM born GROUP BY parent_id) AS total
 WHERE p.run_id = total.parent_id;

-- name: put_spawns
-- What became of commands; the children of those that were refused are counted as denied. Behind their parents' locks.
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::text[])
        AS a(run_id, step_key, slot, spawn_group, children, failure_class, failure_message, failure_type)),
put AS (
    INSERT INTO spawn (run_id, step_key, slot, spawn_group, children, failure_class, failure_message, failure_type, at_ms)
    SELECT run_id, step_key, slot, spawn_group, children, failure_class, failure_message, failure_type, $9::bigint FROM ask)
INSERT INTO child_group AS g (run_id, step_key, spawn_group, total, denied)
SELECT run_id, step_key, spawn_group, sum(children)::int, coalesce(sum(children) FILTER (WHERE failure_class <> ''), 0)::int
  FROM ask GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (run_id, step_key, spawn_group) DO UPDATE SET total = g.total + excluded.total, denied = g.denied + excluded.denied;

-- name: count_ended
-- Children that have just become terminal ($1; $2: whether what they have not used goes back to the parent), once: their groups and
-- parents count them. The parents are locked.
WITH ended AS MATERIALIZED (
    SELECT r.run_id, r.parent_id, r.spawn_step, r.spawn_group, r.state, r.independent,
           CASE WHEN e.back THEN greatest(0, r.budget_micros - r.delegated_micros - r.used_micros) ELSE 0 END AS returned
      FROM unnest($1::uuid[], $2::boolean[]) AS e(run_id, back) JOIN run AS r USING (run_id)),
groups AS (
    UPDATE child_group AS g
       SET succeeded = g.succeeded + s.succeeded, failed = g.failed + s.failed, cancelled = g.cancelled + s.cancelled
      FROM (SELECT parent_id, spawn_step, spawn_group, count(*) FILTER (WHERE state = 9)::int AS succeeded,
                   count(*) FILTER (WHERE state IN (10, 12))::int AS failed, count(*) FILTER (WHERE state = 11)::int AS cancelled
              FROM ended GROUP BY 1, 2, 3) AS s
     WHERE (g.run_id, g.step_key, g.spawn_group) = (s.parent_id, s.spawn_step, s.spawn_group))
UPDATE run AS p
   SET open_children = p.open_children - s.open, delegated_micros = p.delegated_micros - s.returned,
       returned_micros = p.returned_micros + s.returned
  FROM (SELECT parent_id, count(*) FILTER (WHERE NOT independent)::int AS open, sum(returned)::bigint AS returned
          FROM ended GROUP BY parent_id) AS s
 WHERE p.run_id = s.parent_id;

-- name: slices_of
-- Slices of children that have ended, and what they and all below them have used.
SELECT r.parent_id, r.delegation, r.used_micros + r.delegated_micros AS spent FROM run AS r
 WHERE r.run_id = ANY ($1::uuid[]) AND r.parent_id IS NOT NULL AND r.budget_micros > 0;

-- name: put_joins
-- What steps wait for; the first of a slot stands.
INSERT INTO child_join (run_id, step_key, slot, groups, slots, need, on_failure, rest, warns, state, asked_ms)
SELECT run_id, step_key, slot, string_to_array(groups, E'\n'), coalesce(string_to_array(nullif(slots, ''), E'\n'), '{}'), need, on_failure, rest,
       warns, 1, $9::bigint
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::smallint[], $8::smallint[], $10::boolean[])
    AS a(run_id, step_key, slot, groups, slots, need, on_failure, rest, warns)
 ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING;

-- name: open_joins
-- What steps of these runs wait for: with the spawns that are not known yet, and how many of its children some point may not have
-- heard the end of, where that is asked.
SELECT j.*, missing.slots AS missing, coalesce(ending.n, 0)::int AS unenforced
  FROM child_join AS j
 CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(n.slot), '{}') AS slots FROM unnest(j.slots) AS n(slot)
     WHERE NOT EXISTS (SELECT FROM spawn AS s WHERE (s.run_id, s.step_key, s.slot) = (j.run_id, j.step_key, n.slot))) AS missing
  LEFT JOIN LATERAL (
    SELECT count(*) AS n FROM run AS c
     WHERE j.state = 2 AND c.parent_id = j.run_id AND c.spawn_step = j.step_key AND c.spawn_group = ANY (j.groups) AND c.state < 8) AS ending
    ON true
 WHERE j.run_id = ANY ($1::uuid[]) AND j.state < 3 ORDER BY j.run_id, j.step_key, j.slot;

-- name: groups_of
-- How groups stand.
SELECT run_id, step_key, spawn_group, total, succeeded, failed, cancelled, denied FROM child_group WHERE run_id = ANY ($1::uuid[]);

-- name: rest_of
-- Children whose outcome is open, of joins of these runs that are decided and go on without the rest.
SELECT c.run_id FROM child_join AS j
  JOIN run AS c ON c.parent_id = j.run_id AND c.spawn_step = j.step_key AND c.spawn_group = ANY (j.groups)
 WHERE j.run_id = ANY ($1::uuid[]) AND j.state = 2 AND j.rest = 2 AND c.state < 7 ORDER BY c.run_id;

-- name: ending_joins
-- Runs with a join that is decided, goes on without the rest, and of whose rest the outcome is open.
SELECT DISTINCT j.run_id FROM child_join AS j
 WHERE j.state = 2 AND j.rest = 2
   AND EXISTS (SELECT FROM run AS c WHERE c.parent_id = j.run_id AND c.spawn_step = j.step_key AND c.spawn_group = ANY (j.groups) AND c.state < 7)
 ORDER BY j.run_id LIMIT $1;

-- name: save_joins
-- How joins stand.
UPDATE child_join AS j SET state = n.state, met = n.met, slots = coalesce(string_to_array(nullif(n.slots, ''), E'\n'), '{}'),
       ended_ms = CASE n.state WHEN 3 THEN $7::bigint ELSE 0 END
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::boolean[], $6::text[]) AS n(run_id, step_key, slot, state, met, slots)
 WHERE (j.run_id, j.step_key, j.slot) = (n.run_id, n.step_key, n.slot);

-- name: joined
-- The first children of each join, in the order in which they were spawned.
SELECT j.run_id AS parent_id, j.step_key, j.slot, c.run_id, c.spawn_name, c.state, c.output, c.failure_class, c.failure_message, c.failure_type
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot)
  JOIN child_join AS j USING (run_id, step_key, slot)
 CROSS JOIN LATERAL (
    SELECT r.run_id, r.spawn_name, r.state, r.output, r.failure_class, r.failure_message, r.failure_type FROM run AS r
     WHERE r.parent_id = j.run_id AND r.spawn_step = j.step_key AND r.spawn_group = ANY (j.groups)
     ORDER BY r.run_id LIMIT $4) AS c
 ORDER BY 1, 2, 3, 4;

-- name: failed_of
-- The first children of each join that ended without success.
SELECT j.run_id AS parent_id, j.step_key, j.slot, c.run_id, c.spawn_name, c.state, c.output, c.failure_class, c.failure_message, c.failure_type
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot)
  JOIN child_join AS j USING (run_id, step_key, slot)
 CROSS JOIN LATERAL (
    SELECT r.run_id, r.spawn_name, r.state, ''::bytea AS output, r.failure_class, r.failure_message, r.failure_type FROM run AS r
     WHERE r.parent_id = j.run_id AND r.spawn_step = j.step_key AND r.spawn_group = ANY (j.groups) AND r.state > 9
     ORDER BY r.run_id LIMIT $4) AS c
 ORDER BY 1, 2, 3, 4;

-- name: denied_of
-- Spawns of joins that were refused.
SELECT j.run_id, j.step_key, j.slot, s.slot AS spawn_slot, s.children, s.failure_class, s.failure_message, s.failure_type
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot)
  JOIN child_join AS j USING (run_id, step_key, slot)
 CROSS JOIN LATERAL (
    SELECT * FROM spawn AS w WHERE w.run_id = j.run_id AND w.step_key = j.step_key AND w.spawn_group = ANY (j.groups) AND w.failure_class <> ''
     ORDER BY w.slot LIMIT 20) AS s
 ORDER BY 1, 2, 3, 4;

-- name: children_page
-- Children of a run, in the order in which they were spawned.
SELECT * FROM run AS c
 WHERE c.parent_id = $1 AND c.run_id > $2 AND ($3 = '' OR c.spawn_step = $3) AND ($4 = '' OR c.spawn_group = $4)
 ORDER BY c.run_id LIMIT $5;

-- name: tree_page
-- A run and all below it, parents before children.
WITH RECURSIVE tree AS (
    SELECT r.run_id FROM run AS r WHERE r.run_id = $1
    UNION ALL
    SELECT c.run_id FROM tree AS t JOIN run AS c ON c.parent_id = t.run_id)
SELECT r.* FROM run AS r WHERE r.run_id IN (SELECT run_id FROM tree) AND r.run_id > $2 ORDER BY r.run_id LIMIT $3;

-- name: tree_counts
-- How far what came of these runs and does not outlive them has come.
WITH RECURSIVE tree AS (
    SELECT c.parent_id AS top, c.run_id, c.state FROM run AS c WHERE c.parent_id = ANY ($1::uuid[]) AND NOT c.independent
    UNION ALL
    SELECT t.top, c.run_id, c.state FROM tree AS t JOIN run AS c ON c.parent_id = t.run_id AND NOT c.independent)
SELECT top, count(*)::int AS total, count(*) FILTER (WHERE state >= 7)::int AS accepted, count(*) FILTER (WHERE state >= 8)::int AS enforced,
       count(*) FILTER (WHERE state >= 9)::int AS quiesced
  FROM tree GROUP BY top;

-- name: revoked_below
-- How far what was taken has come in what came of a run and does not outlive it. From what is decided nothing is taken any more, and it may
-- send until every point has closed it.
WITH RECURSIVE tree AS (
    SELECT c.run_id, c.revoking, c.state, c.enforced, c.points FROM run AS c WHERE c.parent_id = $1 AND NOT c.independent
    UNION ALL
    SELECT c.run_id, c.revoking, c.state, c.enforced, c.points
      FROM tree AS t JOIN run AS c ON c.parent_id = t.run_id AND NOT c.independent)
SELECT count(*)::int AS total,
       count(*) FILTER (WHERE NOT revoking AND (state NOT IN (7, 8) OR enforced = points))::int AS enforced FROM tree;

-- name: ending_parents
-- Parents whose outcome is decided: those that wait for nothing more, and those of which children still run.
SELECT p.run_id, p.open_children = 0 AS settles FROM run AS p
 WHERE p.state IN (7, 8) AND p.children > 0
   AND (p.state = 8 AND p.open_children = 0 AND p.enforced = p.points AND p.quiesced = p.points AND NOT p.awaits
        OR p.open_children > 0 AND EXISTS (SELECT FROM run AS c WHERE c.parent_id = p.run_id AND NOT c.independent AND c.state < 7))
 ORDER BY p.run_id LIMIT $1;

-- name: raise_budgets
-- More money for one run, which is locked, from its tenant, or from its parent; `delegation` names the slice that grows.
WITH moved AS (
    UPDATE run AS r
       SET budget_micros = r.budget_micros + $2::bigint, budget_sequence = $3::bigint, version = r.version + 1, changed_ms = $4::bigint
     WHERE r.run_id = $1
    RETURNING r.run_id, r.tenant, r.parent_id),
posted AS (
    INSERT INTO ledger_posting (run_id, kind, sequence, tenant, debit, credit, micros, at_ms)
    SELECT run_id, CASE WHEN parent_id IS NULL THEN 'raise' ELSE 'delegate' END, $3::bigint, tenant,
           CASE WHEN parent_id IS NULL THEN 'tenant:free' ELSE 'parent:reserved' END, 'run:reserved', $2::bigint, $4::bigint FROM moved),
given AS (
    UPDATE run AS p SET delegated_micros = p.delegated_micros + $2::bigint FROM moved WHERE p.run_id = moved.parent_id)
UPDATE tenant AS t SET reserved_micros = t.reserved_micros + $2::bigint FROM moved WHERE moved.parent_id IS NULL AND t.tenant = moved.tenant;

-- name: put_budget_waits
-- Steps that wait for a greater budget; the first of a slot stands.
INSERT INTO budget_wait (run_id, step_key, slot, sequence)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS a(run_id, step_key, slot, sequence) ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING;

-- name: end_budget_waits
-- Waits of these runs whose budget has changed since what the step knew; once each.
UPDATE budget_wait AS w SET ended_ms = $2::bigint FROM run AS r
 WHERE w.run_id = ANY ($1::uuid[]) AND w.ended_ms = 0 AND r.run_id = w.run_id AND r.budget_sequence > w.sequence
RETURNING w.run_id, w.step_key, w.slot, r.budget_micros, r.budget_sequence;

-- name: slice_name
-- What a child's slice is called.
SELECT delegation FROM run WHERE run_id = $1;

-- name: owners_above
-- Who published the versions of the runs above these; a tree has few levels.
WITH RECURSIVE above AS (
    SELECT r.run_id, r.parent_id FROM run AS r WHERE r.run_id = ANY ($1::uuid[]) AND r.parent_id IS NOT NULL
    UNION ALL
    SELECT a.run_id, p.parent_id FROM above AS a JOIN run AS p ON p.run_id = a.parent_id WHERE p.parent_id IS NOT NULL)
SELECT a.run_id, array_agg(DISTINCT v.publisher) AS owners
  FROM above AS a JOIN run AS p ON p.run_id = a.parent_id
  JOIN workflow_version AS v ON v.digest = p.digest AND v.tenant = p.tenant AND v.project = p.project
 WHERE v.publisher <> '' GROUP BY a.run_id;
