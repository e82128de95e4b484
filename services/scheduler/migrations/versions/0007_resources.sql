-- What steps take of a worker besides a slot, and what workers have: `name amount`, a line each.
ALTER TABLE ticket ADD COLUMN resources text NOT NULL DEFAULT '';
ALTER TABLE worker ADD COLUMN resources text NOT NULL DEFAULT '';

-- What a tenant's leases weigh beyond a slot each, by what they take of the dominant resource.
ALTER TABLE share_use ADD COLUMN extra double precision NOT NULL DEFAULT 0;
