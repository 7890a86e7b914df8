"""`SqliteQueue`: the messages of one mailbox in a SQLite file, and how their deliveries are settled."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from loopwarden.errors import ReceiptHandleExpiredError, SerializationError
from loopwarden.mailbox._message import Message

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from loopwarden.clock import Clock
    from loopwarden.mailbox._sqlite_store import SqliteStore
    from loopwarden.mailbox._token import Token

__all__ = ["UNREADABLE", "Row", "SqliteQueue"]

#: What reading headers raises if they are none.
UNREADABLE = (ValueError, TypeError, RecursionError)

B = TypeVar("B")

_COLUMNS = (
    "due, sequence, id, coalesce(body, (SELECT bodies.body FROM bodies WHERE number = long)), headers, reply_to, sent_at,"
    " count, receipt, error, source, dead_at, reason, dead_count"
)
#: What can be received, and beside each whether anything else is due.
_VISIBLE = (
    f"SELECT {_COLUMNS}, EXISTS (SELECT 1 FROM messages WHERE mailbox = ?1 AND due > 0 AND due <= ?2)"  # noqa: S608  no part of these comes from outside
    " FROM messages WHERE mailbox = ?1 AND due = 0 ORDER BY sequence LIMIT ?3"
)
#: From the first in line to the last that is delivered.
_LEASE = (
    "UPDATE messages SET due = ?, count = count + 1, receipt = receipt + 1"
    " WHERE mailbox = ? AND due = 0 AND sequence <= ?"
)
_THIS = "mailbox = ? AND due = ? AND sequence = ?"
#: A delivery that is the message's last one; that its lease has not ended must be seen by the clock.
_HOLDS = f"{_THIS} AND receipt = ?"
_DELETE = f"DELETE FROM messages WHERE {_HOLDS}"  # noqa: S608
_PUT_BACK = f"UPDATE messages SET due = 0, count = count - 1, receipt = receipt + 1 WHERE {_HOLDS}"  # noqa: S608
_EXTEND = f"UPDATE messages SET due = ? WHERE {_HOLDS}"  # noqa: S608
_CHECK = f"SELECT 1 FROM messages WHERE {_HOLDS}"  # noqa: S608
_NACK = f"UPDATE messages SET due = ?, receipt = receipt + 1, error = coalesce(?, error) WHERE {_THIS}"  # noqa: S608
_BRING_BACK = f"UPDATE messages SET due = 0, receipt = receipt + 1 WHERE {_THIS}"  # noqa: S608
_BURY = (
    "UPDATE messages SET mailbox = mailbox || ':dead', due = 0, sequence = ?, error = coalesce(?, error),"
    f" source = mailbox, dead_at = ?, reason = ?, dead_count = count, count = 0, receipt = 0 WHERE {_THIS}"  # noqa: S608
)


@final
@dataclass(slots=True)  # not frozen: a frozen one takes four times as long to make, and one is made with every receive
class Row:
    """A message as it stands in the file; nobody changes it."""

    due: float
    sequence: int
    id: str
    body: bytes
    raw_headers: bytes
    reply_to: str | None
    sent_at: float
    count: int
    receipt: int
    error: str | None
    source: str | None
    dead_at: float | None
    reason: str | None
    dead_count: int | None

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
    """One mailbox of a store (see `Courier`): methods called ``settle_…`` take the lock, the others need it.

    Args:
        store: The file.
        name: The mailbox.
        clock: The time; leases are in wall time, because processes share them.
        max_deliveries: As of the mailbox.
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
        read: Callable[[Row], B],
        reply: Callable[[Message[B, Any], Any], str],
    ) -> None:
        self._store = store
        self._name = name
        self._room = f"{name}:room"
        self._wall = clock.wall
        self._max_deliveries = max_deliveries
        self._read = read
        self._reply = reply

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self._name

    @property
    def place(self) -> tuple[Path, str]:
        """Which mailbox of which file it is."""
        return self._store.path.resolve(), self._name

    def take(self, limit: int, visibility_timeout: float, token: Token | None) -> list[Message[B, Any]]:
        """Lease up to ``limit`` visible messages; one that was delivered before comes alone."""
        with self._store.transaction(self._name, flush=False) as database:
            now = self._wall()
            due = now + visibility_timeout
            while rows := self._visible(database, limit, now):
                first_suspect = next((index for index, row in enumerate(rows) if row.count), len(rows))
                chosen = rows[: first_suspect or 1]
                messages = [message for row in chosen if (message := self._deliver(database, row, due, token))]
                if messages:
                    # Those of the chosen that could not be delivered are no longer here.
                    database.execute(_LEASE, (due, self._name, chosen[-1].sequence))
                    return messages
        return []

    def next_due(self) -> float | None:
        """Return when the next lease or delay ends, in wall time."""
        with self._store.connection(self._name) as database:
            [due] = database.execute(
                "SELECT min(due) FROM messages WHERE mailbox = ? AND due > 0", (self._name,)
            ).fetchone()
            return cast("float | None", due)

    def bring_back(self, database: sqlite3.Connection, now: float) -> tuple[list[str], list[str]]:
        """End what is due; return the ids of what became visible, and of what became a dead letter."""
        found: list[tuple[float, int, str, int]] = database.execute(
            "SELECT due, sequence, id, count FROM messages WHERE mailbox = ? AND due > 0 AND due <= ?",
            (self._name, now),
        ).fetchall()
        exhausted = [each for each in found if self._is_exhausted(each[3])]
        returned = [each for each in found if not self._is_exhausted(each[3])]
        for due, sequence, _, count in exhausted:
            self.bury(database, due, sequence, f"it was delivered {count} times")
        if returned:
            database.executemany(_BRING_BACK, [(self._name, due, sequence) for due, sequence, _, _ in returned])
        return [each[2] for each in returned], [each[2] for each in exhausted]

    def bury(  # noqa: PLR0917  what a row is found by comes first
        self, database: sqlite3.Connection, due: float, sequence: int, reason: str, error: str | None = None
    ) -> None:
        """Make a message a dead letter: it leaves one mailbox and enters the other in one step."""
        place = self._store.line.give(database, 1)
        database.execute(
            _BURY, (place, _writable(error), self._wall(), _writable(reason), self._name, due, sequence)
        )
        self._made_room()
        self._store.announce(f"{self._name}:dead")

    def rows(self, database: sqlite3.Connection, where: str, *arguments: object) -> list[Row]:
        """Return messages of this mailbox, oldest first."""
        found = database.execute(
            f"SELECT {_COLUMNS} FROM messages WHERE mailbox = ? AND {where}",  # noqa: S608  no part comes from outside
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
            with self._store.transaction(self._name) as database:
                now = self._wall()
                cursor = database.cursor()
                for message in everything:
                    is_open = self._is_here(message) and not message.is_finalized and _is_good(message, now)
                    is_held = is_open and cursor.execute(_DELETE, self._key(message)).rowcount
                    (held if is_held else refused).append(message)
            self._made_room()
        for message in held:
            message.is_finalized = True
        return refused

    def settle_acknowledge(self, message: Message[B, Any]) -> None:
        """Do what `Message.acknowledge` says."""
        self._change(message, _DELETE)

    def settle_put_back(self, message: Message[B, Any]) -> None:
        """Do what `Message.put_back` says."""
        self._change(message, _PUT_BACK)

    def settle_extend(self, message: Message[B, Any], timeout: float) -> None:
        """Do what `Message.extend_visibility` says."""
        due = self._wall() + timeout
        self._change(message, _EXTEND, due)
        message.due = due

    def settle_nack(self, message: Message[B, Any], visibility_timeout: float, error: str | None) -> None:
        """Do what `Message.nack` says."""
        with self._store.lock, self._store.transaction(self._name) as database:
            now = self._check_holds(database, message)
            due, sequence = message.due, cast("Row", message.record).sequence
            if self._is_exhausted(message.delivery_count):
                self.bury(database, due, sequence, f"it was delivered {message.delivery_count} times", error)
            else:
                until = now + visibility_timeout if visibility_timeout else 0
                database.execute(_NACK, (until, _writable(error), self._name, due, sequence))
                self._store.announce(self._name)

    def settle_dead_letter(self, message: Message[B, Any], reason: str, error: str | None) -> None:
        """Do what `Message.dead_letter` says."""
        with self._store.lock, self._store.transaction(self._name) as database:
            self._check_holds(database, message)
            self.bury(database, message.due, cast("Row", message.record).sequence, reason, error)

    def settle_reply(self, message: Message[B, Any], body: Any) -> str:
        """Do what `Message.reply` says."""
        with self._store.lock, self._store.connection(self._name) as database:
            self._check_holds(database, message)
        return self._reply(message, body)

    def _change(self, message: Message[B, Any], statement: str, *arguments: object) -> None:
        with self._store.lock:
            with self._store.transaction(self._name, flush=statement is _DELETE) as database:
                # The time and the fence are looked at when the file is ours: waiting for that may have taken a while.
                is_good = _is_good(message, self._wall())
                if not is_good or not database.execute(statement, (*arguments, *self._key(message))).rowcount:
                    raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)
                if statement is _PUT_BACK:
                    self._store.announce(self._name)
            if statement is _DELETE:
                self._made_room()

    def _made_room(self) -> None:
        """Wake the sends of this process that wait for room: which of them fit, they see themselves."""
        self._store.waiters(self._room).wake_all()

    def _check_holds(self, database: sqlite3.Connection, message: Message[B, Any]) -> float:
        """Refuse a delivery that is over; return the time."""
        now = self._wall()
        if not _is_good(message, now) or database.execute(_CHECK, self._key(message)).fetchone() is None:
            raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)
        return now

    def _is_here(self, message: Message[B, Any]) -> bool:
        """Say whether it was received from this mailbox, by whichever object: elsewhere its numbers mean nothing."""
        courier = message.courier
        return courier is self or (isinstance(courier, SqliteQueue) and courier.place == self.place)

    def _key(self, message: Message[B, Any]) -> tuple[str, float, int, int]:
        return self._name, message.due, cast("Row", message.record).sequence, message.receipt

    def _is_exhausted(self, count: int) -> bool:
        return self._max_deliveries is not None and count >= self._max_deliveries

    def _visible(self, database: sqlite3.Connection, limit: int, now: float) -> list[Row]:
        """Return the first in line, when what is due has come back."""
        found = database.execute(_VISIBLE, (self._name, now, limit)).fetchall()
        if (not found or found[0][-1]) and self.bring_back(database, now)[0]:
            found = database.execute(_VISIBLE, (self._name, now, limit)).fetchall()
        return [Row(*each[:-1]) for each in found]

    def _deliver(
        self, database: sqlite3.Connection, row: Row, due: float, token: Token | None
    ) -> Message[B, Any] | None:
        """Make a message of a row; a row that cannot be delivered is a dead letter instead."""
        if self._is_exhausted(row.count):
            self.bury(database, row.due, row.sequence, f"it was delivered {row.count} times")
            return None
        try:
            body = self._read(row)
        except SerializationError as error:
            self.bury(database, row.due, row.sequence, "its body cannot be read", str(error))
            return None
        except UNREADABLE as error:
            self.bury(database, row.due, row.sequence, "its headers cannot be read", str(error))
            return None
        record = row if row.source is None else _readable(row)
        message: Message[B, Any] = Message(self, record, body, row.count + 1, row.receipt + 1, token)
        message.due = due
        return message


def _is_good(message: Message[Any, Any], now: float) -> bool:
    """Say whether neither its worker was fenced nor its lease has ended."""
    return message.due > now and not message.is_fenced


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
