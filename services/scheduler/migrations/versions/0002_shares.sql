-- Shares: what operators decided, who decided it, and what each leader last said of the use it sees.

-- What holds for the installation. `version` rises with every change of this table or of `share`: leaders read both when it has.
CREATE TABLE share_policy (
    one                 boolean  PRIMARY KEY DEFAULT true CHECK (one),
    version             bigint   NOT NULL DEFAULT 1,
    reserve_permille    integer  NOT NULL DEFAULT 100 CHECK (reserve_permille BETWEEN 0 AND 1000),
    migration_permille  integer  NOT NULL DEFAULT 500 CHECK (migration_permille BETWEEN 0 AND 1000),
    half_life_ms        bigint   NOT NULL DEFAULT 300000 CHECK (half_life_ms > 0),
    entry_penalty_ms    bigint   NOT NULL DEFAULT 1000 CHECK (entry_penalty_ms >= 0)
);
INSERT INTO share_policy DEFAULT VALUES;

-- A tenant's part (project ''), or a project's bound. No row: weight 1, no bound.
CREATE TABLE share (
    tenant      text    NOT NULL,
    project     text    NOT NULL,
    weight      integer NOT NULL CHECK (weight BETWEEN 1 AND 1000000),
    most_leases integer CHECK (most_leases >= 0),                 -- NULL: no bound
    version     bigint  NOT NULL,
    changed_ms  bigint  NOT NULL,
    PRIMARY KEY (tenant, project)
);

-- Who changed what, and why. Never changed.
CREATE TABLE share_change (
    version bigint NOT NULL,                                      -- of share_policy after it
    tenant  text   NOT NULL,                                      -- '': the policy
    project text   NOT NULL,
    at_ms   bigint NOT NULL,
    actor   text   NOT NULL,
    reason  text   NOT NULL,
    former  text   NOT NULL,                                      -- JSON
    became  text   NOT NULL,
    PRIMARY KEY (version)
);

-- What a leader's process last said: a tenant's use (project ''), or that of a project with a bound. Replaced twice a second.
CREATE UNLOGGED TABLE share_use (
    holder  text             NOT NULL,
    tenant  text             NOT NULL,
    project text             NOT NULL,
    running integer          NOT NULL,
    average double precision NOT NULL,
    beat    bigint           NOT NULL,                            -- rises with each report; who stays at one is gone
    PRIMARY KEY (holder, tenant, project)
) WITH (fillfactor = 50);
