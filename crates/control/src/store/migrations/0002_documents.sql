-- What each box, proxy and anchor is to have: signed by the controller, so that a row that was
-- altered is seen by whoever gets it. `number` is that of the change that wrote the row, `heard` of
-- the one that wrote what became of it.
CREATE TABLE document (
    public_key TEXT NOT NULL,
    kind TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    number BIGINT NOT NULL,
    digest TEXT NOT NULL,
    about TEXT NOT NULL,
    envelope TEXT NOT NULL,
    outcome TEXT NOT NULL,
    heard BIGINT NOT NULL,
    PRIMARY KEY (public_key, kind)
);
CREATE INDEX document_by_number ON document (number);
CREATE INDEX document_by_heard ON document (heard);

-- How far each box of a roll-out is.
CREATE TABLE progress (
    tenant TEXT NOT NULL,
    rollout TEXT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    PRIMARY KEY (tenant, rollout),
    FOREIGN KEY (tenant, rollout) REFERENCES rollout (tenant, id) ON DELETE CASCADE
);

-- When a box said last to be on the proxy.
ALTER TABLE proxy_status ADD COLUMN witnessed_ms BIGINT NOT NULL DEFAULT 0;

-- Which replica plans, and until when.
INSERT INTO counter (name, value, hash) VALUES ('planner', 0, '');
