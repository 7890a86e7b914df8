"""`Transaction`: one step in a SQLite file, which is done or not done."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from types import TracebackType

    from loopwarden.mailbox._sqlite_store import SqliteStore

__all__ = ["Transaction"]


@final
class Transaction:
    """Gives a cursor of a store and, at its end, commits, or undoes everything if there was an error.

    It may be used again and again, each time under the store's lock. A class, and kept: three of these are on the path
    of every message, and a generator takes as long as a statement does.

    Args:
        store: The file.
        mailbox: Whom an error is about.
        synchronous: ``"FULL"`` if it is to be flushed.
        single: True for exactly one statement, which SQLite itself does or does not do.
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
        cursor = self._cursor
        if error is not None or cursor is None:
            self._undo(error)
            return
        try:
            if not self._single:
                cursor.execute("COMMIT")
        except BaseException as failure:
            self._undo(failure)
            raise
        store = self._store
        if store.closed:
            store.release(cursor)
        if store.announced:
            store.ring()

    def _undo(self, error: BaseException | None) -> None:
        """Undo everything; an error of SQLite becomes one of ours."""
        cursor = self._cursor
        try:
            self._store.announced.clear()
            if cursor is not None and cursor.connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")
        finally:
            if cursor is not None:
                self._store.release(cursor)
        if isinstance(error, sqlite3.Error):
            raise self._store.failure(self._mailbox, error) from error
