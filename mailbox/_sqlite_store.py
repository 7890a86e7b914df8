"""`SqliteStore`: one SQLite file, one connection, one lock."""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, final

from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox._doorbell import Doorbell
from loopwarden.mailbox._waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Generator

    from loopwarden.clock import Clock

__all__ = ["SqliteStore"]

#: Seconds that SQLite waits for another process that is writing; a write takes milliseconds.
BUSY_SECONDS = 30.0


@final
class SqliteStore:
    """The connection to one file, shared by the mailboxes in it that were made together.

    The file is in WAL mode. With ``synchronous="NORMAL"`` what was committed survives the death of the process, at any
    instant; with ``"FULL"`` what was sent and what was acknowledged survives a power cut too, at the price of a flush
    with each. A lease is not flushed: after a power cut there is nobody left to hold it.
    """

    def __init__(self, path: str | Path, *, synchronous: str, clock: Clock) -> None:
        self.path = Path(path)
        if synchronous not in {"NORMAL", "FULL"}:
            raise InvalidParameterError(str(path), "synchronous", synchronous, "'NORMAL' or 'FULL'")
        if self.path.is_dir():
            raise InvalidParameterError(str(path), "path", str(path), "a file, and this is a folder")
        self._synchronous = synchronous
        #: Guards the connection, the waiters and `closed`. Called while it is held: SQLite, `Gate.open`.
        self.lock = clock.blocking.lock()
        self.closed = False
        self._waiters: dict[str, Waiters] = {}
        self._announced: list[str] = []  # mailboxes to ring for when the transaction is committed
        self.bell = Doorbell(self.path, self._rung, clock.blocking)
        self._connection: sqlite3.Connection | None = None
        schema = resources.files("loopwarden.mailbox").joinpath("sql/schema.sql").read_text("utf-8")
        try:
            with self.lock, self.connection(str(path)) as database:
                database.executescript(schema)
        except BaseException:
            self.close()
            raise

    def waiters(self, mailbox: str) -> Waiters:
        """Return the receives of this process that wait for ``mailbox``; under the lock."""
        return self._waiters.setdefault(mailbox, Waiters())

    def _rung(self, mailbox: str) -> None:
        """Wake one of ours, because another process says that there is something."""
        with self.lock:
            if mailbox in self._waiters:
                self._waiters[mailbox].wake_one()

    @contextlib.contextmanager
    def connection(self, mailbox: str) -> Generator[sqlite3.Connection]:
        """Give the connection, under the lock; what SQLite raises names ``mailbox``.

        A closed store opens the file once more for each use: what was leased may still be finalised.

        Raises:
            MailboxConnectionError: if the file cannot be read or written now.
        """
        try:
            if self.closed:
                with contextlib.closing(self._connect()) as late:
                    yield late
                return
            if self._connection is None:
                self._connection = self._connect()
            elif self._connection.in_transaction:  # an interrupt, or a rollback that failed, has left it open
                self._connection.rollback()
            yield self._connection
        except sqlite3.Error as error:
            raise MailboxConnectionError(mailbox, f"{self.path}: {error}") from error

    @contextlib.contextmanager
    def transaction(self, mailbox: str, *, flush: bool = True) -> Generator[sqlite3.Connection]:
        """Give the connection for reading and writing in one step: all of it is done, or nothing.

        Args:
            mailbox: Whom an error is about.
            flush: False for what a power cut may undo without losing a message, such as a lease.
        """
        with self.connection(mailbox) as database:
            if self._synchronous == "FULL":
                database.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
            try:
                # Takes the write lock now, so that it cannot fail half-way. Inside the try: a Ctrl-C while it waits
                # for the lock is raised when it has it.
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except BaseException:
                self._announced.clear()
                if database.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        database.execute("ROLLBACK")
                raise
            while self._announced:
                self.bell.ring(self._announced.pop())

    def announce(self, mailbox: str) -> None:
        """Wake one who waits for ``mailbox``, here now and elsewhere after the commit; in a transaction."""
        self.waiters(mailbox).wake_one()
        self._announced.append(mailbox)

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: transactions begin and end where we say. The lock keeps threads apart.
        database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _use_wal(database)
            database.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Close the connection and the bell, and wake everybody; under no lock."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            for waiters in self._waiters.values():
                waiters.wake_all()
            self.bell.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)
            self.close()

    def __repr__(self) -> str:
        return f"<SqliteStore {str(self.path)!r}{', closed' if self.closed else ''}>"


def _use_wal(database: sqlite3.Connection) -> None:
    """Put a file into WAL mode, which it keeps; if others do the same at this moment, wait for them."""
    for _ in range(100):
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            # Changing the mode does not wait for whoever is writing. Beginning a transaction does.
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        else:
            return
    database.execute("PRAGMA journal_mode = WAL")
