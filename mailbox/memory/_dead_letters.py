"""`InMemoryDeadLetters`: the letters of one `InMemoryMailbox`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox._dead_letter import paced
from loopwarden.mailbox._validation import check_id, check_ids, check_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden.clock import Clock
    from loopwarden.mailbox._dead_letter import DeadLetter
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.memory._mailbox import InMemoryMailbox, InMemoryStore
    from loopwarden.mailbox.memory._queue import Entry

__all__ = ["InMemoryDeadLetters"]

T = TypeVar("T")


@final
class InMemoryDeadLetters(Generic[T]):
    """`DeadLetters` in this process; they share the lock of the mailbox that gave them up, so each is in one place."""

    def __init__(
        self,
        source: InMemoryStore[T, Any],
        box: InMemoryMailbox[DeadLetter[T], None],
        clock: Clock,
    ) -> None:
        self._source = source
        self._box = box
        #: Where the letters are; for this package only.
        self.store = box.store
        self._clock = clock

    @property
    def name(self) -> str:
        """The mailbox's name with ``:dead`` behind it."""
        return self._box.name

    @property
    def closed(self) -> bool:
        """True once the mailbox is closed."""
        return self._box.closed

    def peek(self, limit: int = 100) -> list[DeadLetter[T]]:
        """Return the oldest letters without receiving them."""
        check_limit(self.name, limit)
        with self._source.lock, self.store.mending:
            return [cast("DeadLetter[T]", entry.body) for entry in self.store.queue.entries()[:limit]]

    def get(self, message_id: str) -> DeadLetter[T] | None:
        """Return one letter without receiving it."""
        check_id(self.name, "message_id", message_id)
        with self._source.lock, self.store.mending:
            entry = self._find(message_id)
            return None if entry is None else cast("DeadLetter[T]", entry.body)

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> list[Message[DeadLetter[T], None]]:
        """Receive letters, as from any mailbox."""
        return self._box.receive(
            max_messages=max_messages,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
            token=token,
        )

    def redrive(
        self, message_ids: Iterable[str] | None = None, *, rate: float | None = None, token: Token | None = None
    ) -> int:
        """Send letters back; see `DeadLetters.redrive`."""
        self._check_open()
        chosen = (
            [letter.message_id for letter in self.peek(2**31)]
            if message_ids is None
            else check_ids(self.name, message_ids)
        )
        return sum(self._redrive_one(each) for each in paced(chosen, rate, self._clock, token, self.name))

    def _check_open(self) -> None:
        if self.closed:
            raise MailboxClosedError(self._source.name)

    def _redrive_one(self, message_id: str) -> bool:
        with self._source.lock, self.store.mending:
            self._check_open()
            entry = self._find(message_id)
            if entry is None:
                return False
            self.store.redrive(entry, self._source)
            return True

    def _find(self, message_id: str) -> Entry | None:
        return next((entry for entry in self.store.queue.entries() if entry.body.message_id == message_id), None)

    def approximate_count(self) -> int:
        """Return exactly how many letters there are."""
        return self._box.approximate_count()

    def purge(self) -> int:
        """Delete all letters."""
        return self._box.purge()

    def close(self) -> None:
        """Close with the mailbox."""
        self._box.close()

    def __repr__(self) -> str:
        return f"<InMemoryDeadLetters {self.name!r}, {self.approximate_count()} letters>"
