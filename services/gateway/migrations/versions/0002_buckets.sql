-- Token buckets: what was decided about them, what is in them, and what tenants took.

-- `version` rises with every change of a bucket or a weight: gateways read all of it when it has.
CREATE TABLE bucket_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint  NOT NULL DEFAULT 1
);
INSERT INTO bucket_version DEFAULT VALUES;

-- A bucket. The level is as of `at_ms`; who takes from it first adds what has flowed in since.
CREATE TABLE bucket (
    kind       text             NOT NULL CHECK (kind IN ('tool', 'model', 'provider')),
    name       text             NOT NULL,
    unit       text             NOT NULL CHECK (unit IN ('calls', 'tokens')),
    capacity   bigint           NOT NULL CHECK (capacity > 0),
    per_minute bigint           NOT NULL CHECK (per_minute >= 0),
    level      double precision NOT NULL,
    at_ms      bigint           NOT NULL,
    version    bigint           NOT NULL,
    changed_ms bigint           NOT NULL,
    PRIMARY KEY (kind, name, unit)
) WITH (fillfactor = 50);

-- A tenant's weight at a bucket. No row: 1.
CREATE TABLE bucket_weight (
    kind   text    NOT NULL,
    name   text    NOT NULL,
    unit   text    NOT NULL,
    tenant text    NOT NULL,
    weight integer NOT NULL CHECK (weight BETWEEN 1 AND 1000000),
    PRIMARY KEY (kind, name, unit, tenant)
);

-- What a tenant took lately, as of `at_ms`, and when it last wanted something. Rows of who wants no more are deleted.
CREATE TABLE bucket_use (
    kind      text             NOT NULL,
    name      text             NOT NULL,
    unit      text             NOT NULL,
    tenant    text             NOT NULL,
    taken     double precision NOT NULL,
    at_ms     bigint           NOT NULL,
    wanted_ms bigint           NOT NULL,
    PRIMARY KEY (kind, name, unit, tenant)
) WITH (fillfactor = 50);

-- Who changed what, and why. Never changed.
CREATE TABLE bucket_change (
    version bigint NOT NULL PRIMARY KEY,                          -- of bucket_version after it
    kind    text   NOT NULL,
    name    text   NOT NULL,
    unit    text   NOT NULL,
    tenant  text   NOT NULL,                                      -- '': the bucket
    at_ms   bigint NOT NULL,
    actor   text   NOT NULL,
    reason  text   NOT NULL,
    former  text   NOT NULL,                                      -- JSON; '': it was not
    became  text   NOT NULL                                       -- '': it is gone
);
