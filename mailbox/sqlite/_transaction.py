"""`Transaction`: one step in a SQLite file, which is done or not done."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from types import TracebackType

    from loopwarden.mailbox.sqlite._store import SqliteStore

__all__ = ["FAULTS", "Transaction"]

#: What SQLite raises; of a damaged file also that a text in it is none.
FAULTS = (sqlite3.Error, UnicodeDecodeError)


@final
class Transaction:
    """Gives a cursor of a store; if there was an error, nothing was done, and what SQLite raised is one of our errors.

    It may be used again and again, each time under the store's lock. A class, and kept: three of these are on the path
    of every message, and a generator takes as long as a statement does.

    What commits, or undoes, is the connection's own ``with``, which must be the innermost one::

        with store.lock, transaction as cursor, cursor.connection:

    It is written in C. A Ctrl-C can be raised where a function in Python begins, so an end that is written in Python
    may not even begin, and the file would stay locked for all others.

    Args:
        store: The file.
        mailbox: Whom an error is about.
        synchronous: ``"FULL"`` if it is to be flushed.
        single: True for exactly one statement, which SQLite itself does or does not do; it needs no inner ``with``.
    """

    __slots__ = ("_cursor", "_mailbox", "_single", "_store", "_synchronous")

    def __init__(self, store: SqliteStore, mailbox: str, synchronous: str, *, single: bool) -> None:
        self._store = store
        self._mailbox = mailbox
        self._synchronous = synchronous
        self._single = single
        self._cursor: sqlite3.Cursor | None = None

    def __enter__(self) -> sqlite3.Cursor:
        store = self._store
        self._cursor = None
        store.begin_call()
        try:
            self._cursor = cursor = store.open()
            if store.level != self._synchronous:
                store.level = ""  # unknown, if an interrupt comes in between
                cursor.execute(f"PRAGMA synchronous = {self._synchronous}")
                store.level = self._synchronous
            if not self._single:
                # Takes the write lock now, so that it cannot fail half-way. Inside the try: a Ctrl-C while it waits
                # for the lock is raised when it has it.
                cursor.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._undo(error)
            raise
        return cursor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._undo(error)
            return
        store = self._store
        store.end_call()
        if store.closed:
            self._release()
        else:
            self._cursor = None  # kept, it would keep the connection half open when the store is closed
        if store.announced:
            store.ring()

    def _undo(self, error: BaseException) -> None:
        """Undo what an interrupt has left open; an error of SQLite becomes one of ours."""
        cursor = self._cursor
        self._store.end_call()
        try:
            self._store.announced.clear()
            if cursor is not None and cursor.connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")
        finally:
            self._release()
        if isinstance(error, FAULTS):
            raise self._store.failure(self._mailbox, error) from error

    def _release(self) -> None:
        """Let a connection go that was for one use."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            self._store.release(cursor)
