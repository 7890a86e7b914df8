-- The journal of one session and its children. A session that opens it raises the epoch;
-- a session with an older one writes no more.
CREATE TABLE IF NOT EXISTS owner (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL
) STRICT;

INSERT OR IGNORE INTO owner VALUES (1, 0);

CREATE TABLE IF NOT EXISTS records (
    session TEXT NOT NULL,
    -- From 1 on, without a gap.
    sequence INTEGER NOT NULL,
    event TEXT NOT NULL,
    body BLOB NOT NULL,
    -- The checksum of the record before, so that one that is missing or exchanged is noticed.
    previous BLOB NOT NULL,
    -- Of everything above.
    checksum BLOB NOT NULL,
    PRIMARY KEY (session, sequence)
) STRICT, WITHOUT ROWID;

-- The last two of each session: the records after the older one can replace the newer one.
CREATE TABLE IF NOT EXISTS snapshots (
    session TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    body BLOB NOT NULL,
    -- The checksum of the record with the same number.
    previous BLOB NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (session, sequence)
) STRICT, WITHOUT ROWID;
