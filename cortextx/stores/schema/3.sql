-- What bounds need to know: how large a segment is, and when a sample came.

-- Bytes of a segment's entries as they came on the wire, by which it is cut and trimmed.
ALTER TABLE segments ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE segments SET bytes = rows * 400;

-- Samples go by when they came, whatever time they carry. Those of before are taken to
-- have come at their own time, or with this upgrade if they say that they are of later.
ALTER TABLE metric_points ADD COLUMN received_at INTEGER NOT NULL DEFAULT 0;
UPDATE metric_points SET received_at = min(ts, CAST(strftime('%s', 'now') AS INTEGER) * 1000000);
CREATE INDEX metric_points_received ON metric_points (received_at);

-- Gaps are read in pages, oldest first, of all hosts or of one.
CREATE INDEX gaps_order ON gaps (detected_at, coalesce(first, 0), id);
CREATE INDEX gaps_host_order ON gaps (host, detected_at, coalesce(first, 0), id);
