"""`SqliteDeadLetters`: the letters of one `SqliteMailbox`, in the same file."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden.errors import MailboxClosedError, ReplyNotAvailableError, SerializationError
from loopwarden.mailbox._dead_letter import DeadLetter, paced
from loopwarden.mailbox._validation import check_id, check_ids, check_limit
from loopwarden.mailbox.sqlite._queue import UNREADABLE, Row, SqliteQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden.clock import Clock
    from loopwarden.mailbox._codec import Codec
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.sqlite._store import SqliteStore

__all__ = ["SqliteDeadLetters"]

T = TypeVar("T")


@final
class SqliteDeadLetters(Generic[T]):
    """`DeadLetters` in a SQLite file: a message is moved here, and back, in one transaction."""

    def __init__(self, store: SqliteStore, mailbox: str, codec: Codec[T], clock: Clock) -> None:
        self._store = store
        self._mailbox = mailbox
        self._codec = codec
        self._clock = clock
        self._queue: SqliteQueue[DeadLetter[T]] = SqliteQueue(
            store, f"{mailbox}:dead", clock, max_deliveries=None, letters=True, read=self._read, reply=_no_reply
        )

    @property
    def name(self) -> str:
        """The mailbox's name with ``:dead`` behind it."""
        return self._queue.name

    @property
    def closed(self) -> bool:
        """True once the mailbox is closed."""
        return self._store.closed

    def peek(self, limit: int = 100) -> list[DeadLetter[T]]:
        """Return the oldest letters without receiving them."""
        check_limit(self.name, limit)
        with self._store.lock, self._store.connection(self.name) as cursor:
            return [self._read(row) for row in self._queue.rows(cursor, "TRUE ORDER BY sequence LIMIT ?", limit)]

    def get(self, message_id: str) -> DeadLetter[T] | None:
        """Return one letter without receiving it."""
        check_id(self.name, "message_id", message_id)
        with self._store.lock, self._store.connection(self.name) as cursor:
            rows = self._queue.rows(cursor, "id = ?", message_id)
            return self._read(rows[0]) if rows else None

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> list[Message[DeadLetter[T], None]]:
        """Receive letters, as from any mailbox."""
        return self._queue.receive(max_messages, visibility_timeout, wait_time_seconds, token)

    def redrive(
        self, message_ids: Iterable[str] | None = None, *, rate: float | None = None, token: Token | None = None
    ) -> int:
        """Send letters back; see `DeadLetters.redrive`."""
        self._check_open()
        chosen = self._ids() if message_ids is None else check_ids(self.name, message_ids)
        return sum(self._redrive_one(each) for each in paced(chosen, rate, self._clock, token, self.name))

    def waited_until(self) -> float:
        """Return up to when a call waited for another process; see `SupportsWaitedUntil`."""
        return self._store.waited_until()

    def _check_open(self) -> None:
        if self._store.closed:
            raise MailboxClosedError(self._mailbox)

    def _ids(self) -> list[str]:
        with self._store.lock, self._store.connection(self.name) as cursor:
            found = cursor.execute("SELECT id FROM messages WHERE mailbox = ? ORDER BY sequence", (self.name,))
            return [message_id for (message_id,) in found]

    def _redrive_one(self, message_id: str) -> bool:
        with self._store.lock, self._store.transaction(self.name) as cursor, cursor.connection:
            self._check_open()
            rows = self._queue.rows(cursor, "id = ?", message_id)
            if not rows:
                return False
            try:
                headers = dict(rows[0].headers)
            except UNREADABLE:
                headers = {}
            headers["redriven-from"] = message_id
            cursor.execute(
                "UPDATE messages SET mailbox = ?, due = 0, holder = NULL, sequence = ?, id = ?, headers = ?,"
                " sent_at = ?, count = 0, receipt = 0, error = NULL, source = NULL, dead_at = NULL, reason = NULL,"
                " dead_count = NULL WHERE mailbox = ? AND due = ? AND sequence = ?",
                (
                    self._mailbox,
                    self._store.sequences.allocate(cursor, 1),
                    secrets.token_hex(8),
                    json.dumps(headers).encode(),
                    self._clock.wall(),
                    self.name,
                    rows[0].due,
                    rows[0].sequence,
                ),
            )
            self._store.notify_on_commit(self._mailbox)
            return True

    def approximate_count(self) -> int:
        """Return how many letters there are."""
        with self._store.lock, self._store.connection(self.name) as cursor:
            [count] = cursor.execute("SELECT count(*) FROM messages WHERE mailbox = ?", (self.name,)).fetchone()
            return int(count)

    def purge(self) -> int:
        """Delete all letters."""
        with self._store.lock, self._store.transaction(self.name, single=True) as cursor:
            return cursor.execute("DELETE FROM messages WHERE mailbox = ?", (self.name,)).rowcount

    def _read(self, row: Row) -> DeadLetter[T]:
        try:
            body, raw = self._codec.decode(row.body), None
        except SerializationError:
            body, raw = None, row.body
        try:
            headers = dict(row.headers)
        except UNREADABLE:
            headers, body, raw = {}, None, row.body
        return DeadLetter[Any](
            message_id=row.id,
            mailbox=row.source or self._mailbox,
            body=body,
            raw=raw,
            reason=row.reason or "",
            error=row.error,
            delivery_count=row.dead_count or 0,
            headers=headers,
            sent_at=row.sent_at,
            dead_at=row.dead_at or 0.0,
        )

    def __repr__(self) -> str:
        return f"<SqliteDeadLetters {self.name!r}>"


def _no_reply(message: Message[Any, Any], _body: object) -> str:
    raise ReplyNotAvailableError("dead letters", message.id, "a dead letter has no sender that waits for a reply")
