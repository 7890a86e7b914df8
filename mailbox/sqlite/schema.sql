-- One file holds any number of mailboxes; dead letters are messages of the mailbox "<name>:dead".
CREATE TABLE IF NOT EXISTS mailboxes (
    name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- One row: the highest place in line that was set aside, and the store that may give what is left of it (see Line).
CREATE TABLE IF NOT EXISTS line (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    last INTEGER NOT NULL,
    owner INTEGER NOT NULL
) STRICT;

INSERT OR IGNORE INTO line VALUES (1, 0, 0);

-- Its key is its only index, so that a send, a lease and an acknowledgement each write one page if there is not much.
CREATE TABLE IF NOT EXISTS messages (
    mailbox TEXT NOT NULL,
    -- 0 if it can be received; otherwise it is leased or delayed until then.
    due REAL NOT NULL,
    -- The place in line, which a message keeps when it comes back. A number is never given twice.
    sequence INTEGER NOT NULL,
    id TEXT NOT NULL,
    -- NULL if it is long: then it is the one in `bodies` with the number `long`.
    body BLOB,
    long INTEGER,
    headers BLOB NOT NULL,
    reply_to TEXT,
    sent_at REAL NOT NULL,
    -- How often it was delivered, not counting what was put back.
    count INTEGER NOT NULL DEFAULT 0,
    -- Which delivery is the lease; only ever raised, so that no handle is good twice.
    receipt INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    -- Of dead letters only: which mailbox gave it up, when, why, and after how many deliveries.
    source TEXT,
    dead_at REAL,
    reason TEXT,
    dead_count INTEGER,
    -- Who has it, while it is leased: a number of `holders`, or 0 if that is not known. NULL if it is not leased.
    holder INTEGER,
    PRIMARY KEY (mailbox, due, sequence)
) STRICT, WITHOUT ROWID;

-- The stores that have leases, each of which has a lock on a file of its number (see Holders).
CREATE TABLE IF NOT EXISTS holders (
    number INTEGER PRIMARY KEY
) STRICT;

-- Long bodies, so that a lease, which moves its row, does not write them again.
CREATE TABLE IF NOT EXISTS bodies (
    number INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TRIGGER IF NOT EXISTS bodies_go_with_their_messages AFTER DELETE ON messages WHEN old.long IS NOT NULL
BEGIN
    DELETE FROM bodies WHERE number = old.long;
END;

CREATE TABLE IF NOT EXISTS dedup (
    mailbox TEXT NOT NULL,
    dedup_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (mailbox, dedup_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS dedup_until ON dedup (until);
