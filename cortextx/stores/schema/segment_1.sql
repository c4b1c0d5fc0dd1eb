-- Layout 1 of a log segment; 000000 stands for the segment's number.
CREATE TABLE logs_000000 (
    id INTEGER PRIMARY KEY,
    host INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    ts_offset INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    severity INTEGER NOT NULL,
    facility TEXT,
    app_name TEXT,
    process_id TEXT,
    message TEXT NOT NULL,
    source TEXT NOT NULL,
    metadata TEXT
);
CREATE UNIQUE INDEX logs_000000_seq ON logs_000000 (host, seq);
CREATE INDEX logs_000000_ts ON logs_000000 (ts);
CREATE INDEX logs_000000_host_ts ON logs_000000 (host, ts);
-- Warnings and worse are few and often asked for.
CREATE INDEX logs_000000_warning ON logs_000000 (ts) WHERE severity <= 4;
-- No docsize table: nothing ranks. Merging is the writer's own, when it is idle;
-- the crisis limit only keeps FTS5 from merging everything in one stroke under load.
CREATE VIRTUAL TABLE fts_000000 USING fts5 (
    message, content='logs_000000', content_rowid='id', columnsize=0, tokenize='unicode61'
);
INSERT INTO fts_000000 (fts_000000, rank) VALUES ('automerge', 0);
INSERT INTO fts_000000 (fts_000000, rank) VALUES ('usermerge', 8);
INSERT INTO fts_000000 (fts_000000, rank) VALUES ('crisismerge', 1000);
INSERT INTO fts_000000 (fts_000000, rank) VALUES ('hashsize', 8388608);
