-- The request that made a key: by tenant and request_id, and the digest of what it asked. Null: it named no request_id.
ALTER TABLE api_key ADD COLUMN request_key bytea UNIQUE, ADD COLUMN request_digest bytea NOT NULL DEFAULT '';
