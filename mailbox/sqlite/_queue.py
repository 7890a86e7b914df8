"""`SqliteQueue`: the messages of one mailbox in a SQLite file, how they are received, and how they are settled."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from loopwarden._arguments import MAX_VISIBILITY
from loopwarden.errors import MailboxClosedError, ReceiptHandleExpiredError, SerializationError
from loopwarden.mailbox._dead_letter import NO_ERROR, DeadLetterNotice, DeadLetterWatch, exhausted_notice
from loopwarden.mailbox._message import Message
from loopwarden.mailbox._unreadable import BODY, HEADERS, most_unread, unread_notice
from loopwarden.mailbox._validation import check_receive, check_token, refuse_letter
from loopwarden.mailbox._waiters import wait_for, wait_visible

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from loopwarden._blocking import Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.sqlite._store import SqliteStore

__all__ = ["RECHECK", "UNREADABLE", "Row", "SqliteQueue"]

#: Seconds after which a waiting receive looks again by itself. The one place where something is polled: the
#: notification of another process may be lost, or there may be no notifier at all.
RECHECK = 1.0

#: What reading headers raises if they are none.
UNREADABLE = (ValueError, TypeError, RecursionError)

B = TypeVar("B")

_COLUMNS = (
    "sequence, id, coalesce(body, (SELECT bodies.body FROM bodies WHERE number = long)), headers, reply_to, sent_at,"
    " count, receipt"
)
_LETTER_COLUMNS = f"{_COLUMNS}, due, error, source, dead_at, reason, dead_count"
#: What can be received, and beside each whether anything else is due.
_VISIBLE = (
    "SELECT EXISTS (SELECT 1 FROM messages WHERE mailbox = ? AND due > 0 AND due <= ?), {}"
    " FROM messages WHERE mailbox = ? AND due = 0 ORDER BY sequence LIMIT ?"
)
_THIS = "mailbox = ? AND due = ? AND sequence = ?"
#: The last delivery of a message. That its lease has not ended is for the clock to say.
_HOLDS = f"{_THIS} AND receipt = ?"
_DELETE = f"DELETE FROM messages WHERE {_HOLDS}"  # noqa: S608  no part of these comes from outside
_CHECK = f"SELECT 1 FROM messages WHERE {_HOLDS}"  # noqa: S608  as above
_IS_THERE = f"SELECT 1 FROM messages WHERE {_THIS}"  # noqa: S608  as above
_PUT_BACK = f"UPDATE messages SET due = ?, holder = NULL, count = count - 1, receipt = receipt + 1 WHERE {_HOLDS}"  # noqa: S608  as above
_EXTEND = f"UPDATE messages SET due = ? WHERE {_HOLDS}"  # noqa: S608  as above
_LEASE = f"UPDATE messages SET due = ?, holder = ?, count = count + 1, receipt = receipt + 1 WHERE {_THIS}"  # noqa: S608  as above
_NACK = f"UPDATE messages SET due = ?, holder = NULL, receipt = receipt + 1, error = coalesce(?, error) WHERE {_THIS}"  # noqa: S608  as above
_BRING_BACK = f"UPDATE OR IGNORE messages SET due = 0, holder = NULL, receipt = receipt + 1 WHERE {_THIS}"  # noqa: S608  as above
_MOVE_BACK = f"UPDATE messages SET due = 0, holder = NULL, sequence = ?, receipt = receipt + 1 WHERE {_THIS}"  # noqa: S608  as above
_DIE = (
    "mailbox = mailbox || ':dead', due = 0, sequence = ?, error = coalesce(?, error), source = mailbox, dead_at = ?,"
    " reason = ?, dead_count = count, count = 0, receipt = 0, holder = NULL"
)
_BURY = f"UPDATE messages SET {_DIE} WHERE {_THIS}"  # noqa: S608  as above


@final
@dataclass(slots=True)  # not frozen: a frozen one takes four times as long to make, and one is made with every receive
class Row:
    """A message as it stands in the file; it is never changed."""

    sequence: int
    id: str
    body: bytes
    raw_headers: bytes
    reply_to: str | None
    sent_at: float
    count: int
    receipt: int
    # Read of letters only.
    due: float = 0
    error: str | None = None
    source: str | None = None
    dead_at: float | None = None
    reason: str | None = None
    dead_count: int | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """What the sender wrote beside the body.

        Raises:
            ValueError: if it cannot be read.
        """
        if self.raw_headers == b"{}":
            return {}
        headers: object = json.loads(self.raw_headers)
        if not isinstance(headers, dict):
            raise TypeError("headers must be a JSON object")
        named = cast("dict[str, object]", headers)
        if not all(isinstance(value, str) for value in named.values()):
            raise ValueError("every header must be a string")
        return cast("dict[str, str]", named)


@final
class SqliteQueue(Generic[B]):
    """One mailbox of a store: its deliveries are settled here (see `Settler`), and waited for (see `Waitable`).

    `receive`, `wait_visible`, `acknowledge_many` and methods called ``settle_…`` take the lock, the others need it.

    Args:
        store: The file.
        name: The mailbox.
        clock: The time; leases are in wall time, because processes share them.
        max_deliveries: As of the mailbox.
        letters: True if its messages are dead letters.
        read: Makes a body of a row, or raises `SerializationError`.
        reply: Sends a reply to a message.
    """

    def __init__(
        self,
        store: SqliteStore,
        name: str,
        clock: Clock,
        *,
        max_deliveries: int | None,
        letters: bool = False,
        read: Callable[[Row], B],
        reply: Callable[[Message[B, Any], Any], str],
    ) -> None:
        self._store = store
        self._holders = store.holders
        self._name = name
        self._step = store.transaction(name)
        self._unflushed_step = store.transaction(name, flush=False)
        self._letters = letters
        self._visible_rows = _VISIBLE.format(_LETTER_COLUMNS if letters else _COLUMNS)
        with store.lock:
            #: Who waits for something to receive.
            self.waiters = store.waiters(name)
            self._room = store.waiters(f"{name}:room")
        self._clock = clock
        self._wall = clock.wall
        self.max_deliveries = max_deliveries
        self._read = read
        self._reply = reply
        #: Tells of messages that become dead letters.
        self.watch = DeadLetterWatch(name, clock)

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self._name

    @property
    def place(self) -> tuple[Path, str]:
        """Which mailbox of which file it is."""
        return self._store.path.resolve(), self._name

    # Receiving.

    def receive(
        self, max_messages: int, visibility_timeout: float, wait_time_seconds: float, token: Token | None
    ) -> list[Message[B, Any]]:
        """Do what `Mailbox.receive` says."""
        check_receive(self._name, max_messages, visibility_timeout, wait_time_seconds)
        check_token(self._name, token)

        def look() -> list[Message[B, Any]] | None:
            self._check_open()
            if token is not None and token.stopped:
                return []
            if self._holders.is_look_due():
                self._store.end_leases_of_the_dead(self._name)
            return self.take(max_messages, visibility_timeout, token)

        return wait_for(self, look, self._clock, wait_time_seconds, token, self.watch.tell) or []

    def wait_visible(self, timeout: float, token: Token | None) -> bool:
        """Do what `SupportsWaitVisible` says."""
        return wait_visible(self, self._clock, timeout, token)

    @property
    def lock(self) -> Lock:
        """The store's."""
        return self._store.lock

    def poll(self) -> bool:
        """Say whether something is visible or due; see `Waitable.poll`."""
        self._check_open()
        self._store.notifier.listen()  # before the look, so that it hears of what comes after
        if self._holders.is_look_due():
            self._store.end_leases_of_the_dead(self._name)
        with self._store.connection(self._name) as cursor:
            [due] = cursor.execute("SELECT min(due) FROM messages WHERE mailbox = ?", (self._name,)).fetchone()
        return due is not None and bool(due <= self._wall())

    def until_due(self) -> float:
        """Return when to look again; see `Waitable.until_due`."""
        # Under the lock since the look, so a notification from now on finds the gate that is parked next.
        self._store.notifier.listen()
        due = self.next_due()
        again = min(RECHECK, self._holders.until_look())
        return again if due is None else min(again, max(0.0, due - self._wall()))

    def pass_on(self) -> None:
        """Wake the next one: there may be more, or something due sooner than it knows; see `Waitable.pass_on`."""
        self.waiters.wake_one()

    def _check_open(self) -> None:
        if self._store.closed:
            raise MailboxClosedError(self._name)

    def take(self, limit: int, visibility_timeout: float, token: Token | None) -> list[Message[B, Any]] | None:
        """Lease up to ``limit`` visible messages; one that was delivered before comes alone.

        Returns:
            None if too many could not be read, so that the receive is to end with nothing.
        """
        most = most_unread(token)
        with self._unflushed_step as cursor, cursor.connection:
            now = self._wall()
            due = now + visibility_timeout
            while (unread := self._unread()) < most and (found := self._visible(cursor, limit, now)):
                messages: list[Message[B, Any]] = []
                leased: list[int] = []
                is_first = True
                for _, *columns in found:
                    row = Row(*columns)
                    if row.count and not is_first:
                        break
                    message = self._deliver(cursor, row, token)
                    if message is not None:
                        message.due = due
                        messages.append(message)
                        leased.append(row.sequence)
                    if row.count:
                        break
                    is_first = False
                if messages:
                    holder = self._holders.settled
                    if holder is None:
                        holder = self._holders.number(cursor, now)
                    cursor.executemany(_LEASE, [(due, holder, self._name, 0, sequence) for sequence in leased])
                    return messages
        return [] if unread < most else None

    def _unread(self) -> int:
        """Return how many messages this step has given up because they cannot be read."""
        return sum(notice.unread for _, notice in self._store.buried)

    def next_due(self) -> float | None:
        """Return when the next lease or delay ends, in wall time."""
        with self._store.connection(self._name) as cursor:
            [due] = cursor.execute(
                "SELECT min(due) FROM messages WHERE mailbox = ? AND due > 0", (self._name,)
            ).fetchone()
            latest = self._wall() + MAX_VISIBILITY
            if due is not None and due > latest:
                self.cut(cursor)
                due = latest
            return cast("float | None", due)

    def cut(self, cursor: sqlite3.Cursor) -> None:
        """Bring nearer what is due later than anything can be: then the clock was set back, perhaps by years."""
        latest = self._wall() + MAX_VISIBILITY
        cursor.execute("UPDATE messages SET due = ? WHERE mailbox = ? AND due > ?", (latest, self._name, latest))

    def _delete(self, cursor: sqlite3.Cursor, message: Message[B, Any], now: float) -> bool:
        """Delete a message whose delivery is not over; say whether that is so."""
        if not _is_good(message, now):
            return False
        if cursor.execute(_DELETE, self._key(message)).rowcount:
            return True
        self._follow(cursor, message)
        return _is_good(message, now) and cursor.execute(_DELETE, self._key(message)).rowcount > 0

    def _follow(self, cursor: sqlite3.Cursor, message: Message[B, Any]) -> None:
        """Learn when a lease ends that is not found by its key: it may have been cut."""
        found = cursor.execute(
            "SELECT due FROM messages WHERE mailbox = ? AND due > 0 AND sequence = ? AND receipt = ?",
            (self._name, cast("Row", message.record).sequence, message.receipt),
        ).fetchone()
        if found is not None:
            message.due = float(found[0])

    def bring_back(self, cursor: sqlite3.Cursor, now: float) -> tuple[list[str], list[str]]:
        """End what is due; return the ids of what became visible, and of what became a dead letter."""
        found: list[tuple[float, int, str, int, str | None]] = cursor.execute(
            "SELECT due, sequence, id, count, error FROM messages WHERE mailbox = ? AND due > 0 AND due <= ?",
            (self._name, now),
        ).fetchall()
        exhausted = [each for each in found if self._is_exhausted(each[3])]
        returned = [each for each in found if not self._is_exhausted(each[3])]
        for due, sequence, message_id, count, error in exhausted:
            self.dead_letter(cursor, due, sequence, exhausted_notice(self._name, message_id, count, error or NO_ERROR))
        if returned:
            keys = [(self._name, due, sequence) for due, sequence, *_ in returned]
            if cursor.executemany(_BRING_BACK, keys).rowcount < len(keys):
                self._move_back(cursor, keys)
        return [each[2] for each in returned], [each[2] for each in exhausted]

    def _move_back(self, cursor: sqlite3.Cursor, keys: list[tuple[str, float, int]]) -> None:
        """Give those of ``keys`` a new place whose own is taken, as in a file that something else has written to."""
        for key in keys:
            if cursor.execute(_IS_THERE, key).fetchone() is not None:
                cursor.execute(_MOVE_BACK, (self._store.sequences.allocate(cursor, 1), *key))

    def dead_letter(self, cursor: sqlite3.Cursor, due: float, sequence: int, notice: DeadLetterNotice) -> None:
        """Make a message a dead letter: it leaves one mailbox and enters the other in one step."""
        place = self._store.sequences.allocate(cursor, 1)
        error, reason = _writable(notice.error), _writable(notice.reason)
        cursor.execute(_BURY, (place, error, self._wall(), reason, self._name, due, sequence))
        self._room.wake_all()  # sends that wait for room; which of them fit, they see themselves
        self._store.buried.append((self.watch, notice))
        self._store.notify_on_commit(f"{self._name}:dead")

    def rows(self, cursor: sqlite3.Cursor, where: str, *arguments: object) -> list[Row]:
        """Return messages of this mailbox, oldest first."""
        found = cursor.execute(
            f"SELECT {_LETTER_COLUMNS} FROM messages WHERE mailbox = ? AND {where}",  # noqa: S608  the conditions are ours
            (self._name, *arguments),
        )
        return [Row(*each) for each in found]

    # Settling.

    def acknowledge_many(self, messages: Iterable[Message[B, Any]]) -> list[Message[B, Any]]:
        """Acknowledge all in one step; return those whose delivery was over."""
        held: list[Message[B, Any]] = []
        refused: list[Message[B, Any]] = []
        everything = list(messages)  # before the lock: a generator is other people's code
        with self._store.lock:
            with self._step as cursor, cursor.connection:
                now = self._wall()
                for message in everything:
                    is_open = self._is_here(message) and not message.is_finalized
                    is_held = is_open and self._delete(cursor, message, now)
                    (held if is_held else refused).append(message)
            self._room.wake_all()
        for message in held:
            message.is_finalized = True
        return refused

    def settle_acknowledge(self, message: Message[B, Any]) -> None:
        """Do what `Message.acknowledge` says."""
        with self._store.lock:
            with self._step as cursor, cursor.connection:
                # As `_check_holds`, without its statement: this is on the path of every message.
                if not self._delete(cursor, message, self._wall()):
                    raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)
            self._room.wake_all()

    def settle_put_back(self, message: Message[B, Any], visibility_timeout: float) -> None:
        """Do what `Message.put_back` says."""
        with self._store.lock, self._unflushed_step as cursor, cursor.connection:
            # Even if fenced: it has not begun, and no other worker has it.
            now = self._check_holds(cursor, message, even_if_fenced=True)
            until = now + visibility_timeout if visibility_timeout else 0
            cursor.execute(_PUT_BACK, (until, *self._key(message)))
            self._store.notify_on_commit(self._name)

    def settle_extend(self, message: Message[B, Any], timeout: float) -> None:
        """Do what `Message.extend_visibility` says."""
        with self._store.lock:
            with self._unflushed_step as cursor, cursor.connection:
                now = self._check_holds(cursor, message)
                cursor.execute(_EXTEND, (now + timeout, *self._key(message)))
            # Under the lock: it is part of the key, by which another thread may be about to acknowledge.
            message.due = now + timeout

    def extend_many(self, messages: Iterable[Message[B, Any]], timeout: float) -> list[Message[B, Any]]:
        """Do what `SupportsExtendMany.extend_many` says, in one transaction."""
        over: list[Message[B, Any]] = []
        extended: list[Message[B, Any]] = []
        everything = list(messages)  # before the lock: a generator is other people's code
        with self._store.lock:
            with self._unflushed_step as cursor, cursor.connection:
                now = self._wall()
                for message in everything:
                    if not self._is_here(message) or message.is_finalized:
                        over.append(message)
                    elif message.due >= now + timeout and _is_good(message, now):
                        continue
                    elif self._extend(cursor, message, now, now + timeout):
                        extended.append(message)
                    else:
                        over.append(message)
            for message in extended:  # under the lock, as above
                message.due = now + timeout
        return over

    def _extend(self, cursor: sqlite3.Cursor, message: Message[B, Any], now: float, due: float) -> bool:
        """Move the end of a lease; false if it is over."""
        if not _is_good(message, now):
            return False
        if cursor.execute(_EXTEND, (due, *self._key(message))).rowcount:
            return True
        self._follow(cursor, message)
        return _is_good(message, now) and cursor.execute(_EXTEND, (due, *self._key(message))).rowcount > 0

    def settle_nack(self, message: Message[B, Any], visibility_timeout: float, error: str | None) -> None:
        """Do what `Message.nack` says."""
        with self._store.lock, self._step as cursor, cursor.connection:
            now = self._check_holds(cursor, message)
            due, sequence = message.due, cast("Row", message.record).sequence
            if self._is_exhausted(message.delivery_count):
                self.dead_letter(
                    cursor, due, sequence, exhausted_notice(self._name, message.id, message.delivery_count, error)
                )
            else:
                until = now + visibility_timeout if visibility_timeout else 0
                cursor.execute(_NACK, (until, _writable(error), self._name, due, sequence))
                self._store.notify_on_commit(self._name)
        self.watch.tell()

    def settle_dead_letter(self, message: Message[B, Any], reason: str, error: str | None) -> None:
        """Do what `Message.dead_letter` says."""
        if self._letters:
            raise refuse_letter(self._name, message.id)
        with self._store.lock, self._step as cursor, cursor.connection:
            self._check_holds(cursor, message)
            notice = DeadLetterNotice(self._name, message.id, reason, error, message.delivery_count)
            self.dead_letter(cursor, message.due, cast("Row", message.record).sequence, notice)
        self.watch.tell()

    def settle_reply(self, message: Message[B, Any], body: Any) -> str:
        """Do what `Message.reply` says."""
        with self._store.lock, self._store.connection(self._name) as cursor:
            self._check_holds(cursor, message)
        return self._reply(message, body)

    def _check_holds(self, cursor: sqlite3.Cursor, message: Message[B, Any], *, even_if_fenced: bool = False) -> float:
        """Refuse a delivery that is over; return the time."""
        # The time and the fence are looked at when the file is ours: waiting for that may have taken a while.
        now = self._wall()
        if not self._is_held(cursor, message, now, even_if_fenced):
            self._follow(cursor, message)
            if not self._is_held(cursor, message, now, even_if_fenced):
                raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)
        return now

    def _is_held(self, cursor: sqlite3.Cursor, message: Message[B, Any], now: float, even_if_fenced: bool) -> bool:
        is_good = _is_good(message, now, even_if_fenced=even_if_fenced)
        return is_good and cursor.execute(_CHECK, self._key(message)).fetchone() is not None

    def _is_here(self, message: Message[B, Any]) -> bool:
        """Say whether it was received from this mailbox, by whichever object: elsewhere its numbers mean nothing."""
        settler = message.settler
        return settler is self or (isinstance(settler, SqliteQueue) and settler.place == self.place)

    def _key(self, message: Message[B, Any]) -> tuple[str, float, int, int]:
        return self._name, message.due, cast("Row", message.record).sequence, message.receipt

    def _is_exhausted(self, count: int) -> bool:
        return self.max_deliveries is not None and count >= self.max_deliveries

    def _visible(self, cursor: sqlite3.Cursor, limit: int, now: float) -> list[Any]:
        """Return the rows of the first in line, when what is due has come back."""
        found = cursor.execute(self._visible_rows, (self._name, now, self._name, limit)).fetchall()
        if (not found or found[0][0]) and self.bring_back(cursor, now)[0]:
            found = cursor.execute(self._visible_rows, (self._name, now, self._name, limit)).fetchall()
        return found

    def _deliver(self, cursor: sqlite3.Cursor, row: Row, token: Token | None) -> Message[B, Any] | None:
        """Make a message of a row; a row that cannot be delivered is a dead letter instead."""
        if row.count and self._is_exhausted(row.count):
            self.dead_letter(cursor, 0, row.sequence, exhausted_notice(self._name, row.id, row.count, None))
            return None
        try:
            body = self._read(row)
        except SerializationError as error:
            self._give_up_unread(cursor, row, BODY, error)
            return None
        except UNREADABLE as error:
            self._give_up_unread(cursor, row, HEADERS, error)
            return None
        record = row if row.source is None else _readable(row)
        return Message(self, record, body, row.count + 1, row.receipt + 1, token)

    def _give_up_unread(self, cursor: sqlite3.Cursor, row: Row, reason: str, error: Exception) -> None:
        self.dead_letter(cursor, 0, row.sequence, unread_notice(self._name, row.id, reason, error, row.count))


def _is_good(message: Message[Any, Any], now: float, *, even_if_fenced: bool = False) -> bool:
    """Say whether neither its worker was fenced nor its lease has ended."""
    return message.due > now and (even_if_fenced or not message.is_fenced)


def _readable(row: Row) -> Row:
    """Return a dead letter's row, without its headers if they cannot be read; those of a message are read before."""
    try:
        _ = row.headers
    except UNREADABLE:
        return replace(row, raw_headers=b"{}")
    return row


def _writable(text: str | None) -> str | None:
    """Return text that SQLite can take: what came from a file name or a pipe may hold half a surrogate."""
    return None if text is None else text.encode(errors="backslashreplace").decode()
