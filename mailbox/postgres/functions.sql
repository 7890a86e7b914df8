-- What clients call. Each says by `at` what time it is for it, or NULL for the server's own.
--
-- What makes something visible is a procedure: it commits before it looks who waits. Who has begun to wait since then has
-- said so before, and then looked once more, and has found it.
--
-- The planner is told never to read the whole table: it may have been empty when a plan was made, and have a million
-- rows when it is used. It has no choice either where rows are found by their `ctid`, with nothing beside it that an
-- index knows; a join with the table it may begin from the wrong end. Plans are made once: to make one costs more than
-- to use it.

CREATE FUNCTION loopwarden.time(at bigint) RETURNS bigint LANGUAGE sql VOLATILE
RETURN coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- Who waits.

-- Wakes a process that waits, if there is one; each is woken once for each time that it says so.
CREATE FUNCTION loopwarden.ring(box int, for_room boolean, besides text DEFAULT '') RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    woken text;
BEGIN
    IF NOT EXISTS (SELECT FROM loopwarden.waiting w WHERE w.mailbox = box AND w.room = for_room) THEN
        RETURN;
    END IF;
    DELETE FROM loopwarden.waiting w USING (
        SELECT mailbox, room, holder FROM loopwarden.waiting
        WHERE mailbox = box AND room = for_room AND holder <> besides LIMIT 1 FOR UPDATE SKIP LOCKED
    ) one WHERE w.mailbox = one.mailbox AND w.room = one.room AND w.holder = one.holder
    RETURNING w.holder INTO woken;
    IF woken IS NOT NULL THEN
        PERFORM pg_notify('loopwarden_' || woken, box || CASE WHEN for_room THEN ' room' ELSE ' bell' END);
    END IF;
END $$;

-- Wakes one to see when to look again, if these are due sooner than those who wait may know.
CREATE FUNCTION loopwarden.ring_if_earliest(box int, until bigint, now_ms bigint, places bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    IF until - now_ms <= 20000 AND NOT EXISTS (
        SELECT FROM loopwarden.messages m
        WHERE m.mailbox = box AND m.due > 0 AND m.due < until AND m.place <> ALL (places)
    ) THEN
        PERFORM loopwarden.ring(box, false);
    END IF;
END $$;

-- Says whether something can be received; otherwise when to look again, if ever.
CREATE FUNCTION loopwarden.look(box int, at bigint, OUT now_ms bigint, OUT is_there boolean, OUT next_due bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    now_ms := loopwarden.time(at);
    is_there := false;
    IF (SELECT m.state FROM loopwarden.mailboxes m WHERE m.number = abs(box)) = 'paused' THEN
        RETURN;
    END IF;
    SELECT m.due INTO next_due FROM loopwarden.messages m WHERE m.mailbox = box ORDER BY m.due LIMIT 1;
    is_there := coalesce(next_due <= now_ms, false);
    IF is_there AND next_due > 0 THEN  -- a transaction may have locked it, which has acknowledged it but is still open
        PERFORM FROM loopwarden.messages m
        WHERE m.mailbox = box AND m.due > 0 AND m.due <= now_ms LIMIT 1 FOR UPDATE SKIP LOCKED;
        is_there := FOUND;
        next_due := CASE WHEN is_there THEN next_due ELSE now_ms + 100 END;
    END IF;
END $$;

-- Says that a process waits, and then looks once more. If a transaction of a user's is open that has sent, its end may
-- wake none.
CREATE PROCEDURE loopwarden.wait(
    box int, for_room boolean, process text, at bigint, INOUT now_ms bigint, INOUT is_there boolean,
    INOUT next_due bigint, INOUT is_sending boolean
) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO loopwarden.waiting VALUES (box, for_room, process) ON CONFLICT DO NOTHING;
    COMMIT;
    is_sending := NOT pg_try_advisory_lock(1819242359, box);
    IF NOT is_sending THEN
        PERFORM pg_advisory_unlock(1819242359, box);  -- at once: others who begin to wait try the same
    END IF;
    SELECT l.now_ms, l.is_there, l.next_due INTO now_ms, is_there, next_due FROM loopwarden.look(box, at) l;
END $$;

-- Returns in which of the mailboxes something can be received.
CREATE FUNCTION loopwarden.look_at_all(boxes int[], at bigint) RETURNS int[] LANGUAGE sql
RETURN array(SELECT box FROM unnest(boxes) box WHERE (SELECT l.is_there FROM loopwarden.look(box, at) l));

-- Wakes another process, if there is something, or will be before it looks by itself: who was woken has not looked.
CREATE FUNCTION loopwarden.pass_on(box int, at bigint, for_room boolean, process text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF for_room OR (SELECT l.next_due <= l.now_ms + 20000 FROM loopwarden.look(box, at) l) THEN
        PERFORM loopwarden.ring(box, for_room, process);
    END IF;
END $$;

-- Refuses what has gone from the database since it was opened, as by a backup that is older.
CREATE FUNCTION loopwarden.check_is_there(box int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM loopwarden.mailboxes m WHERE m.number = abs(box)) THEN
        RAISE EXCEPTION 'the mailbox is not in the database any more' USING ERRCODE = 'undefined_object';
    END IF;
END $$;

-- Sends all or none; returns their places. There is none if there is no room, and only a 0 if the mailbox is drained.
CREATE FUNCTION loopwarden.send(
    box int, at bigint, bodies bytea[], about text, delay bigint, dedup text, dedup_window bigint, max_size int,
    waits text
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ms bigint := loopwarden.time(at);
    is_checked boolean := dedup IS NOT NULL OR max_size IS NOT NULL;
    places bigint[];
    own bigint;
BEGIN
    IF is_checked THEN
        PERFORM loopwarden.check_is_there(box);
        IF (SELECT m.state FROM loopwarden.mailboxes m WHERE m.number = box) = 'draining' THEN
            RETURN '{0}';
        END IF;
    END IF;
    IF dedup IS NOT NULL THEN
        DELETE FROM loopwarden.dedup d USING (
            SELECT mailbox, dedup_id FROM loopwarden.dedup WHERE until <= now_ms LIMIT 100 FOR UPDATE SKIP LOCKED
        ) past WHERE d.mailbox = past.mailbox AND d.dedup_id = past.dedup_id;
        INSERT INTO loopwarden.dedup AS d VALUES (box, dedup, nextval('loopwarden.places'), now_ms + dedup_window)
        ON CONFLICT (mailbox, dedup_id) DO UPDATE SET place = excluded.place, until = excluded.until
        WHERE d.until <= now_ms RETURNING d.place INTO own;
        IF own IS NULL THEN
            RETURN array(SELECT d.place FROM loopwarden.dedup d WHERE d.mailbox = box AND d.dedup_id = dedup);
        END IF;
    END IF;
    IF max_size IS NOT NULL THEN
        IF loopwarden.size(box, max_size) + cardinality(bodies) > max_size THEN
            DELETE FROM loopwarden.dedup d WHERE d.mailbox = box AND d.dedup_id = dedup;
            IF waits IS NOT NULL THEN
                INSERT INTO loopwarden.waiting VALUES (box, true, waits) ON CONFLICT DO NOTHING;
            END IF;
            RETURN '{}';
        END IF;
    END IF;
    IF cardinality(bodies) = 1 THEN
        INSERT INTO loopwarden.messages (mailbox, due, place, sent_at, body, about)
        SELECT box, CASE WHEN delay > 0 THEN now_ms + delay ELSE 0 END, coalesce(own, nextval('loopwarden.places')),
            now_ms, bodies[1], send.about
        WHERE is_checked OR EXISTS (
            SELECT FROM loopwarden.mailboxes m WHERE m.number = box AND m.state <> 'draining'
        )
        RETURNING place INTO own;
        IF own IS NULL THEN
            PERFORM loopwarden.check_is_there(box);
        END IF;
        RETURN array[coalesce(own, 0)];
    END IF;
    WITH sent AS (
        INSERT INTO loopwarden.messages (mailbox, due, place, sent_at, body, about)
        SELECT box, 0, nextval('loopwarden.places'), now_ms, each, send.about FROM unnest(bodies) each
        WHERE is_checked OR EXISTS (
            SELECT FROM loopwarden.mailboxes m WHERE m.number = box AND m.state <> 'draining'
        )
        RETURNING place
    ) SELECT coalesce(array_agg(place), '{0}') FROM sent INTO places;
    IF places[1] = 0 THEN
        PERFORM loopwarden.check_is_there(box);
    END IF;
    RETURN places;
END $$;

-- Counts messages, but no further than it matters.
CREATE FUNCTION loopwarden.size(box int, most int) RETURNS bigint LANGUAGE sql STABLE
RETURN (SELECT count(*) FROM (SELECT FROM loopwarden.messages m WHERE m.mailbox = box LIMIT most) counted);

-- Sends on a connection of our own, and wakes who waits.
CREATE PROCEDURE loopwarden.put(
    INOUT places bigint[], box int, at bigint, bodies bytea[], about text, delay bigint, dedup text,
    dedup_window bigint, max_size int, waits text
) LANGUAGE plpgsql AS $$
BEGIN
    IF max_size IS NOT NULL THEN  -- or two would take the same room
        PERFORM pg_advisory_xact_lock(1819242358, box);
    END IF;
    places := loopwarden.send(box, at, bodies, about, delay, dedup, dedup_window, max_size, waits);
    COMMIT;
    IF places[1] > 0 THEN
        IF delay > 0 THEN
            at := loopwarden.time(at);
            PERFORM loopwarden.ring_if_earliest(box, at + delay, at, places);
        ELSE
            PERFORM loopwarden.ring(box, false);
        END IF;
        IF max_size IS NOT NULL THEN  -- or all would be counted
            IF loopwarden.size(box, max_size) < max_size THEN  -- there is room for another who waits
                PERFORM loopwarden.ring(box, true);
            END IF;
        END IF;
    END IF;
END $$;

-- Sends in a transaction of the user's, whose end is not waited for: it may send into room that another takes, too.
-- What is called there has a search path of its own, or functions of others could fit better than the server's. NULL if
-- it is another database, where the number may be that of another mailbox.
CREATE FUNCTION loopwarden.send_within(
    of_birth text, box int, at bigint, bodies bytea[], about text, delay bigint, dedup text, dedup_window bigint,
    max_size int
) RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    places bigint[];
    woken text;
BEGIN
    IF NOT EXISTS (SELECT FROM loopwarden.about a WHERE a.birth = of_birth) THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(1819242359, box);  -- which who begins to wait sees
    places := loopwarden.send(box, at, bodies, about, delay, dedup, dedup_window, max_size, NULL);
    IF places[1] > 0 THEN
        -- It is told at the commit. Its row stays for others, who may be sooner.
        SELECT w.holder INTO woken FROM loopwarden.waiting w WHERE w.mailbox = box AND NOT w.room LIMIT 1;
        IF woken IS NOT NULL THEN
            PERFORM pg_notify('loopwarden_' || woken, box || ' bell');
        END IF;
    END IF;
    RETURN places;
END $$;

-- Receiving.

-- Makes a message a dead letter.
CREATE FUNCTION loopwarden.bury(box int, now_ms bigint, old_due bigint, old_place bigint, why text, told text)
RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    UPDATE loopwarden.messages m SET
        mailbox = -box, due = 0, place = nextval('loopwarden.places'), origin = m.place, dead_at = now_ms,
        reason = why, dead_count = m.count, error = coalesce(told, m.error), count = 0, receipt = NULL, holder = NULL
    WHERE m.mailbox = box AND m.due = old_due AND m.place = old_place;
END $$;

-- Brings back what is due, a thousand at a time: what was delivered often enough as dead letters. Returns all of them.
CREATE FUNCTION loopwarden.bring_back(box int, now_ms bigint, max_deliveries int, untold text)
RETURNS TABLE (place bigint, is_dead boolean, count int, error text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    each record;
BEGIN
    FOR each IN
        SELECT m.place, m.due, m.count, coalesce(m.error, untold) AS error FROM loopwarden.messages m
        WHERE m.mailbox = box AND m.due > 0 AND m.due <= now_ms ORDER BY m.due, m.place LIMIT 1000
        FOR UPDATE SKIP LOCKED
    LOOP
        IF each.count >= max_deliveries THEN
            PERFORM loopwarden.bury(
                box, now_ms, each.due, each.place,
                'it was delivered ' || CASE each.count WHEN 1 THEN '1 time' ELSE each.count || ' times' END, each.error
            );
        ELSE
            UPDATE loopwarden.messages m SET due = 0, receipt = NULL, holder = NULL
            WHERE m.mailbox = box AND m.due = each.due AND m.place = each.place;
        END IF;
        RETURN QUERY SELECT each.place, coalesce(each.count >= max_deliveries, false), each.count, each.error;
    END LOOP;
END $$;

-- Leases what is first in line. Returns rows of a kind: 'message', then when it was sent and when its lease ends, its
-- count, what the sender wrote and its body; 'letter' of one that had been delivered often enough, with its count and
-- its last error; and if there is no message 'nothing', with the time, and when to look again.
-- What is said of letters to who receives them stands beside: place of the id, when, why, count and error.
CREATE FUNCTION loopwarden.receive(
    box int, at bigint, most int, lasts bigint, new_receipt bigint, process text, max_deliveries int, untold text
) RETURNS TABLE (
    kind text, place bigint, sent_at bigint, due bigint, count int, body bytea, about text,
    origin bigint, dead_at bigint, reason text, dead_count int, error text
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := loopwarden.time(at);
    until bigint := now_ms + lasts;
    state text;
    is_due boolean;
    is_awaited boolean;
    next_due bigint;
    taken int := 0;
    first_of record;
BEGIN
    SELECT m.state,
        EXISTS (SELECT FROM loopwarden.messages d WHERE d.mailbox = box AND d.due > 0 AND d.due <= now_ms),
        EXISTS (SELECT FROM loopwarden.waiting w WHERE w.mailbox = box AND NOT w.room)
    INTO state, is_due, is_awaited FROM loopwarden.mailboxes m WHERE m.number = abs(box);
    IF state IS NULL THEN
        PERFORM loopwarden.check_is_there(box);
    END IF;
    IF is_due THEN
        RETURN QUERY SELECT 'letter', b.place, NULL::bigint, NULL::bigint, b.count, NULL::bytea, NULL::text,
            NULL::bigint, NULL::bigint, NULL::text, NULL::int, b.error
        FROM loopwarden.bring_back(box, now_ms, max_deliveries, untold) b WHERE b.is_dead;
    END IF;
    WHILE state <> 'paused' LOOP
        IF most = 1 THEN
            RETURN QUERY
                UPDATE loopwarden.messages m
                SET due = until, count = m.count + 1, receipt = new_receipt, holder = process
                WHERE m.ctid = (
                    SELECT f.ctid FROM loopwarden.messages f
                    WHERE f.mailbox = box AND f.due = 0 ORDER BY f.place LIMIT 1 FOR UPDATE SKIP LOCKED
                ) AND (max_deliveries IS NULL OR m.count < max_deliveries)
                RETURNING 'message', m.place, m.sent_at, m.due, m.count, m.body, m.about,
                    m.origin, m.dead_at, m.reason, m.dead_count, m.error;
        ELSE
            RETURN QUERY
                WITH line AS MATERIALIZED (
                    SELECT f.ctid AS at_row, f.place, f.count FROM loopwarden.messages f
                    WHERE f.mailbox = box AND f.due = 0 ORDER BY f.place LIMIT most FOR UPDATE SKIP LOCKED
                )
                UPDATE loopwarden.messages m
                SET due = until, count = m.count + 1, receipt = new_receipt, holder = process
                WHERE m.ctid = ANY (array(
                    SELECT l.at_row FROM line l  -- one that was delivered before comes alone
                    WHERE l.place < coalesce((SELECT min(o.place) FROM line o WHERE o.count > 0), 9223372036854775807)
                        OR l.place = (SELECT min(o.place) FROM line o)
                            AND (max_deliveries IS NULL OR l.count < max_deliveries)
                ))
                RETURNING 'message', m.place, m.sent_at, m.due, m.count, m.body, m.about,
                    m.origin, m.dead_at, m.reason, m.dead_count, m.error;
        END IF;
        GET DIAGNOSTICS taken = ROW_COUNT;
        EXIT WHEN taken > 0;
        EXIT WHEN NOT EXISTS (SELECT FROM loopwarden.messages m WHERE m.mailbox = box AND m.due = 0);
        SELECT m.place, m.count, m.error INTO first_of FROM loopwarden.messages m
        WHERE m.mailbox = box AND m.due = 0 ORDER BY m.place LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF first_of.count >= max_deliveries THEN  -- which may be fewer than when it came back
            PERFORM loopwarden.bury(
                box, now_ms, 0, first_of.place, 'it was delivered ' || first_of.count
                    || CASE first_of.count WHEN 1 THEN ' time' ELSE ' times' END, NULL
            );
            RETURN QUERY SELECT 'letter', first_of.place, NULL::bigint, NULL::bigint, first_of.count, NULL::bytea,
                NULL::text, NULL::bigint, NULL::bigint, NULL::text, NULL::int, first_of.error;
        ELSIF first_of.place IS NULL THEN
            -- Others have the rest in hand, for a moment: until the end of a call like this one.
            BEGIN
                PERFORM set_config('lock_timeout', '1s', true);
                PERFORM FROM loopwarden.messages m
                WHERE m.mailbox = box AND m.due = 0 ORDER BY m.place LIMIT 1 FOR UPDATE;
            EXCEPTION WHEN lock_not_available THEN
                next_due := now_ms + 1000;
                EXIT;
            END;
        END IF;
    END LOOP;
    IF taken > 0 THEN
        IF is_awaited THEN
            IF EXISTS (SELECT FROM loopwarden.messages m WHERE m.mailbox = box AND m.due = 0) THEN
                PERFORM loopwarden.ring(box, false);  -- there is more
            ELSE
                PERFORM loopwarden.ring_if_earliest(box, until, now_ms, '{}');
            END IF;
        END IF;
    ELSE
        IF next_due IS NULL AND state <> 'paused' THEN
            SELECT m.due INTO next_due FROM loopwarden.messages m
            WHERE m.mailbox = box AND m.due > 0 ORDER BY m.due LIMIT 1;
            IF next_due <= now_ms THEN  -- others have locked all that is due, for a moment or for long
                next_due := now_ms + 100;
            END IF;
        END IF;
        RETURN QUERY SELECT 'nothing', NULL::bigint, now_ms, next_due, NULL::int, NULL::bytea, state,
            NULL::bigint, NULL::bigint, NULL::text, NULL::int, NULL::text;
    END IF;
END $$;

-- Settling. What is meant is said by places, receipts and the ends of leases, as far as the caller knows these.

-- Returns those of the deliveries that this very call must have settled, the answer to which was lost: they are settled,
-- although their leases cannot have ended yet.
CREATE FUNCTION loopwarden.settled_before(box int, now_ms bigint, places bigint[], receipts bigint[], dues bigint[])
RETURNS bigint[] LANGUAGE sql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
RETURN array(
    SELECT g.place FROM unnest(places, receipts, dues) AS g(place, receipt, due) WHERE g.due > now_ms AND NOT EXISTS (
        SELECT FROM loopwarden.messages m
        WHERE m.mailbox = box AND m.due > 0 AND m.place = g.place AND m.receipt = g.receipt
    )
);

-- Deletes messages; returns the places of those whose delivery was not over.
CREATE FUNCTION loopwarden.delete(
    box int, at bigint, again boolean, places bigint[], receipts bigint[], dues bigint[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ms bigint := loopwarden.time(at);
    done bigint[];
    more bigint[];
BEGIN
    IF cardinality(places) = 1 THEN
        DELETE FROM loopwarden.messages m
        WHERE m.mailbox = box AND m.due = dues[1] AND m.place = places[1] AND m.receipt = receipts[1]
            AND dues[1] > now_ms;
        done := CASE WHEN FOUND THEN places ELSE '{}' END;
    ELSE
        WITH gone AS (
            DELETE FROM loopwarden.messages m WHERE m.ctid = ANY (array(
                SELECT (
                    SELECT h.ctid FROM loopwarden.messages h
                    WHERE h.mailbox = box AND h.due = g.due AND h.place = g.place AND h.receipt = g.receipt
                ) FROM unnest(places, receipts, dues) AS g(place, receipt, due) WHERE g.due > now_ms
            )) AND m.receipt = ANY (receipts)
            RETURNING m.place
        ) SELECT coalesce(array_agg(place), '{}') FROM gone INTO done;
    END IF;
    IF cardinality(done) < cardinality(places) THEN  -- another holder of the same may have moved the end of the lease
        WITH gone AS (
            DELETE FROM loopwarden.messages m WHERE m.mailbox = box AND m.due > now_ms AND CASE WHEN
                (m.place, m.receipt) IN (SELECT * FROM unnest(places, receipts)) THEN true
            END
            RETURNING m.place
        ) SELECT coalesce(array_agg(place), '{}') FROM gone INTO more;
        done := done || more;
        IF again THEN
            done := done || loopwarden.settled_before(box, now_ms, places, receipts, dues);
        END IF;
    END IF;
    RETURN done;
END $$;

-- Deletes a message in a transaction of the user's; false if its delivery is over.
CREATE FUNCTION loopwarden.delete_within(box int, at bigint, place bigint, receipt bigint, due bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN cardinality(loopwarden.delete(box, at, false, array[place], array[receipt], array[due])) > 0;
END $$;

CREATE PROCEDURE loopwarden.acknowledge(
    INOUT done bigint[], box int, at bigint, again boolean, places bigint[], receipts bigint[], dues bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
    done := loopwarden.delete(box, at, again, places, receipts, dues);
    COMMIT;
    PERFORM loopwarden.ring(box, true);
END $$;

-- Moves the end of leases, of which none is cut short if `only_later`. Returns the time, then the places as above.
CREATE FUNCTION loopwarden.extend(
    box int, at bigint, lasts bigint, only_later boolean, places bigint[], receipts bigint[], dues bigint[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ms bigint := loopwarden.time(at);
    until bigint := now_ms + lasts;
    done bigint[];
    more bigint[];
BEGIN
    WITH moved AS (
        UPDATE loopwarden.messages m SET due = CASE WHEN only_later THEN greatest(m.due, until) ELSE until END
        WHERE m.ctid = ANY (array(
            SELECT (
                SELECT h.ctid FROM loopwarden.messages h
                WHERE h.mailbox = box AND h.due = g.due AND h.place = g.place AND h.receipt = g.receipt
            ) FROM unnest(places, receipts, dues) AS g(place, receipt, due) WHERE g.due > now_ms
        )) AND m.receipt = ANY (receipts)
        RETURNING m.place
    ) SELECT coalesce(array_agg(place), '{}') FROM moved INTO done;
    IF cardinality(done) < cardinality(places) THEN
        WITH moved AS (
            UPDATE loopwarden.messages m SET due = CASE WHEN only_later THEN greatest(m.due, until) ELSE until END
            WHERE m.mailbox = box AND m.due > now_ms AND CASE WHEN
                (m.place, m.receipt) IN (SELECT * FROM unnest(places, receipts)) THEN true
            END AND m.place <> ALL (done)
            RETURNING m.place
        ) SELECT coalesce(array_agg(place), '{}') FROM moved INTO more;
        done := done || more;
    END IF;
    IF NOT only_later THEN
        PERFORM loopwarden.ring_if_earliest(box, until, now_ms, '{}');
    END IF;
    RETURN now_ms || done;
END $$;

CREATE FUNCTION loopwarden.return(
    box int, at bigint, again boolean, counted boolean, delay bigint, told text,
    places bigint[], receipts bigint[], dues bigint[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ms bigint := loopwarden.time(at);
    until bigint := CASE WHEN delay > 0 THEN now_ms + delay ELSE 0 END;
    done bigint[];
    more bigint[];
BEGIN
    WITH moved AS (
        UPDATE loopwarden.messages m SET due = until, receipt = NULL, holder = NULL,
            count = m.count - CASE WHEN counted THEN 0 ELSE 1 END, error = coalesce(told, m.error)
        WHERE m.ctid = ANY (array(
            SELECT (
                SELECT h.ctid FROM loopwarden.messages h
                WHERE h.mailbox = box AND h.due = g.due AND h.place = g.place AND h.receipt = g.receipt
            ) FROM unnest(places, receipts, dues) AS g(place, receipt, due) WHERE g.due > now_ms
        )) AND m.receipt = ANY (receipts)
        RETURNING m.place
    ) SELECT coalesce(array_agg(place), '{}') FROM moved INTO done;
    IF cardinality(done) < cardinality(places) THEN
        WITH moved AS (
            UPDATE loopwarden.messages m SET due = until, receipt = NULL, holder = NULL,
                count = m.count - CASE WHEN counted THEN 0 ELSE 1 END, error = coalesce(told, m.error)
            WHERE m.mailbox = box AND m.due > now_ms AND CASE WHEN
                (m.place, m.receipt) IN (SELECT * FROM unnest(places, receipts)) THEN true
            END
            RETURNING m.place
        ) SELECT coalesce(array_agg(place), '{}') FROM moved INTO more;
        done := done || more;
        IF again THEN
            done := done || loopwarden.settled_before(box, now_ms, places, receipts, dues);
        END IF;
    END IF;
    RETURN done;
END $$;

-- Gives messages back, after a delay if there is one; uncounted if they were not begun.
CREATE PROCEDURE loopwarden.give_back(
    INOUT done bigint[], box int, at bigint, again boolean, counted boolean, delay bigint, told text,
    places bigint[], receipts bigint[], dues bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
    done := loopwarden.return(box, at, again, counted, delay, told, places, receipts, dues);
    COMMIT;
    IF cardinality(done) > 0 THEN
        IF delay > 0 THEN
            at := loopwarden.time(at);
            PERFORM loopwarden.ring_if_earliest(box, at + delay, at, done);
        ELSE
            PERFORM loopwarden.ring(box, false);
        END IF;
    END IF;
END $$;

-- Makes messages dead letters; for each is said how often it was delivered, why it is one, and what the last error was.
CREATE FUNCTION loopwarden.condemn(
    box int, at bigint, again boolean, places bigint[], receipts bigint[], dues bigint[],
    counts int[], reasons text[], errors text[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ms bigint := loopwarden.time(at);
    done bigint[];
    more bigint[];
BEGIN
    WITH moved AS (
        UPDATE loopwarden.messages m SET
            mailbox = -box, due = 0, place = nextval('loopwarden.places'), origin = m.place, dead_at = now_ms,
            reason = g.why, dead_count = g.count, error = coalesce(g.error, m.error), count = 0,
            receipt = NULL, holder = NULL
        FROM unnest(places, receipts, dues, counts, reasons, errors) AS g(place, receipt, due, count, why, error)
        WHERE m.place + 0 = g.place AND m.receipt + 0 = g.receipt AND m.ctid = ANY (array(
            SELECT (
                SELECT h.ctid FROM loopwarden.messages h
                WHERE h.mailbox = box AND h.due = k.due AND h.place = k.place AND h.receipt = k.receipt
            ) FROM unnest(places, receipts, dues) AS k(place, receipt, due) WHERE k.due > now_ms
        ))
        RETURNING m.origin
    ) SELECT coalesce(array_agg(origin), '{}') FROM moved INTO done;
    IF cardinality(done) < cardinality(places) THEN
        WITH moved AS (
            UPDATE loopwarden.messages m SET
                mailbox = -box, due = 0, place = nextval('loopwarden.places'), origin = m.place, dead_at = now_ms,
                reason = g.why, dead_count = g.count, error = coalesce(g.error, m.error), count = 0,
                receipt = NULL, holder = NULL
            FROM unnest(places, receipts, counts, reasons, errors) AS g(place, receipt, count, why, error)
            WHERE m.mailbox = box AND m.due > now_ms AND m.place + 0 = g.place AND m.receipt + 0 = g.receipt
            RETURNING m.origin
        ) SELECT coalesce(array_agg(origin), '{}') FROM moved INTO more;
        done := done || more;
        IF again THEN
            done := done || loopwarden.settled_before(box, now_ms, places, receipts, dues);
        END IF;
    END IF;
    RETURN done;
END $$;

CREATE PROCEDURE loopwarden.dead_letter(
    INOUT done bigint[], box int, at bigint, again boolean, places bigint[], receipts bigint[], dues bigint[],
    counts int[], reasons text[], errors text[]
) LANGUAGE plpgsql AS $$
BEGIN
    done := loopwarden.condemn(box, at, again, places, receipts, dues, counts, reasons, errors);
    COMMIT;
    PERFORM loopwarden.ring(-box, false);
    PERFORM loopwarden.ring(box, true);
END $$;

-- Says whether a delivery is not over.
CREATE FUNCTION loopwarden.holds(box int, at bigint, a_place bigint, a_receipt bigint) RETURNS boolean
LANGUAGE sql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
RETURN EXISTS (
    SELECT FROM loopwarden.messages m
    WHERE m.mailbox = box AND m.due > loopwarden.time(at) AND m.place = a_place AND m.receipt = a_receipt
);

-- Dead letters, whose mailbox has a number below zero.

-- Reads letters in order, those behind a place; or the one of an id.
CREATE FUNCTION loopwarden.letters(box int, behind bigint, most int, of_id bigint) RETURNS TABLE (
    place bigint, sent_at bigint, body bytea, about text,
    origin bigint, dead_at bigint, reason text, dead_count int, error text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT m.place, m.sent_at, m.body, m.about, m.origin, m.dead_at, m.reason, m.dead_count, m.error
    FROM loopwarden.messages m
    WHERE m.mailbox = box AND m.origin IS NOT NULL AND m.place > behind AND (of_id IS NULL OR m.origin = of_id)
    ORDER BY m.place LIMIT most;
END $$;

-- Sends a letter back to its mailbox, under a new id. False if it is not there any more.
CREATE FUNCTION loopwarden.revive(box int, at bigint, letter bigint, new_about text) RETURNS boolean
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    moved int;
BEGIN
    UPDATE loopwarden.messages m SET
        mailbox = -box, due = 0, place = nextval('loopwarden.places'), sent_at = loopwarden.time(at), about = new_about,
        count = 0, receipt = NULL, holder = NULL, error = NULL, origin = NULL, dead_at = NULL, reason = NULL,
        dead_count = NULL
    WHERE m.mailbox = box AND m.origin = letter;
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved > 0;
END $$;

CREATE PROCEDURE loopwarden.redrive(INOUT done boolean, box int, at bigint, letter bigint, new_about text)
LANGUAGE plpgsql AS $$
BEGIN
    done := loopwarden.revive(box, at, letter, new_about);
    COMMIT;
    PERFORM loopwarden.ring(-box, false);
END $$;

-- Counting, and emptying.

CREATE FUNCTION loopwarden.stats(
    box int, at bigint, OUT now_ms bigint, OUT ready bigint, OUT leased bigint, OUT delayed bigint, OUT oldest bigint,
    OUT dead bigint
) LANGUAGE plpgsql AS $$
BEGIN
    now_ms := loopwarden.time(at);
    SELECT count(*) FILTER (WHERE m.due <= now_ms), count(*) FILTER (WHERE m.due > now_ms AND m.receipt IS NOT NULL),
        count(*) FILTER (WHERE m.due > now_ms AND m.receipt IS NULL), min(m.sent_at) FILTER (WHERE m.due <= now_ms)
    INTO ready, leased, delayed, oldest FROM loopwarden.messages m WHERE m.mailbox = box;
    dead := (SELECT count(*) FROM loopwarden.messages m WHERE m.mailbox = -box);
END $$;

CREATE PROCEDURE loopwarden.purge(INOUT gone bigint, box int) LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM loopwarden.messages m WHERE m.mailbox = box;
    GET DIAGNOSTICS gone = ROW_COUNT;
    COMMIT;
    PERFORM loopwarden.ring(box, true);
END $$;

-- Brings back a chunk of what is due. Returns rows of ids' places, with what a letter is told of; then one without place,
-- with the time and when to look again.
CREATE FUNCTION loopwarden.reap(box int, at bigint, max_deliveries int, untold text)
RETURNS TABLE (place bigint, is_dead boolean, count int, error text, now_ms bigint, next_due bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    time_ms bigint := loopwarden.time(at);
    least bigint;
BEGIN
    RETURN QUERY SELECT b.place, b.is_dead, b.count, b.error, NULL::bigint, NULL::bigint
    FROM loopwarden.bring_back(box, time_ms, max_deliveries, untold) b;
    least := CASE WHEN FOUND THEN 0 ELSE time_ms + 100 END;  -- others have locked what is due, if there was nothing
    RETURN QUERY SELECT NULL::bigint, NULL::boolean, NULL::int, NULL::text, time_ms, (
        SELECT greatest(m.due, CASE WHEN m.due <= time_ms THEN least END)
        FROM loopwarden.messages m WHERE m.mailbox = box AND m.due > 0 ORDER BY m.due LIMIT 1
    );
END $$;

-- Mailboxes, and who shares them.

CREATE FUNCTION loopwarden.open(a_name text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    found int := (SELECT m.number FROM loopwarden.mailboxes m WHERE m.name = a_name);
BEGIN
    IF found IS NULL THEN
        INSERT INTO loopwarden.mailboxes (name) VALUES (a_name) ON CONFLICT DO NOTHING;
        found := (SELECT m.number FROM loopwarden.mailboxes m WHERE m.name = a_name);
    END IF;
    RETURN found;
END $$;

-- Says that a process lives, and takes part in mailboxes. Returns what may be done with each, and which others have been
-- silent for so long that they may be dead, and since when; with the time.
CREATE FUNCTION loopwarden.beat(boxes int[], process text, of_itself text)
RETURNS TABLE (number int, state text, silent text, seen bigint, now_ms bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    time_ms bigint := loopwarden.time(NULL);
BEGIN
    INSERT INTO loopwarden.members AS m (mailbox, holder, seen, about)
    SELECT each, process, time_ms, of_itself FROM unnest(boxes) each ORDER BY each
    ON CONFLICT (mailbox, holder) DO UPDATE SET seen = excluded.seen;
    RETURN QUERY SELECT m.number, m.state, NULL::text, NULL::bigint, time_ms
    FROM loopwarden.mailboxes m WHERE m.number = ANY (boxes);
    RETURN QUERY SELECT m.mailbox, NULL::text, m.holder, m.seen, time_ms
    FROM loopwarden.members m WHERE m.mailbox = ANY (boxes) AND m.seen < time_ms - 6000 AND m.holder <> process;
END $$;

-- Sets what all processes may do with a mailbox, and tells them.
CREATE FUNCTION loopwarden.set_state(box int, new_state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE loopwarden.mailboxes m SET state = new_state WHERE m.number = box;
    PERFORM pg_notify('loopwarden_' || m.holder, box || ' state') FROM loopwarden.members m WHERE m.mailbox = box;
END $$;

-- Ends the leases of a process that has died, and forgets it. Returns how many, or NULL if it lives after all. Of a
-- message that a transaction has deleted which is still open, it must not wait for the end: then the process is not
-- forgotten, and it is looked at once more.
CREATE FUNCTION loopwarden.end_leases(box int, at bigint, process text) RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ms bigint := loopwarden.time(at);
    ended bigint;
BEGIN
    PERFORM FROM loopwarden.members m
    WHERE m.mailbox = box AND m.holder = process AND m.seen < loopwarden.time(NULL) - 15000 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM loopwarden.waiting w WHERE w.mailbox IN (box, -box) AND w.holder = process;
    UPDATE loopwarden.messages m SET due = now_ms WHERE m.ctid = ANY (array(
        SELECT h.ctid FROM loopwarden.messages h
        WHERE h.mailbox IN (box, -box) AND h.due > now_ms AND h.holder = process FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS ended = ROW_COUNT;
    IF NOT EXISTS (
        SELECT FROM loopwarden.messages m WHERE m.mailbox IN (box, -box) AND m.due > now_ms AND m.holder = process
    ) THEN
        DELETE FROM loopwarden.members m WHERE m.mailbox = box AND m.holder = process;
    END IF;
    RETURN ended;
END $$;

-- Gives back, uncounted, what receives have leased whose answers were lost.
CREATE FUNCTION loopwarden.give_back_lost(box int, of_receipts bigint[]) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    UPDATE loopwarden.messages m SET due = 0, receipt = NULL, holder = NULL, count = m.count - 1
    WHERE m.mailbox = box AND m.due > 0 AND m.receipt = ANY (of_receipts);
    IF FOUND THEN
        PERFORM loopwarden.ring(box, false);
    END IF;
END $$;

-- Takes a process out that closes a mailbox. What it has in hand may still be settled, and lasts for its time; also what
-- a transaction has locked, whose end is not waited for.
CREATE FUNCTION loopwarden.leave(box int, process text) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    UPDATE loopwarden.messages m SET holder = NULL WHERE m.ctid = ANY (array(
        SELECT h.ctid FROM loopwarden.messages h
        WHERE h.mailbox IN (box, -box) AND h.due > 0 AND h.holder = process FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM loopwarden.waiting w WHERE w.mailbox IN (box, -box) AND w.holder = process;
    DELETE FROM loopwarden.members m WHERE m.mailbox = box AND m.holder = process;
END $$;

-- Says what may slow the mailboxes down: how many of their rows are dead, and the transaction whose age keeps them from
-- being removed: which it is, how many have begun since, and what holds it open, as far as the caller may see that.
CREATE FUNCTION loopwarden.ailments(OUT dead_rows bigint, OUT oldest text, OUT begun_since int, OUT held_by text)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT pg_stat_get_dead_tuples('loopwarden.messages'::regclass), held.xid::text, age(held.xid), held.what
    FROM (SELECT) nothing LEFT JOIN (
        SELECT each.xid, each.what FROM (
            SELECT seen.xid, seen.rank, 'the session with pid ' || a.pid
                || coalesce(' of ' || nullif(a.application_name, ''), '') || coalesce(', ' || a.state, '') AS what
            FROM pg_stat_activity a, LATERAL (VALUES (a.backend_xid, 1), (a.backend_xmin, 2)) AS seen(xid, rank)
            WHERE a.pid <> pg_backend_pid() AND a.datname = current_database()
            UNION ALL SELECT p.transaction, 1, 'the prepared transaction ' || p.gid FROM pg_prepared_xacts p
            UNION ALL SELECT seen.xid, 2, 'the replication slot ' || r.slot_name
            FROM pg_replication_slots r, LATERAL (VALUES (r.xmin), (r.catalog_xmin)) AS seen(xid)
        ) each WHERE each.xid IS NOT NULL
        -- Whose own it is comes first: the others only see it, as all do that look at anything meanwhile.
        ORDER BY age(each.xid) DESC, each.rank LIMIT 1
    ) held ON true;
END;
