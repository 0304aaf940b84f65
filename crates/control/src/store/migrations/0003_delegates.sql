-- Keys that may sign for others where the root key is elsewhere. Their private halves are never here.
CREATE TABLE delegate (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    public_key TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);
