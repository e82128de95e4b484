-- When a key ended, or will: by revocation, else by its expiry; null: it has no end. What ended long ago is found along these.
CREATE FUNCTION ended_ms(revoked_ms bigint, expires_ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN least(revoked_ms, nullif(expires_ms, 0));
CREATE INDEX api_key_ended ON api_key (ended_ms(revoked_ms, expires_ms)) WHERE revoked_ms IS NOT NULL OR expires_ms > 0;
CREATE INDEX approver_key_ended ON approver_key (revoked_ms) WHERE revoked_ms > 0;
