-- The fleet that has the lease, by the tenant of its key; empty: a worker of the run's own tenant. Beside worker_id, and like it left as
-- it was when the lease ends.
ALTER TABLE ticket ADD COLUMN fleet text NOT NULL DEFAULT '';

-- Workers that serve every tenant, listed to few.
ALTER TABLE worker ADD COLUMN fleet boolean NOT NULL DEFAULT false;
