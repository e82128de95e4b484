-- Keys that expire, with who made and ended them; projects that somebody onboarded or suspended.
ALTER TABLE api_key ADD COLUMN expires_ms bigint NOT NULL DEFAULT 0;    -- 0: never
ALTER TABLE api_key ADD COLUMN created_by text NOT NULL DEFAULT '';
ALTER TABLE api_key ADD COLUMN revoked_by text NOT NULL DEFAULT '';
CREATE INDEX api_key_of_tenant ON api_key (tenant, key_id DESC);

-- A project without a row is active; `default` always is there.
CREATE TABLE project (
    tenant text NOT NULL REFERENCES tenant,
    project text NOT NULL,
    state smallint NOT NULL,                     -- 1 active, 2 suspended
    reason text NOT NULL DEFAULT '',
    version bigint NOT NULL DEFAULT 1,
    changed_ms bigint NOT NULL,
    changed_by text NOT NULL,
    PRIMARY KEY (tenant, project)
);
INSERT INTO project (tenant, project, state, changed_ms, changed_by)
SELECT DISTINCT w.tenant, w.project, 1, 0, 'runway' FROM workflow_version AS w JOIN tenant AS t USING (tenant)
UNION SELECT DISTINCT k.tenant, k.project, 1, 0, 'runway' FROM api_key AS k WHERE k.project <> '';

-- Projects that launch nothing: in the row that every launch locks.
ALTER TABLE tenant ADD COLUMN suspended text[] NOT NULL DEFAULT '{}';
