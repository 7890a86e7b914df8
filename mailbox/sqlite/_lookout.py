"""`SqliteLookout`: whether there is something to receive in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox.sqlite._receive import RECHECK

if TYPE_CHECKING:
    from loopwarden._blocking import Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._waiters import Waiters
    from loopwarden.mailbox.sqlite._store import SqliteStore

__all__ = ["SqliteLookout"]


@final
class SqliteLookout:
    """Looks at one mailbox of a store."""

    def __init__(self, store: SqliteStore, name: str, waiters: Waiters, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self.waiters = waiters

    @property
    def name(self) -> str:
        """The mailbox's."""
        return self._name

    @property
    def lock(self) -> Lock:
        """The store's."""
        return self._store.lock

    def look(self) -> tuple[bool, float]:
        """Say whether something is visible or due, and when to look again; see `Lookout.look`."""
        if self._store.closed:
            raise MailboxClosedError(self._name)
        self._store.bell.listen()
        with self._store.connection(self._name) as cursor:
            [due] = cursor.execute("SELECT min(due) FROM messages WHERE mailbox = ?", (self._name,)).fetchone()
        if due is None:
            return False, RECHECK
        until = due - self._clock.wall()
        return until <= 0, min(RECHECK, max(0.0, until))
