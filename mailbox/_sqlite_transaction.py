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
    """Gives the connection of a store and, at its end, commits, or undoes everything if there was an error.

    A class and no generator: three of these are on the path of every message, and a generator takes as long as a
    statement does.
    """

    __slots__ = ("_database", "_mailbox", "_store", "_synchronous")

    def __init__(self, store: SqliteStore, mailbox: str, synchronous: str) -> None:
        self._store = store
        self._mailbox = mailbox
        self._synchronous = synchronous
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._database = database = self._store.open()
            # Inside the try: a Ctrl-C while it waits for the lock is raised when it has it.
            self._store.begin(database, self._synchronous)
        except BaseException as error:
            self._undo(error)
            raise
        return database

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        database = self._database
        if error is not None or database is None:
            self._undo(error)
            return
        try:
            database.execute("COMMIT")
        except BaseException as failure:
            self._undo(failure)
            raise
        self._store.release(database)
        self._store.ended(done=True)

    def _undo(self, error: BaseException | None) -> None:
        """Undo everything; an error of SQLite becomes one of ours."""
        database = self._database
        try:
            self._store.ended(done=False)
            if database is not None and database.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
        finally:
            self._store.release(database)
        if isinstance(error, sqlite3.Error):
            raise self._store.failure(self._mailbox, error) from error
