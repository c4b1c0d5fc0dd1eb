-- The first schema. Times are microseconds since 1970-01-01T00:00:00Z.

-- Who may connect, and every host that entries or gaps still point to: a forgotten
-- host keeps its row, without secrets and with forgotten_at, for as long as these do.
CREATE TABLE hosts (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    host_id TEXT,
    state TEXT NOT NULL CHECK (state IN ('never_connected', 'active', 'disconnected', 'revoked')),
    created_at INTEGER NOT NULL,
    token_hash BLOB,
    token_expires_at INTEGER,
    token_hash_prev BLOB,
    prev_expires_at INTEGER,
    rotation_pending INTEGER NOT NULL DEFAULT 0,
    accepted_seq INTEGER NOT NULL DEFAULT 0,
    session_id TEXT,
    hostname TEXT,
    agent_version TEXT,
    platform TEXT,
    capabilities TEXT,
    remote_address TEXT,
    last_handshake INTEGER,
    last_seen INTEGER,
    last_disconnect_reason TEXT,
    queue_depth INTEGER,
    buffer_bytes INTEGER,
    push_lag_seq INTEGER,
    clock_skew INTEGER,
    lost_entries INTEGER NOT NULL DEFAULT 0,
    gap_count INTEGER NOT NULL DEFAULT 0,
    forgotten_at INTEGER
);
CREATE UNIQUE INDEX hosts_host_id ON hosts (host_id) WHERE forgotten_at IS NULL;
CREATE INDEX hosts_name ON hosts (name);
CREATE INDEX hosts_any_id ON hosts (host_id);
CREATE INDEX hosts_token ON hosts (token_hash) WHERE host_id IS NULL;

-- Seqs that a host numbered and the server never got (F13).
CREATE TABLE gaps (
    id INTEGER PRIMARY KEY,
    host INTEGER NOT NULL REFERENCES hosts (key),
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    detected_at INTEGER NOT NULL,
    cause TEXT
);
CREATE INDEX gaps_host ON gaps (host);

-- The catalogue of log segments. Segment 7 is the table logs_000007 with the
-- full-text index fts_000007, made from segment_<layout>.sql. Ids of entries grow
-- over all segments. `indexed_to` is the last id that the full-text index holds;
-- last_id is first_id - 1 for an empty segment. Readers leave out `dropping` ones.
CREATE TABLE segments (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    layout INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed', 'dropping')),
    day INTEGER NOT NULL,
    first_id INTEGER NOT NULL,
    last_id INTEGER NOT NULL,
    rows INTEGER NOT NULL DEFAULT 0,
    min_ts INTEGER,
    max_ts INTEGER,
    indexed_to INTEGER NOT NULL
);
