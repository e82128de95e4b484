-- What tries of calls used: appended when a receipt lands, never changed. Prices and bills are made from it.
CREATE TABLE meter_event (
    ordinal  bigint  GENERATED ALWAYS AS IDENTITY,
    tenant   text    NOT NULL,
    project  text    NOT NULL,
    run_id   uuid    NOT NULL,
    step_key text    NOT NULL,
    slot     text    NOT NULL,
    n        integer NOT NULL,                   -- the try
    part     integer NOT NULL,                   -- counts the events of the try: a late receipt adds another
    tool     text    NOT NULL,
    micros   bigint  NOT NULL,
    tokens   bigint  NOT NULL,
    at_ms    bigint  NOT NULL,
    PRIMARY KEY (run_id, step_key, slot, n, part)
);

CREATE INDEX meter_event_of_tenant ON meter_event (tenant, ordinal);

CREATE FUNCTION meter_event_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a meter event is never changed' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER meter_event_is_final BEFORE UPDATE ON meter_event FOR EACH ROW EXECUTE FUNCTION meter_event_is_final();
