-- Approvals: what is asked, decided and used. Written behind lock_heads of their runs.

-- name: of_runs
-- Every approval of these runs.
SELECT * FROM approval WHERE run_id = ANY ($1::uuid[]) ORDER BY approval_id;

-- name: by_id
-- Approvals that exist.
SELECT * FROM approval WHERE approval_id = ANY ($1::uuid[]) ORDER BY approval_id;

-- name: add
-- What no command asked before.
INSERT INTO approval (approval_id, run_id, step_key, command_slot, slot, tenant, project, workflow, tool, title, content, digest, policy,
                      proposal_version, hold_micros, need, eligible, requester, owner, state, requested_ms, expires_ms, decided_ms, reason,
                      root_run_id, owners_above, effect_class, total_micros)
SELECT a.approval_id, a.run_id, a.step_key, a.command_slot, a.slot, a.tenant, a.project, a.workflow, a.tool, a.title, a.content, a.digest,
       a.policy, a.proposal_version, a.hold_micros, a.need, coalesce(string_to_array(nullif(a.eligible, ''), E'\n'), '{}'), a.requester,
       a.owner, a.state, a.requested_ms, a.expires_ms, a.decided_ms, a.reason, a.root_run_id,
       coalesce(string_to_array(nullif(a.owners_above, ''), E'\n'), '{}'), a.effect_class, a.total_micros
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
              $11::bytea[], $12::bytea[], $13::text[], $14::bigint[], $15::bigint[], $16::integer[], $17::text[], $18::text[], $19::text[],
              $20::smallint[], $21::bigint[], $22::bigint[], $23::bigint[], $24::text[], $25::uuid[], $26::text[],
              $27::text[], $28::bigint[])
       AS a(approval_id, run_id, step_key, command_slot, slot, tenant, project, workflow, tool, title, content, digest, policy,
            proposal_version, hold_micros, need, eligible, requester, owner, state, requested_ms, expires_ms, decided_ms, reason, root_run_id,
            owners_above, effect_class, total_micros)
 ORDER BY a.run_id, a.step_key, a.command_slot
ON CONFLICT (run_id, step_key, command_slot) DO NOTHING
RETURNING approval_id;

-- name: save
-- New states and times.
UPDATE approval AS a
   SET state = n.state, decided_ms = n.decided_ms, effective_ms = n.effective_ms, consumed_ms = n.consumed_ms,
       withdraw_ms = n.withdraw_ms, withdraw_by = n.withdraw_by, reason = n.reason
  FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[])
       AS n(approval_id, state, decided_ms, effective_ms, consumed_ms, withdraw_ms, withdraw_by, reason)
 WHERE a.approval_id = n.approval_id;

-- name: decisions
-- What was decided about each, in order.
SELECT * FROM approval_decision WHERE approval_id = ANY ($1::uuid[]) ORDER BY approval_id, decided_ms, approver;

-- name: add_decisions
-- Once per approver.
INSERT INTO approval_decision (approval_id, run_id, approver, approve, key_id, public_key, signature, reason, break_glass, decided_ms)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::boolean[], $5::text[], $6::bytea[], $7::bytea[], $8::text[], $9::boolean[],
                     $10::bigint[]);

-- name: keys
-- Keys by tenant and id.
SELECT k.* FROM unnest($1::text[], $2::text[]) AS n(tenant, key_id) JOIN approver_key AS k USING (tenant, key_id);

-- name: shift
-- Later ends for what nobody has signed yet: a signature names the end.
UPDATE approval AS a SET expires_ms = a.expires_ms + n.by_ms
  FROM unnest($1::uuid[], $2::bigint[]) AS n(run_id, by_ms)
 WHERE a.run_id = n.run_id AND a.state = 1 AND n.by_ms > 0
   AND NOT EXISTS (SELECT 1 FROM approval_decision AS d WHERE d.approval_id = a.approval_id);

-- name: page
-- A tenant's approvals, newest first: of every run, or of one ($3) and of all below it where it is a root.
SELECT * FROM approval
 WHERE tenant = $1 AND ($2 = '' OR project = $2) AND ($3::uuid IS NULL OR run_id = $3 OR root_run_id = $3)
   AND (cardinality($4::smallint[]) = 0 OR state = ANY ($4::smallint[])) AND ($5::uuid IS NULL OR approval_id < $5)
 ORDER BY approval_id DESC LIMIT $6;

-- name: pending_of
-- What one run waits for, or ($2) what those below it wait for, newest first.
SELECT * FROM approval
 WHERE state = 1 AND (NOT $2 AND run_id = $1 OR $2 AND root_run_id = $1) ORDER BY approval_id DESC LIMIT $3;

-- name: over
-- Pending ones whose time has passed, oldest first, and whether their run is over: time stands still for runs that are pausing or
-- paused. Along the index of what is open: however many wait, only these are read.
SELECT a.run_id, a.approval_id, r.outcome <> '' AS ended FROM approval AS a JOIN run AS r USING (run_id)
 WHERE a.state = 1 AND a.expires_ms <= $1 AND r.state NOT IN (5, 6)
 ORDER BY a.expires_ms LIMIT $2;

-- name: end_of_runs
-- Nobody is asked any more about runs whose outcome is decided.
UPDATE approval SET state = 6, decided_ms = $2, reason = 'the run is over' WHERE run_id = ANY ($1::uuid[]) AND state = 1;

-- name: put_key
-- The first registration stands.
INSERT INTO approver_key AS k (tenant, key_id, approver, public_key, created_ms) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, key_id) DO UPDATE SET created_ms = k.created_ms
RETURNING *;

-- name: list_keys
-- A tenant's keys, by id.
SELECT * FROM approver_key WHERE tenant = $1 AND key_id > $2 ORDER BY key_id LIMIT $3;

-- name: revoke_key
-- The first revocation stands.
UPDATE approver_key SET revoked_ms = CASE revoked_ms WHEN 0 THEN $4::bigint ELSE revoked_ms END
 WHERE tenant = $1 AND key_id = $2 AND ($3::text = '' OR approver = $3::text)
RETURNING *;
