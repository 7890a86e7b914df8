"""`PostgresDeadLetters`: the letters of one `PostgresMailbox`, in the same database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden.errors import ReplyNotAvailableError, SerializationError
from loopwarden.mailbox._dead_letter import DeadLetter, paced
from loopwarden.mailbox._validation import check_id, check_ids, check_limit
from loopwarden.mailbox.postgres._connection import to_bool, to_integer
from loopwarden.mailbox.postgres._queue import CHUNK, UNREADABLE, PostgresQueue, Row, about_of
from loopwarden.mailbox.postgres._store import LONG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from loopwarden.clock import Clock
    from loopwarden.mailbox._codec import Codec
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.postgres._store import PostgresStore

__all__ = ["PostgresDeadLetters"]

T = TypeVar("T")

_LETTERS = b"SELECT * FROM loopwarden.letters($1::int4, $2::int8, $3::int4, $4::int8)"
_REDRIVE = b"CALL loopwarden.redrive(NULL, $1::int4, $2::int8, $3::int8, $4::text)"
_COUNT = b"SELECT count(*) FROM loopwarden.messages WHERE mailbox = $1::int4"
_PURGE = b"CALL loopwarden.purge(NULL, $1::int4)"


@final
class PostgresDeadLetters(Generic[T]):
    """`DeadLetters` in a database: a message is moved here, and back, in one step."""

    def __init__(
        self, store: PostgresStore, box: int, mailbox: PostgresQueue[T], codec: Codec[T], clock: Clock
    ) -> None:
        self._store = store
        self._box = -box
        self._mailbox = mailbox
        self._codec = codec
        self._clock = clock
        self.queue: PostgresQueue[DeadLetter[T]] = PostgresQueue(
            store, -box, f"{mailbox.name}:dead", clock, max_deliveries=None, read=self._read, reply=_no_reply
        )

    @property
    def name(self) -> str:
        """The mailbox's name with ``:dead`` behind it."""
        return self.queue.name

    @property
    def closed(self) -> bool:
        """True once the mailbox is closed."""
        return self._mailbox.closed

    def peek(self, limit: int = 100) -> list[DeadLetter[T]]:
        """Return the oldest letters without receiving them."""
        check_limit(self.name, limit)
        found: list[DeadLetter[T]] = []
        for row in self._rows():
            if len(found) >= limit:
                break
            found.append(self._letter(row))
        return found

    def get(self, message_id: str) -> DeadLetter[T] | None:
        """Return one letter without receiving it."""
        check_id(self.name, "message_id", message_id)
        row = self._row(message_id)
        return None if row is None else self._letter(row)

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> list[Message[DeadLetter[T], None]]:
        """Receive letters, as from any mailbox."""
        return self.queue.receive(max_messages, visibility_timeout, wait_time_seconds, token)

    def extend_many(self, messages: Iterable[Message[Any, Any]], timeout: float) -> list[Message[Any, Any]]:
        """Renew the leases of many letters; see `SupportsExtendMany`."""
        return self.queue.extend_many(list(messages), timeout)

    def redrive(
        self, message_ids: Iterable[str] | None = None, *, rate: float | None = None, token: Token | None = None
    ) -> int:
        """Send letters back; see `DeadLetters.redrive`."""
        self._mailbox.check_open()
        chosen = [row.id for row in self._rows()] if message_ids is None else check_ids(self.name, message_ids)
        return sum(self._redrive_one(each) for each in paced(chosen, rate, self._clock, token, self.name))

    def _rows(self) -> Iterator[Row]:
        """Read all letters, in order."""
        behind = 0
        while True:
            found = self._store.again(self.name, _LETTERS, self._box, behind, CHUNK, None)
            for columns in found:
                row = self._row_of(columns)
                behind = row.place
                yield row
            if len(found) < CHUNK:
                return

    def _row(self, message_id: str) -> Row | None:
        birth, _, place = message_id.rpartition("-")
        if birth != self._store.birth or not (place.isascii() and place.isdigit()) or len(place) > 18:  # noqa: PLR2004  more than there can be
            return None
        found = self._store.again(self.name, _LETTERS, self._box, 0, 1, int(place))
        return self._row_of(found[0]) if found else None

    def _row_of(self, columns: tuple[bytes | None, ...]) -> Row:
        place, sent_at, body, about, *letter = columns
        known_by = self.queue.id_of(to_integer(letter[0]))
        return Row(to_integer(place), known_by, to_integer(sent_at), body or b"", about, tuple(letter))

    def _redrive_one(self, message_id: str) -> bool:
        self._mailbox.check_open()
        row = self._row(message_id)
        if row is None:
            return False
        _read_parts(row)
        about = about_of({**row.headers, "redriven-from": message_id}, row.reply_to)
        given = (self._box, self._store.now(), to_integer(row.letter[0]), about)
        return to_bool(self._store.again(self.name, _REDRIVE, *given)[0][0])

    def approximate_count(self) -> int:
        """Return how many letters there are."""
        return to_integer(self._store.again(self.name, _COUNT, self._box)[0][0])

    def purge(self) -> int:
        """Delete all letters."""
        return to_integer(self._store.once(self.name, _PURGE, self._box, patience=LONG_SECONDS)[0][0])

    def _letter(self, row: Row) -> DeadLetter[T]:
        _read_parts(row)
        return self._read(row)

    def _read(self, row: Row) -> DeadLetter[T]:
        _, dead_at, reason, count, error = row.letter
        body: T | None
        raw: bytes | None
        try:
            body, raw = self._codec.decode(row.body), None
        except SerializationError:
            body, raw = None, row.body
        if row.is_garbled:
            body, raw = None, row.body
        return DeadLetter[Any](
            message_id=row.id,
            mailbox=self._mailbox.name,
            body=body,
            raw=raw,
            reason=(reason or b"").decode(),
            error=None if error is None else error.decode(),
            delivery_count=to_integer(count),
            headers=dict(row.headers),
            sent_at=row.sent_at,
            dead_at=to_integer(dead_at) / 1000,
        )

    def __repr__(self) -> str:
        return f"<PostgresDeadLetters {self.name!r}>"


def _read_parts(row: Row) -> None:
    try:
        row.read()
    except UNREADABLE:
        row.is_garbled = True


def _no_reply(message: Message[Any, Any], _body: object) -> str:
    raise ReplyNotAvailableError("dead letters", message.id, "a dead letter has no sender that waits for a reply")
