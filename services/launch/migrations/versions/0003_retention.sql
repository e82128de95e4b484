-- Sums of the postings of forgotten runs, so that the ledger still adds up to what tenants have reserved and spent.
CREATE TABLE ledger_archive (
    tenant text NOT NULL,
    debit text NOT NULL,
    credit text NOT NULL,
    micros numeric NOT NULL,
    PRIMARY KEY (tenant, debit, credit)
);

-- Receipts come in the order of their time; a block range index costs nothing and finds the old ones.
CREATE INDEX launch_receipt_by_time ON launch_receipt USING brin (created_ms) WITH (autosummarize = on);
