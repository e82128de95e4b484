-- Two statements, so that whole scripts are seen to run.
CREATE TABLE item (
    item_id uuid PRIMARY KEY,
    amount bigint NOT NULL
);

CREATE FUNCTION refuse_negative() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.amount < 0 THEN
        RAISE EXCEPTION 'negative';
    END IF;
    RETURN NEW;
END;
$$;
