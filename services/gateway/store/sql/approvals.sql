-- Certificates of approvals, behind lock_gates_to_raise of libs.fence in the same transaction.

-- name: merge_certificates
-- By maximum: issued, then withdrawn. One that was used stays as it is. In order of their keys.
INSERT INTO approval_certificate AS c (run_id, step_key, slot, approval_id, tool, digest, policy, proposal_version, hold, expires_ms,
                                       approvers, break_glass, standing, effect_class, total)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::bytea[], $7::text[], $8::bigint[], $9::bigint[],
                     $10::bigint[], $11::integer[], $12::boolean[], $13::smallint[], $14::text[], $15::bigint[])
 ORDER BY 1, 2, 3, 4
ON CONFLICT (run_id, step_key, slot, approval_id) DO UPDATE SET standing = excluded.standing
  WHERE c.standing < excluded.standing AND c.consumed_ms = 0;

-- name: read_certificates
-- How they stand.
SELECT c.run_id, c.step_key, c.slot, c.approval_id, c.standing, c.consumed_ms
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) AS n(run_id, step_key, slot, approval_id)
  JOIN approval_certificate AS c USING (run_id, step_key, slot, approval_id);
