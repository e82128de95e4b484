-- The incarnation of this database in which launch adopted every run that is not terminal. Another one answers nothing before.
CREATE TABLE adoption (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    incarnation bigint  NOT NULL
);

-- The outcome was adopted from the points after a promotion; its output or failure is told again by readiness, and waited for.
ALTER TABLE run ADD COLUMN awaits boolean NOT NULL DEFAULT false;
