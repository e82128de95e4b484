-- Admission of a batch of intents, behind libs.fence's lock_scopes and lock_gates in the same transaction: the snapshot of each
-- statement here is younger than every lock, so it sees each raise, hold and slot committed while they waited.

-- name: read_ordinals
-- How many unnamed calls of a tool each attempt has made.
SELECT o.run_id, o.step_key, o.attempt_id, o.tool, o.used
  FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[]) AS n(run_id, step_key, attempt_id, tool)
  JOIN slot_ordinal AS o USING (run_id, step_key, attempt_id, tool);

-- name: keep_ordinals
-- Ordinals that were really used.
INSERT INTO slot_ordinal AS o (run_id, step_key, attempt_id, tool, used)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::integer[]) AS n(run_id, step_key, attempt_id, tool, used)
 ORDER BY 1, 2, 3, 4
ON CONFLICT (run_id, step_key, attempt_id, tool) DO UPDATE SET used = greatest(o.used, excluded.used);

-- name: admit
-- Judges every item, inserts effect and dispatch for those that pass, adds to `held` only what was really inserted, and
-- returns a verdict per item with what its slot held before. Of equal slots in one batch the first asks, the others are
-- `taken` and attach to it. A first grant makes its own step fence.
--
-- What the run was not granted is denied, and what was taken from its grant (`revoked:AT_MS:BY:CAPABILITY`, libs.fence.grants): that is,
-- dispatched no more. What a slot holds already is a fact, and is told.
--
-- What a rule of the run's grant names (`approval:STEP:NEED:ABOVE:POLICY:TOOL`, libs.fence.rules) needs a certificate for
-- exactly this: slot, tool, policy, the slot's version as it was proposed, the digest of the proposal that will be sent, the class of
-- the effect where a rule of the step asks by class, and no more than was approved to be held; issued, not used, not expired, signed
-- by enough. It is used here, with the dispatch. Without one the slot becomes or stays `proposed`: nothing is held and nothing is sent.
--
-- A rule by the run's total names a call with which more would be spent (used, held, delegated; calls of the same batch that came
-- before it count) than it says, or than a used certificate lets that was for such a call of the same version and signed by enough for
-- that rule. A certificate for such a call must let all of that be spent.
WITH item AS MATERIALIZED (
    SELECT *, split_part(capability, ':', 1) || ':*' AS every
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::uuid[], $8::text[],
                         $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::bytea[],
                         $16::bigint[], $17::uuid[], $21::text[])
        WITH ORDINALITY AS i(run_id, step_key, slot, epoch, authority_epoch, lease_epoch, attempt_id, tenant, project, tool,
                             provider, capability, replay_class, proposal, digest, hold, nonce, effect_class, ord)),
stopped AS MATERIALIZED (
    SELECT i.ord, min(s.kind || ' ' || s.scope_id) AS scope
      FROM item AS i
     CROSS JOIN LATERAL (VALUES ('tenant', i.tenant), ('project', i.tenant || '/' || i.project), ('tool', i.tool),
                                ('provider', i.provider)) AS v(kind, scope_id)
      JOIN scope_fence AS s USING (kind, scope_id)
     WHERE s.mode > 0
     GROUP BY i.ord),
seen AS MATERIALIZED (
    SELECT i.*, g.epoch AS gate_epoch, g.mode, g.outcome, g.granted - g.held - g.used - g.delegated AS free, g.envelope_sequence, st.scope,
           g.held + g.used + g.delegated AS spent,
           f.run_id IS NULL AS unfenced, e.state, e.version, e.state = 'proposed' AS waits,
           e.proposal_digest = i.digest AND e.tool = i.tool AND e.proposal_hold = i.hold AS same, g.capabilities,
           CASE
             WHEN st.ord IS NOT NULL THEN 'scope'
             WHEN g.run_id IS NULL OR g.stamp <> $18 OR g.epoch < i.epoch THEN 'cold'
             WHEN g.mode = 2 THEN 'closed'
             WHEN g.mode = 1 THEN 'paused'
             WHEN f.run_id IS NULL AND i.lease_epoch > 1 THEN 'cold'
             WHEN (f.authority_epoch, f.lease_epoch, f.attempt_id) < (i.authority_epoch, i.lease_epoch, i.attempt_id) THEN 'cold'
             WHEN (f.authority_epoch, f.lease_epoch, f.attempt_id) > (i.authority_epoch, i.lease_epoch, i.attempt_id) THEN 'fenced'
             WHEN g.epoch > i.epoch THEN 'stale'
             WHEN (NOT (g.capabilities && ARRAY[i.capability, i.every]) OR EXISTS (
                       SELECT FROM unnest(g.capabilities) AS entry
                        WHERE entry LIKE 'revoked:%' AND substring(entry FROM '^(?:[^:]*:){3}(.*)$') IN (i.capability, i.every)))
                  AND (e.state IS NULL OR e.state IN ('failed', 'not_sent', 'absent', 'proposed') OR e.tool <> i.tool
                       OR e.state = 'succeeded' AND e.replay_class = 'pure' AND i.replay_class = 'pure'
                          AND e.proposal_digest <> i.digest) THEN 'denied'
             WHEN e.state IS NULL OR e.state IN ('failed', 'not_sent', 'absent', 'proposed') THEN 'pass'
             WHEN e.state = 'succeeded' AND e.replay_class = 'pure' AND i.replay_class = 'pure' AND e.tool = i.tool
                  AND e.proposal_digest <> i.digest THEN 'pass'
             WHEN e.state IN ('succeeded', 'observed', 'compensated') THEN 'replayed'
             ELSE 'taken'
           END AS verdict
      FROM item AS i
      LEFT JOIN stopped AS st USING (ord)
      LEFT JOIN run_gate AS g USING (run_id)
      LEFT JOIN step_fence AS f USING (run_id, step_key)
      LEFT JOIN effect AS e USING (run_id, step_key, slot)),
made AS (
    INSERT INTO step_fence AS f (run_id, step_key, authority_epoch, lease_epoch, attempt_id)
    SELECT DISTINCT ON (run_id, step_key) run_id, step_key, authority_epoch, lease_epoch, attempt_id
      FROM seen WHERE verdict = 'pass' AND unfenced
     ORDER BY run_id, step_key, authority_epoch DESC, attempt_id DESC
    ON CONFLICT (run_id, step_key) DO UPDATE SET lease_epoch = f.lease_epoch
    RETURNING f.*),
judged AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.verdict = 'pass' AND s.unfenced AND (m.authority_epoch, m.lease_epoch, m.attempt_id)
                            IS DISTINCT FROM (s.authority_epoch, s.lease_epoch, s.attempt_id) THEN 'fenced' ELSE s.verdict END AS ruling
      FROM seen AS s LEFT JOIN made AS m USING (run_id, step_key)),
asking AS MATERIALIZED (
    SELECT *, spent + sum(hold) OVER (PARTITION BY run_id ORDER BY ord) AS total
      FROM (SELECT DISTINCT ON (run_id, step_key, slot) * FROM judged WHERE ruling = 'pass' ORDER BY run_id, step_key, slot, ord) AS j),
ruled AS MATERIALIZED (
    SELECT a.*, r.need, r.policy, c.approval_id, c.total AS lifted_to
      FROM asking AS a
      LEFT JOIN LATERAL (
          SELECT need, policy, bool_or(by_total) OVER () AS by_total
            FROM (SELECT split_part(rule, ':', 2) AS of_step, split_part(rule, ':', 3)::integer AS need, split_part(rule, ':', 4) AS above,
                         split_part(rule, ':', 4) LIKE 't%' AS by_total, split_part(rule, ':', 5) AS policy,
                         substring(rule FROM '^(?:[^:]*:){5}(.*)$') AS named
                    FROM unnest(a.capabilities) AS rule
                   WHERE rule LIKE 'approval:%') AS u
           WHERE rule_concerns(of_step, named, a.step_key, a.tool, a.effect_class)
             AND CASE WHEN NOT by_total THEN above::bigint < greatest(a.hold, 1)
                      WHEN a.total <= substr(above, 2)::bigint THEN false
                      ELSE NOT EXISTS (
                          SELECT FROM approval_certificate AS l
                           WHERE l.run_id = a.run_id AND l.consumed_ms > 0 AND l.total >= a.total AND l.policy = u.policy
                             AND (l.break_glass OR l.approvers >= u.need)
                             AND rule_concerns(of_step, named, l.step_key, l.tool, l.effect_class))
                 END
           ORDER BY need DESC, policy COLLATE "C" DESC LIMIT 1) AS r ON true
      LEFT JOIN LATERAL (
          SELECT c.approval_id, c.total FROM approval_certificate AS c
           WHERE r.need IS NOT NULL AND a.waits AND a.same
             AND c.run_id = a.run_id AND c.step_key = a.step_key AND c.slot = a.slot AND c.tool = a.tool
             AND c.digest = sha256(a.proposal) AND c.policy = r.policy AND c.proposal_version = a.version AND c.hold >= a.hold
             AND c.standing = 1 AND c.consumed_ms = 0 AND c.expires_ms > $20 AND (c.break_glass OR c.approvers >= r.need)
             AND (NOT r.by_total OR c.total >= a.total)
             AND (c.effect_class = a.effect_class OR c.effect_class = '' AND NOT EXISTS (
                      SELECT FROM unnest(a.capabilities) AS rule
                       WHERE rule LIKE 'approval:%' AND split_part(rule, ':', 6) LIKE '@%'
                         AND rule_is_of_step(split_part(rule, ':', 2), a.step_key)))
           ORDER BY c.expires_ms DESC, c.approval_id DESC LIMIT 1) AS c ON true),
held_back AS MATERIALIZED (SELECT * FROM ruled WHERE need IS NOT NULL AND approval_id IS NULL),
affordable AS MATERIALIZED (
    SELECT * FROM (SELECT *, fit_sum(hold, free) OVER (PARTITION BY run_id ORDER BY ord
                                                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                     FROM ruled WHERE need IS NULL OR approval_id IS NOT NULL) AS a
     WHERE coalesce(before, 0) + hold <= free),
proposed AS (
    INSERT INTO effect AS e (run_id, step_key, slot, tool, replay_class, state, version, dispatches, proposal, proposal_digest,
                             tenant, project, proposal_hold, created_ms, changed_ms)
    SELECT run_id, step_key, slot, tool, replay_class, 'proposed', 1, 0, proposal, digest, tenant, project, hold, $20, $20
      FROM held_back ORDER BY run_id, step_key, slot
    ON CONFLICT (run_id, step_key, slot) DO UPDATE
        SET tool = excluded.tool, replay_class = excluded.replay_class, state = 'proposed', version = e.version + 1,
            proposal = excluded.proposal, proposal_digest = excluded.proposal_digest, proposal_hold = excluded.proposal_hold,
            result = NULL, failure_class = '', failure_message = '', failure_type = '', evidence = '', changed_ms = excluded.changed_ms,
            resolved_ms = 0
      WHERE e.state IN ('failed', 'not_sent', 'absent') OR e.state = 'succeeded' AND e.replay_class = 'pure'
         OR e.state = 'proposed' AND (e.proposal_digest, e.tool, e.proposal_hold)
                                     IS DISTINCT FROM (excluded.proposal_digest, excluded.tool, excluded.proposal_hold)),
put AS (
    INSERT INTO effect AS e (run_id, step_key, slot, tool, replay_class, state, version, dispatches, proposal, proposal_digest,
                             tenant, project, held, proposal_hold, created_ms, changed_ms)
    SELECT run_id, step_key, slot, tool, replay_class, 'requested', 1, 1, proposal, digest, tenant, project, hold, hold, $20, $20
      FROM affordable ORDER BY run_id, step_key, slot
    ON CONFLICT (run_id, step_key, slot) DO UPDATE
        SET tool = excluded.tool, replay_class = excluded.replay_class, state = 'requested', version = e.version + 1,
            dispatches = e.dispatches + 1, proposal = excluded.proposal, proposal_digest = excluded.proposal_digest,
            result = NULL, failure_class = '', failure_message = '', failure_type = '', evidence = '',
            held = e.held + excluded.held, proposal_hold = excluded.proposal_hold, changed_ms = excluded.changed_ms, resolved_ms = 0
      WHERE e.state IN ('failed', 'not_sent', 'absent', 'proposed') OR e.state = 'succeeded' AND e.replay_class = 'pure'
    RETURNING e.run_id, e.step_key, e.slot, e.dispatches),
sent AS (
    INSERT INTO effect_dispatch (run_id, step_key, slot, n, nonce, process, authority_epoch, lease_epoch, attempt_id, state,
                                 held, requested_ms)
    SELECT p.run_id, p.step_key, p.slot, p.dispatches, a.nonce, $19::uuid, a.authority_epoch, a.lease_epoch, a.attempt_id,
           'requested', a.hold, $20
      FROM put AS p JOIN affordable AS a USING (run_id, step_key, slot)
    RETURNING run_id, step_key, slot, n, held, nonce),
used AS (
    UPDATE approval_certificate AS c SET consumed_ms = $20, consumed_n = s.n
      FROM sent AS s JOIN affordable AS a USING (run_id, step_key, slot)
     WHERE c.run_id = a.run_id AND c.step_key = a.step_key AND c.slot = a.slot AND c.approval_id = a.approval_id),
counted AS (
    UPDATE run_gate AS g SET held = g.held + s.held
      FROM (SELECT run_id, sum(held)::bigint AS held FROM sent GROUP BY run_id HAVING sum(held) > 0) AS s
     WHERE g.run_id = s.run_id)
SELECT CASE WHEN j.ruling <> 'pass' THEN j.ruling
            WHEN h.ord IS NOT NULL THEN 'approval'
            WHEN d.nonce = j.nonce THEN 'ok'
            WHEN d.nonce IS NULL AND a.ord IS NULL THEN 'budget'
            ELSE 'taken' END AS verdict,
       j.gate_epoch, j.mode, j.outcome, j.scope, j.free, j.envelope_sequence, d.n, a.approval_id, a.lifted_to,
       least(h.total, 9007199254740991)::bigint AS total, h.policy,
       CASE WHEN j.ruling = 'denied' THEN (
           SELECT entry FROM unnest(j.capabilities) AS entry
            WHERE entry LIKE 'revoked:%' AND substring(entry FROM '^(?:[^:]*:){3}(.*)$') IN (j.capability, j.every) LIMIT 1) END AS revoked
  FROM judged AS j
  LEFT JOIN held_back AS h USING (run_id, step_key, slot)
  LEFT JOIN affordable AS a USING (run_id, step_key, slot)
  LEFT JOIN sent AS d USING (run_id, step_key, slot)
 ORDER BY j.ord;
