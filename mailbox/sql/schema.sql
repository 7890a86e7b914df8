-- One file holds any number of mailboxes; dead letters are messages of the mailbox "<name>:dead".
CREATE TABLE IF NOT EXISTS mailboxes (
    name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS messages (
    -- The place in line, which a message keeps when it comes back. AUTOINCREMENT: a number is never given twice.
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    mailbox TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    headers BLOB NOT NULL,
    reply_to TEXT,
    sent_at REAL NOT NULL,
    -- 1 if it can be received; otherwise it is leased or delayed until `due`.
    visible INTEGER NOT NULL,
    due REAL,
    -- How often it was delivered, not counting what was put back.
    count INTEGER NOT NULL DEFAULT 0,
    -- Which delivery is the lease; only ever raised, so that no handle is good twice.
    receipt INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    -- Of dead letters only: which mailbox gave it up, when, why, and after how many deliveries.
    source TEXT,
    dead_at REAL,
    reason TEXT,
    dead_count INTEGER
) STRICT;

CREATE INDEX IF NOT EXISTS messages_visible ON messages (mailbox, sequence) WHERE visible = 1;
CREATE INDEX IF NOT EXISTS messages_due ON messages (mailbox, due) WHERE visible = 0;

CREATE TABLE IF NOT EXISTS dedup (
    mailbox TEXT NOT NULL,
    dedup_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (mailbox, dedup_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS dedup_until ON dedup (until);
