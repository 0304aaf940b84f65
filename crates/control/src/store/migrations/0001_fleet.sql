-- One text for SQLite and PostgreSQL. Keys and hashes are text (base64, hex), times milliseconds
-- since 1970. `body` is the record as JSON, `seal` proves that the controller wrote it; the columns
-- between them repeat what is searched for or must be unique, and are compared at each reading.

CREATE TABLE counter (
    name TEXT NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL,
    hash TEXT NOT NULL
);
INSERT INTO counter (name, value, hash) VALUES ('change', 0, ''), ('epoch', 1, '');

CREATE TABLE tenant (
    tenant TEXT NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    host BIGINT NOT NULL,
    CHECK (tenant = id)
);

CREATE TABLE person (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);

CREATE TABLE api_key (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    PRIMARY KEY (tenant, id)
);

CREATE TABLE login (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    person TEXT NOT NULL,
    expires_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, id),
    FOREIGN KEY (tenant, person) REFERENCES person (tenant, id) ON DELETE CASCADE
);
CREATE INDEX login_by_person ON login (tenant, person);

CREATE TABLE pool (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);

CREATE TABLE proxy (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    public_key TEXT NOT NULL UNIQUE,
    pool TEXT,
    state TEXT NOT NULL,
    PRIMARY KEY (tenant, id),
    FOREIGN KEY (tenant, pool) REFERENCES pool (tenant, id)
);

CREATE TABLE proxy_status (
    tenant TEXT NOT NULL,
    proxy TEXT NOT NULL,
    connected BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL,
    serial BIGINT NOT NULL,
    load BIGINT,
    sessions BIGINT NOT NULL,
    software TEXT NOT NULL,
    PRIMARY KEY (tenant, proxy),
    FOREIGN KEY (tenant, proxy) REFERENCES proxy (tenant, id) ON DELETE CASCADE
);

CREATE TABLE token (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    pool TEXT,
    uses_left BIGINT NOT NULL CHECK (uses_left >= 0),
    PRIMARY KEY (tenant, id),
    FOREIGN KEY (tenant, pool) REFERENCES pool (tenant, id)
);

CREATE TABLE device (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    public_key TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    tags TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);

CREATE TABLE address (
    tenant TEXT NOT NULL,
    address TEXT NOT NULL,
    device TEXT NOT NULL,
    PRIMARY KEY (tenant, address),
    FOREIGN KEY (tenant, device) REFERENCES device (tenant, id) ON DELETE CASCADE
);
CREATE INDEX address_by_device ON address (tenant, device);

CREATE TABLE config (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    scope TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (tenant, id),
    UNIQUE (tenant, scope, number)
);

CREATE TABLE rollout (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    seal TEXT NOT NULL,
    config TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (tenant, id),
    FOREIGN KEY (tenant, config) REFERENCES config (tenant, id)
);

CREATE TABLE report (
    tenant TEXT NOT NULL,
    device TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, device),
    FOREIGN KEY (tenant, device) REFERENCES device (tenant, id) ON DELETE CASCADE
);

CREATE TABLE session (
    tenant TEXT NOT NULL,
    device TEXT NOT NULL,
    attachment BIGINT NOT NULL,
    proxy TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    to_ms BIGINT,
    reason TEXT,
    PRIMARY KEY (tenant, device, attachment),
    FOREIGN KEY (tenant, device) REFERENCES device (tenant, id) ON DELETE CASCADE
);

CREATE TABLE sample (
    tenant TEXT NOT NULL,
    device TEXT NOT NULL,
    step_ms BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    figures TEXT NOT NULL,
    PRIMARY KEY (tenant, device, step_ms, at_ms),
    FOREIGN KEY (tenant, device) REFERENCES device (tenant, id) ON DELETE CASCADE
);
CREATE INDEX sample_by_age ON sample (step_ms, at_ms);

-- One chain for all tenants: proxies and anchors that serve several hold it whole.
CREATE TABLE revocation (
    tenant TEXT NOT NULL REFERENCES tenant (tenant),
    serial BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    public_key TEXT NOT NULL,
    reason TEXT NOT NULL,
    entry TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (serial),
    UNIQUE (public_key)
);

CREATE TABLE audit (
    tenant TEXT NOT NULL,
    serial BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    before_json TEXT NOT NULL,
    after_json TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (tenant, serial)
);

CREATE TABLE change (
    sequence BIGINT NOT NULL,
    position BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (sequence, position)
);

CREATE TABLE answer (
    tenant TEXT NOT NULL,
    actor TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    request TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (tenant, actor, idempotency_key)
);
