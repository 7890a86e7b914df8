"""`RedisDeadLetters`: the letters of one `RedisMailbox`, in the same server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden.errors import ReplyNotAvailableError, SerializationError
from loopwarden.mailbox._dead_letter import NO_ERROR, DeadLetter, paced
from loopwarden.mailbox._validation import check_id, check_ids, check_limit
from loopwarden.mailbox.redis._queue import CHUNK, UNREADABLE, RedisQueue, Row, about_of, meta_of
from loopwarden.mailbox.redis._scripts import dead_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden.clock import Clock
    from loopwarden.mailbox._codec import Codec
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.redis._store import RedisStore

__all__ = ["RedisDeadLetters"]

T = TypeVar("T")


@final
class RedisDeadLetters(Generic[T]):
    """`DeadLetters` in a server: a message is moved here, and back, in one step."""

    def __init__(self, store: RedisStore, base: str, mailbox: RedisQueue[T], codec: Codec[T], clock: Clock) -> None:
        self._mailbox = mailbox
        self._codec = codec
        self._clock = clock
        self.queue: RedisQueue[DeadLetter[T]] = RedisQueue(
            store,
            dead_of(base),
            f"{mailbox.name}:dead",
            clock,
            max_deliveries=None,
            letters=True,
            read=self._read,
            reply=_no_reply,
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
        while len(found) < limit:
            rows = self._rows("range", len(found), min(limit, len(found) + CHUNK) - 1)
            found += map(self._letter, rows)
            if len(rows) < CHUNK:
                break
        return found

    def get(self, message_id: str) -> DeadLetter[T] | None:
        """Return one letter without receiving it."""
        check_id(self.name, "message_id", message_id)
        rows = self._rows("id", message_id)
        return self._letter(rows[0]) if rows else None

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
        chosen = self._ids() if message_ids is None else check_ids(self.name, message_ids)
        return sum(self._redrive_one(each) for each in paced(chosen, rate, self._clock, token, self.name))

    def _ids(self) -> list[str]:
        ids: list[str] = []
        start = 0
        while True:
            rows = self._rows("range", start, start + CHUNK - 1)
            ids += (row.id for row in rows)
            start += CHUNK
            if len(rows) < CHUNK:
                return ids

    def _rows(self, what: str, *arguments: str | int) -> list[Row]:
        found = self.queue.call("letters", what, *arguments)
        rows: list[Row] = []
        for index in range(0, len(found), 3):
            place, raw, about = found[index : index + 3]
            row = Row(place.decode(), "", raw, about=about_of(about))
            row.id = str((row.about or {}).get("id", ""))
            rows.append(row)
        return rows

    def _redrive_one(self, message_id: str) -> bool:
        self._mailbox.check_open()
        rows = self._rows("id", message_id)
        if not rows:
            return False
        [row] = rows
        _read_parts(row)
        meta = meta_of({**row.headers, "redriven-from": message_id}, row.reply_to)
        with self._mailbox.waking(is_visible=True) as rings:
            return bool(self._mailbox.call("redrive", row.place, meta, rings))

    def approximate_count(self) -> int:
        """Return how many letters there are."""
        return int(self.queue.call("count"))

    def purge(self) -> int:
        """Delete all letters."""
        return int(self.queue.call("purge"))

    def _letter(self, row: Row) -> DeadLetter[T]:
        _read_parts(row)
        return self._read(row)

    def _read(self, row: Row) -> DeadLetter[T]:
        about = row.about or {}
        body: T | None
        raw: bytes | None
        try:
            body, raw = self._codec.decode(row.body), None
        except SerializationError:
            body, raw = None, row.body
        if row.is_garbled:
            body, raw = None, row.body
        error = about.get("error")
        return DeadLetter[Any](
            message_id=row.id,
            mailbox=self._mailbox.name,
            body=body,
            raw=raw,
            reason=str(about.get("reason", "")),
            error=NO_ERROR if error is None and about.get("untold") else error,
            delivery_count=int(about.get("count", 0)),
            headers=dict(row.headers),
            sent_at=row.sent_at,
            dead_at=float(about.get("at", 0)) / 1000,
        )

    def __repr__(self) -> str:
        return f"<RedisDeadLetters {self.name!r}>"


def _read_parts(row: Row) -> None:
    try:
        row.read()
    except UNREADABLE:
        row.is_garbled = True


def _no_reply(message: Message[Any, Any], _body: object) -> str:
    raise ReplyNotAvailableError("dead letters", message.id, "a dead letter has no sender that waits for a reply")
