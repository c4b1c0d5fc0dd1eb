-- What a fleet server keeps beside logs: causes of gaps, metrics, probes, acts, tokens, configs.

-- Gaps have causes (F37), and may have no seqs: what a source lost before it was numbered.
CREATE TABLE gaps_new (
    id INTEGER PRIMARY KEY,
    host INTEGER NOT NULL REFERENCES hosts (key),
    first INTEGER,
    last INTEGER,
    detected_at INTEGER NOT NULL,
    cause TEXT,
    source TEXT,
    detail TEXT,
    CHECK ((first IS NULL) = (last IS NULL))
);
INSERT INTO gaps_new (id, host, first, last, detected_at, cause)
    SELECT id, host, first, last, detected_at, cause FROM gaps;
DROP TABLE gaps;
ALTER TABLE gaps_new RENAME TO gaps;
CREATE INDEX gaps_host ON gaps (host, last);

-- When its newest entry came, by which retention judges a segment's age; and the
-- least severe level that it still holds, once the others were taken out.
ALTER TABLE segments ADD COLUMN last_received INTEGER;
ALTER TABLE segments ADD COLUMN kept_severity INTEGER;

-- The apps and sources that stored entries name; `segment` is the newest that does.
CREATE TABLE known_values (
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    segment INTEGER NOT NULL,
    PRIMARY KEY (kind, value)
) WITHOUT ROWID;

CREATE TABLE metric_series (
    key INTEGER PRIMARY KEY,
    host INTEGER NOT NULL REFERENCES hosts (key),
    name TEXT NOT NULL,
    labels TEXT NOT NULL,
    UNIQUE (host, name, labels)
);
CREATE TABLE metric_points (
    series INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (series, ts)
) WITHOUT ROWID;

CREATE TABLE probe_records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host INTEGER NOT NULL REFERENCES hosts (key),
    probe TEXT NOT NULL,
    args TEXT NOT NULL,
    actor TEXT NOT NULL,
    requested_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    code INTEGER,
    output TEXT,
    exit_code INTEGER,
    stderr TEXT,
    duration_ms INTEGER
);
CREATE INDEX probe_records_host ON probe_records (host);

CREATE TABLE acts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    act TEXT NOT NULL,
    subject TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX acts_subject ON acts (subject);

-- Tokens of the HTTP API, as hashes.
CREATE TABLE api_tokens (
    key INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    token_hash BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER
);
CREATE UNIQUE INDEX api_tokens_name ON api_tokens (name) WHERE revoked_at IS NULL;

-- Members of agents' configurations, as JSON objects; `name` is a group or a host_id.
CREATE TABLE configs (
    scope TEXT NOT NULL CHECK (scope IN ('all', 'group', 'host')),
    name TEXT NOT NULL,
    members TEXT NOT NULL,
    version INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE config_changes (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    changed_at INTEGER NOT NULL
);
CREATE TABLE host_groups (
    host_id TEXT NOT NULL,
    name TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (host_id, name)
) WITHOUT ROWID;
CREATE INDEX host_groups_name ON host_groups (name);
