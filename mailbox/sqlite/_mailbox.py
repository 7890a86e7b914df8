"""`SqliteMailbox`: durable and embedded, for threads and processes of one machine."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import MailboxClosedError, MailboxFullError, SerializationError
from loopwarden.mailbox._codec import Codec
from loopwarden.mailbox._contract import Capabilities, MailboxStats, Reaped
from loopwarden.mailbox._message import reply_target
from loopwarden.mailbox._validation import (
    DEDUP_WINDOW,
    check_bodies,
    check_dedup_id,
    check_headers,
    check_limits,
    check_messages,
    check_name,
    check_new_name,
    check_reply_to,
    check_seconds,
)
from loopwarden.mailbox.sqlite._dead_letters import SqliteDeadLetters
from loopwarden.mailbox.sqlite._queue import RECHECK, Row, SqliteQueue
from loopwarden.mailbox.sqlite._store import SqliteStore

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._dead_letter import DeadLetterNotice
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token

__all__ = ["SqliteMailbox"]

T = TypeVar("T")
R = TypeVar("R")

_CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    ordered=True,
    exact_count=True,
    uncounted_return=True,
    delay=True,
    dedup=True,
    bounded=True,
    fenced_by_store=True,
)

#: Bytes beyond which a body is kept apart. A row longer than a quarter of a page does not fit into one in any case.
LONG = 800

#: Bytes that a body may have as JSON: a row of SQLite has room for a billion, with all that is in it.
MAX_BODY_BYTES = 990_000_000

#: Most messages; each value that is not given saves a tenth of the time.
_INSERT = "INSERT INTO messages (mailbox, due, sequence, id, body, headers, sent_at) VALUES (?, 0, ?, ?, ?, ?, ?)"
_INSERT_ANY = (
    "INSERT INTO messages (mailbox, due, sequence, id, body, long, headers, reply_to, sent_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
#: Does nothing if the place is not good any more.
_INSERT_ONE = (
    "INSERT INTO messages (mailbox, due, id, body, headers, reply_to, sent_at, sequence)"
    " SELECT ?, 0, ?, ?, ?, ?, ?, ? FROM line WHERE last = ? AND owner = ?"
)

_STATS = (
    "SELECT count(*) FILTER (WHERE due <= :now), count(*) FILTER (WHERE due > :now AND holder IS NOT NULL),"
    " count(*) FILTER (WHERE due > :now AND holder IS NULL), min(sent_at) FILTER (WHERE due <= :now),"
    " (SELECT count(*) FROM messages WHERE mailbox = :dead) FROM messages WHERE mailbox = :name"
)


@final
class SqliteMailbox(Generic[T, R]):
    """A `Mailbox` in a SQLite file, which any number of threads and processes of one machine may share.

    What was sent survives ``kill -9`` at any instant, and a power cut with ``synchronous="FULL"``. A receive that waits
    is woken by a sender in any process. Leases are in wall time.

    Args:
        path: The file; it is made if it is not there. Not on a network file system.
        name: The mailbox in the file.
        body: The type of the bodies.
        reply: The type of the replies.
        max_deliveries: How often a message is delivered before it is a dead letter; None for ever.
        max_size: How many messages it holds at most, if there is a limit.
        synchronous: ``"NORMAL"`` or ``"FULL"``.
        clock: The time it lives by.
    """

    def __init__(
        self,
        path: str | Path,
        name: str = "default",
        *,
        body: Any = Any,
        reply: Any = Any,
        max_deliveries: int | None = 5,
        max_size: int | None = None,
        synchronous: str = "NORMAL",
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        self._name = check_new_name(name)
        check_limits(name, max_deliveries, max_size)
        self._codec: Codec[T] = Codec(name, body)
        self._reply_codec: Codec[R] = Codec(name, reply, "reply")
        self._reply_type = reply
        self._max_size = max_size
        self._synchronous = synchronous
        self._clock = clock
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._store = SqliteStore(path, synchronous=synchronous, clock=clock)
        self._queue: SqliteQueue[T] = SqliteQueue(
            self._store, name, clock, max_deliveries=max_deliveries, read=self._read, reply=self._send_reply
        )
        self._dead: SqliteDeadLetters[T] = SqliteDeadLetters(self._store, name, self._codec, clock)
        self._step = self._store.transaction(name)
        self._single = self._store.transaction(name, single=True)
        try:
            with self._store.lock, self._store.connection(name) as cursor:
                self._room = self._store.waiters(f"{name}:room")
                cursor.execute("INSERT OR IGNORE INTO mailboxes (name) VALUES (?)", (name,))
                self._queue.cut(cursor)
        except BaseException:
            self._store.close()
            raise

    @property
    def name(self) -> str:
        """What it is called in the file."""
        return self._name

    @property
    def closed(self) -> bool:
        """True from the first `close` on."""
        return self._store.closed

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return _CAPABILITIES

    @property
    def dead_letters(self) -> SqliteDeadLetters[T]:
        """The letters that this mailbox has given up, in the same file."""
        return self._dead

    # Sending.

    def send(
        self,
        body: T,
        *,
        reply_to: Mailbox[R, Any] | str | None = None,
        delay: float = 0,
        dedup_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 0,
    ) -> str:
        """Send one message; see `Mailbox.send`."""
        check_seconds(self._name, "delay", delay)
        check_seconds(self._name, "timeout", timeout)
        check_dedup_id(self._name, dedup_id)
        named = check_reply_to(self._name, reply_to)
        target = None if named is None else check_name(named if isinstance(named, str) else named.name)
        raw = self._encode(body)
        if delay == 0 and dedup_id is None and self._max_size is None and len(raw) <= LONG:
            message_id = self._put_one(raw, headers, target)
            if message_id is not None:
                return message_id
        return self._put([raw], headers, timeout, target, delay, dedup_id)[0]

    def send_many(
        self, bodies: Iterable[T], *, headers: Mapping[str, str] | None = None, timeout: float = 0
    ) -> list[str]:
        """Send all or none; see `Mailbox.send_many`."""
        check_bodies(self._name, bodies)
        check_seconds(self._name, "timeout", timeout)
        return self._put([self._encode(body) for body in bodies], headers, timeout)

    def _encode(self, body: T) -> bytes:
        raw = self._codec.encode(body)
        if len(raw) > MAX_BODY_BYTES:
            size = f"as JSON it has {len(raw)} bytes, and a file takes {MAX_BODY_BYTES}"
            raise SerializationError(self._name, f"the body is too long: {size}; send its place")
        return raw

    def _put_one(self, body: bytes, headers: Mapping[str, str] | None, reply_to: str | None) -> str | None:
        """Put one message in line by one statement; return None if another store was the last to set places aside."""
        raw = b"{}" if headers is None else json.dumps(check_headers(self._name, headers)).encode()
        message_id = f"{self._prefix}-{next(self._numbers)}"
        with self._store.lock:
            if self._store.closed:
                raise MailboxClosedError(self._name)
            place = self._store.sequences.next_reserved()
            if place is None:
                return None
            with self._single as cursor:
                row = (self._name, message_id, body, raw, reply_to, self._clock.wall(), *place)
                if not cursor.execute(_INSERT_ONE, row).rowcount:
                    return None
                self._store.notify_on_commit(self._name)
                return message_id

    def _put(  # noqa: PLR0917  two callers, both above
        self,
        bodies: list[bytes],
        headers: Mapping[str, str] | None,
        timeout: float,
        reply_to: str | None = None,
        delay: float = 0,
        dedup_id: str | None = None,
    ) -> list[str]:
        raw = b"{}" if headers is None else json.dumps(check_headers(self._name, headers)).encode()
        ids = [f"{self._prefix}-{next(self._numbers)}" for _ in bodies]
        deadline = self._clock.monotonic() + timeout
        while True:
            with self._store.lock:
                if self._store.closed:
                    raise MailboxClosedError(self._name)
                with self._step as cursor, cursor.connection:
                    now = self._clock.wall()
                    sent_before = self._sent_before(cursor, dedup_id, now)
                    if sent_before is not None:
                        return [sent_before]
                    if self._has_room(cursor, len(bodies)):
                        first = self._store.sequences.allocate(cursor, len(bodies))
                        due = now + delay if delay else 0
                        rows: list[tuple[object, ...]] = []
                        for sequence, (message_id, body) in enumerate(zip(ids, bodies, strict=True), first):
                            if due or reply_to or len(body) > LONG:
                                where = _place_body(cursor, sequence, body)
                                row = (self._name, due, sequence, message_id, *where, raw, reply_to, now)
                                cursor.execute(_INSERT_ANY, row)
                            else:
                                rows.append((self._name, sequence, message_id, body, raw, now))
                        cursor.executemany(_INSERT, rows)
                        if dedup_id is not None:
                            cursor.execute(
                                "INSERT INTO dedup VALUES (?, ?, ?, ?)",
                                (self._name, dedup_id, ids[0], now + DEDUP_WINDOW),
                            )
                        self._store.notify_on_commit(self._name)
                        return ids
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise MailboxFullError(self._name, self._max_size or 0)
                gate = self._clock.blocking.gate()
                self._room.park(gate)
            try:
                self._clock.wait(gate, min(left, RECHECK))  # woken by what makes room here, by close, or by time
            finally:
                with self._store.lock:
                    self._room.leave(gate)

    def _sent_before(self, cursor: sqlite3.Cursor, dedup_id: str | None, now: float) -> str | None:
        if dedup_id is None:
            return None
        cursor.execute("DELETE FROM dedup WHERE until <= ?", (now,))
        known = cursor.execute(
            "SELECT message_id FROM dedup WHERE mailbox = ? AND dedup_id = ?", (self._name, dedup_id)
        ).fetchone()
        return None if known is None else str(known[0])

    def _has_room(self, cursor: sqlite3.Cursor, more: int) -> bool:
        if self._max_size is None:
            return True
        # Counts no further than it must.
        [size] = cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM messages WHERE mailbox = ? LIMIT ?)", (self._name, self._max_size)
        ).fetchone()
        return bool(size + more <= self._max_size)

    # Receiving.

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> list[Message[T, R]]:
        """Return what is there; see `Mailbox.receive`."""
        return self._queue.receive(max_messages, visibility_timeout, wait_time_seconds, token)

    def acknowledge_many(self, messages: Iterable[Message[T, R]]) -> list[Message[T, R]]:
        """Acknowledge all in one transaction; see `Mailbox.acknowledge_many`."""
        return self._queue.acknowledge_many(check_messages(self._name, messages))

    def extend_many(self, messages: Iterable[Message[Any, Any]], timeout: float) -> list[Message[Any, Any]]:
        """Renew the leases of many messages in one transaction; see `SupportsExtendMany`."""
        check_seconds(self._name, "timeout", timeout)
        return self._queue.extend_many(check_messages(self._name, messages), timeout)

    def wait_visible(self, timeout: float, token: Token | None = None) -> bool:
        """Wait until there is something to receive; see `SupportsWaitVisible`."""
        return self._queue.wait_visible(timeout, token)

    def waited_until(self) -> float:
        """Return up to when a call waited for another process; see `SupportsWaitedUntil`."""
        return self._store.waited_until()

    def reap(self) -> Reaped:
        """Bring back what is due; see `Mailbox.reap`."""
        with self._store.lock:
            if self._store.holders.is_look_due():
                self._store.end_leases_of_the_dead(self._name)
            with self._step as cursor, cursor.connection:
                returned, dead = self._queue.bring_back(cursor, self._clock.wall())
                if returned:
                    self._store.notify_on_commit(self._name)
            due = self._queue.next_due()
        self._queue.watch.tell()
        return Reaped(tuple(returned), tuple(dead), None if due is None else due - self._clock.wall())

    # The rest.

    def purge(self) -> int:
        """Delete everything; see `Mailbox.purge`."""
        with self._store.lock, self._single as cursor:
            deleted = cursor.execute("DELETE FROM messages WHERE mailbox = ?", (self._name,)).rowcount
            self._room.wake_all()
            return deleted

    def approximate_count(self) -> int:
        """Return exactly how many messages there are."""
        with self._store.lock, self._store.connection(self._name) as cursor:
            [count] = cursor.execute("SELECT count(*) FROM messages WHERE mailbox = ?", (self._name,)).fetchone()
            return int(count)

    def watch_dead_letters(self, listener: Callable[[DeadLetterNotice], bool]) -> Callable[[], None]:
        """Have a listener told of dead letters; see `SupportsDeadLetterWatch`."""
        return self._queue.watch.watch(listener)

    @property
    def max_deliveries(self) -> int | None:
        """How often a message is delivered before it is a dead letter; None for ever."""
        return self._queue.max_deliveries

    @property
    def max_size(self) -> int | None:
        """How many messages it holds at most; None for any number."""
        return self._max_size

    def stats(self) -> MailboxStats:
        """Count what is in it; see `SupportsStats`."""
        with self._store.lock, self._store.connection(self._name) as cursor:
            now = self._clock.wall()
            ready, leased, delayed, sent_at, dead = cursor.execute(
                _STATS, {"name": self._name, "dead": self._dead.name, "now": now}
            ).fetchone()
        age = None if sent_at is None else max(0.0, now - sent_at)
        return MailboxStats(ready=ready, leased=leased, delayed=delayed, dead=dead, oldest_age=age)

    def close(self) -> None:
        """Refuse from now on, and wake who waits; see `Mailbox.close`."""
        self._store.close()
        self._queue.watch.tell()
        self._queue.watch.summarize()

    def _read(self, row: Row) -> T:
        if row.raw_headers != b"{}":
            _ = row.headers  # a message whose headers cannot be read is a dead letter too
        return self._codec.decode(row.body)

    def _send_reply(self, message: Message[T, R], body: R) -> str:
        target = reply_target(self._name, message, self._find)
        try:
            return target.send(self._reply_codec.check(body), headers={"in-reply-to": message.id})
        finally:
            target.close()

    def _find(self, name: str) -> SqliteMailbox[R, Any] | None:
        with self._store.lock, self._store.connection(self._name) as cursor:
            if cursor.execute("SELECT 1 FROM mailboxes WHERE name = ?", (name,)).fetchone() is None:
                return None
        return SqliteMailbox(
            self._store.path, name, body=self._reply_type, synchronous=self._synchronous, clock=self._clock
        )

    def __repr__(self) -> str:
        return f"<SqliteMailbox {self._name!r} in {str(self._store.path)!r}{', closed' if self.closed else ''}>"


def _place_body(cursor: sqlite3.Cursor, sequence: int, body: bytes) -> tuple[bytes, None] | tuple[None, int]:
    """Return what the columns `body` and `long` are to hold."""
    if len(body) <= LONG:
        return body, None
    cursor.execute("INSERT INTO bodies VALUES (?, ?)", (sequence, body))
    return None, sequence
