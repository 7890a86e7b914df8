-- One database holds any number of mailboxes. Times are milliseconds since the epoch, by the server's clock.
CREATE SCHEMA loopwarden;

-- One row: what this is, and what the ids of its messages begin with.
CREATE TABLE loopwarden.about (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    version int NOT NULL,
    birth text NOT NULL
);

INSERT INTO loopwarden.about (version, birth) VALUES (1, substr(md5(random()::text || clock_timestamp()::text), 1, 8));

CREATE TABLE loopwarden.mailboxes (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    -- What all processes may do with it: '' is everything, 'paused' all but receive, 'draining' all but send.
    state text NOT NULL DEFAULT ''
);

CREATE SEQUENCE loopwarden.places;

-- Its key is its only index, so that a send, a lease and an acknowledgement each write one entry.
CREATE TABLE loopwarden.messages (
    -- 0 if it can be received; otherwise it is leased or delayed until then.
    due bigint NOT NULL,
    -- The place in line, which a message keeps when it comes back. A number is never given twice.
    place bigint NOT NULL,
    sent_at bigint NOT NULL,
    -- Which delivery is the lease, of which process; NULL if it is not leased.
    receipt bigint,
    -- The number of its mailbox; that of dead letters is the same below zero.
    mailbox int NOT NULL,
    -- How often it was delivered, not counting what was put back.
    count int NOT NULL DEFAULT 0,
    holder text,
    -- JSON, and what the sender wrote beside it, as JSON too.
    body bytea NOT NULL,
    about text,
    error text,
    -- Of dead letters only: the place that its id is of, when, why, and after how many deliveries.
    origin bigint,
    dead_at bigint,
    reason text,
    dead_count int,
    PRIMARY KEY (mailbox, due, place)
) WITH (
    -- A queue of a few rows that all change: what is dead must go soon, and costs little then.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_cost_delay = 0
);

-- Of dead letters only.
CREATE INDEX letters_by_place ON loopwarden.messages (mailbox, place) WHERE origin IS NOT NULL;
CREATE INDEX letters_by_id ON loopwarden.messages (mailbox, origin) WHERE origin IS NOT NULL;

-- The processes that take part in a mailbox, and when each has last said that it lives.
CREATE TABLE loopwarden.members (
    mailbox int NOT NULL,
    holder text NOT NULL,
    seen bigint NOT NULL,
    about text NOT NULL,
    PRIMARY KEY (mailbox, holder)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- The processes that wait: for something to receive, or for room. A crash of the server ends all waiting.
CREATE UNLOGGED TABLE loopwarden.waiting (
    mailbox int NOT NULL,
    room boolean NOT NULL,
    holder text NOT NULL,
    PRIMARY KEY (mailbox, room, holder)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE loopwarden.dedup (
    mailbox int NOT NULL,
    dedup_id text NOT NULL,
    place bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (mailbox, dedup_id)
);

CREATE INDEX dedup_until ON loopwarden.dedup (until);
