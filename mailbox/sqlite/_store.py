"""`SqliteStore`: one SQLite file, one connection, one lock."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, final

from loopwarden._log import report
from loopwarden._private_files import make_private_file
from loopwarden._sqlite_file import outlive_forks, use_wal
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox._waiters import Waiters
from loopwarden.mailbox.sqlite._holders import Holders
from loopwarden.mailbox.sqlite._notifier import Notifier
from loopwarden.mailbox.sqlite._schema import apply_schema, check_schema
from loopwarden.mailbox.sqlite._sequence import SequenceAllocator

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from loopwarden._blocking import Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._dead_letter import DeadLetterNotice, DeadLetterWatch

__all__ = ["FAULTS", "SqliteStore", "Transaction", "is_missing", "read_names"]

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
        if store.is_hasty and self._cursor is not None:
            store.wait_for(BUSY_SECONDS, self._cursor)
        if store.closed:
            try:
                if self._cursor is not None:
                    store.retire(self._cursor)
            finally:
                self._release()
        else:
            self._cursor = None  # kept, it would keep the connection half open when the store is closed
        if store.buried:
            store.tell_later()
        if store.announced:
            store.notify()

    def _undo(self, error: BaseException) -> None:
        """Undo what an interrupt has left open; an error of SQLite becomes one of ours."""
        cursor = self._cursor
        self._store.end_call()
        try:
            if _is_busy(error):
                self._store.wait_for(HASTY_SECONDS, cursor)
            self._store.announced.clear()
            self._store.buried.clear()
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


#: Seconds that SQLite waits for another process that is writing; a write takes milliseconds.
BUSY_SECONDS = 30.0

#: Seconds that each call waits after one has waited in vain, until one gets through. Calls take turns, so those that
#: came meanwhile would wait for their own 30 seconds one after another: 25 workers for 12 minutes.
HASTY_SECONDS = 0.5

#: Seconds from which on a call counts as waiting for another process; one that does not wait takes milliseconds.
WAITING_AFTER = 0.1
#: Seconds from which on it is told that a call has waited: from there on people wonder why nothing happens.
TOLD_AFTER = 5.0
#: Seconds after which a call does not count as waiting any more, but as stuck: SQLite has long given up by then.
STUCK_AFTER = BUSY_SECONDS + 5

#: Pages in the WAL after which it begins anew, where it is flushed with each step. A file that is written over is
#: flushed in half the time of one that grows, so it should not grow for long; SQLite's own 1000 is for the others.
FULL_WAL_PAGES = 400


@final
class SqliteStore:
    """The connection to one file, shared by the mailboxes in it that were made together.

    The file is in WAL mode. With ``synchronous="NORMAL"`` what was committed survives the death of the process, at any
    instant; with ``"FULL"`` what was sent and what was acknowledged survives a power cut too, at the price of a flush
    with each. A lease is not flushed: its holder does not survive a power cut.
    """

    def __init__(self, path: str | Path, *, synchronous: str, clock: Clock) -> None:
        self.closed = True  # until there is something to close
        self._pid = os.getpid()
        self.path = _check_path(path)
        if synchronous not in {"NORMAL", "FULL"}:
            raise InvalidParameterError(str(path), "synchronous", synchronous, "'NORMAL' or 'FULL'")
        self._synchronous = synchronous
        self._lock = clock.blocking.lock()
        self._waiters: dict[str, Waiters] = {}
        #: Mailboxes to notify for when the transaction is committed.
        self.announced: list[str] = []
        #: Letters to tell of when the transaction is committed, with what tells of them.
        self.buried: list[tuple[DeadLetterWatch, DeadLetterNotice]] = []
        self.notifier = Notifier(self.path, self._rung, clock.blocking)
        #: Where this file's messages stand.
        self.sequences = SequenceAllocator()
        self._monotonic, self._wall = clock.monotonic, clock.wall
        #: Who has leases.
        self.holders = Holders(self.path, clock.monotonic, is_alone=clock.blocking.is_virtual)
        # When the call began that is in SQLite now, and when the last one ended that had to wait. Written under the
        # lock, read by any thread.
        self._call_began: float | None = None
        #: True if the last call waited in vain for another process that has the file; under the lock.
        self.is_hasty = False
        self._waited_until = 0.0
        #: How the connection flushes now.
        self.level = ""
        # One for everything: to make one takes a third of the time of a statement.
        self._cursor: sqlite3.Cursor | None = None
        self.closed = False
        make_private_file(self.path)  # bodies are private to the user, and SQLite's own files are made alike
        outlive_forks(self)
        try:
            with self.lock, self.connection(str(path)) as cursor:
                apply_schema(cursor.connection, self.path)
        except BaseException:
            self.close()
            raise

    @property
    def lock(self) -> Lock:
        """Guards the connection, the waiters and `closed`. Called while it is held: SQLite, `Gate.open`.

        Raises:
            InvalidParameterError: in a process that was forked from the one that has opened the file. SQLite must not
                be used there, and the thread that held the lock is not there to release it.
        """
        if os.getpid() != self._pid:
            expected = f"{self._pid}, which has opened the file: open it anew after a fork"
            raise InvalidParameterError(str(self.path), "process", os.getpid(), expected)
        return self._lock

    def waiters(self, mailbox: str) -> Waiters:
        """Return the receives of this process that wait for ``mailbox``, always the same object; under the lock."""
        waiters = self._waiters.get(mailbox)
        if waiters is None:
            waiters = self._waiters[mailbox] = Waiters()
        return waiters

    def begin_call(self) -> None:
        """Note that SQLite is called; under the lock."""
        self._call_began = self._monotonic()

    def end_call(self) -> None:
        """Note that SQLite has answered; under the lock."""
        began, self._call_began = self._call_began, None
        if began is not None and (now := self._monotonic()) - began > WAITING_AFTER:
            self._waited_until = now
            if now - began > TOLD_AFTER:
                text = "%s: a step took %.1f s, because another process has the file, or the disk is slow"
                report(logging.WARNING, text, self.path, now - began)

    def wait_for(self, seconds: float, cursor: sqlite3.Cursor | None) -> None:
        """Let each call wait so long for another process that has the file; under the lock."""
        self.is_hasty = seconds < BUSY_SECONDS
        if cursor is not None:
            with contextlib.suppress(sqlite3.Error):
                cursor.connection.execute(f"PRAGMA busy_timeout = {1000 * seconds:.0f}")

    def waited_until(self) -> float:
        """Return up to when this process waited for another one that had the file: now, if it still does."""
        began, now = self._call_began, self._monotonic()
        is_waiting = began is not None and WAITING_AFTER < now - began < STUCK_AFTER
        return now if is_waiting else self._waited_until

    def _rung(self, mailbox: str) -> None:
        """Wake one of ours, because another process says that there is something."""
        with self.lock:
            if mailbox in self._waiters:
                self._waiters[mailbox].wake_one()

    @contextlib.contextmanager
    def connection(self, mailbox: str) -> Generator[sqlite3.Cursor]:
        """Give a cursor, under the lock, for one statement; what SQLite raises names ``mailbox``.

        Raises:
            MailboxConnectionError: if the file cannot be read or written now.
        """
        cursor: sqlite3.Cursor | None = None
        self.begin_call()
        try:
            cursor = self.open()
            yield cursor
            if self.is_hasty:
                self.wait_for(BUSY_SECONDS, cursor)
        except FAULTS as error:
            if _is_busy(error):
                self.wait_for(HASTY_SECONDS, cursor)
            raise self.failure(mailbox, error) from error
        finally:
            self.end_call()
            if cursor is not None:
                self.release(cursor)

    def transaction(self, mailbox: str, *, flush: bool = True, single: bool = False) -> Transaction:
        """Return what reads and writes in one step: all of it is done, or nothing; to be entered under the lock.

        Args:
            mailbox: Whom an error is about.
            flush: False for what a power cut may undo without losing a message, such as a lease.
            single: True for exactly one statement.
        """
        synchronous = "FULL" if flush and self._synchronous == "FULL" else "NORMAL"
        return Transaction(self, mailbox, synchronous, single=single)

    def open(self) -> sqlite3.Cursor:
        """Return the cursor, with nothing begun; under the lock. `release` must follow.

        A closed store opens the file once more for each use: what was leased may still be finalised.
        """
        cursor = self._cursor
        if cursor is None:
            cursor = self._connect().cursor()
            if not self.closed:
                self._cursor = cursor
        elif cursor.connection.in_transaction:  # an interrupt, or a rollback that failed, has left it open
            cursor.connection.rollback()
        return cursor

    def release(self, cursor: sqlite3.Cursor) -> None:
        """Close a connection that was for one use."""
        if cursor is not self._cursor:
            cursor.connection.close()

    def failure(self, mailbox: str, error: Exception) -> MailboxConnectionError:
        """Return the error that says what went wrong in the file."""
        return MailboxConnectionError(mailbox, f"{self.path}: {error}")

    def notify_on_commit(self, mailbox: str) -> None:
        """Wake one who waits for ``mailbox``, here now and elsewhere after the commit; in a transaction."""
        self.waiters(mailbox).wake_one()
        self.announced.append(mailbox)

    def notify(self) -> None:
        """Tell the other processes what was announced."""
        while self.announced:
            self.notifier.notify(self.announced.pop())

    def tell_later(self) -> None:
        """Hand over what is to be told of letters; under the lock, so that it is told without it."""
        while self.buried:
            watch, notice = self.buried.pop(0)
            watch.add(notice)

    def end_leases_of_the_dead(self, mailbox: str) -> None:
        """Let what processes that died had in hand be due now; under the lock, when a look is due.

        Raises:
            MailboxConnectionError: if the file cannot be read or written now; it names ``mailbox``.
        """
        with self.holders.dead() as dead:
            if dead:
                with self.transaction(mailbox, flush=False) as cursor, cursor.connection:
                    ended = self.holders.end_leases(cursor, dead, self._wall())
                    for name in ended:
                        self.notify_on_commit(name)
                if ended:
                    text = "%s: a process has died, and %s that it had in hand can be received again"
                    count = sum(ended.values())
                    messages = "1 message" if count == 1 else f"{count} messages"
                    report(logging.WARNING, text, self.path, messages)
        for number in self.holders.left_over():
            with self.connection(mailbox) as cursor:
                self.holders.retire_left_over(cursor, number, self._wall())

    def retire(self, cursor: sqlite3.Cursor) -> None:
        """Be a holder no longer, unless messages are in hand; of a closed store, with a cursor that is closed next."""
        self.holders.closed = True
        if not cursor.connection.in_transaction:
            self.holders.retire(cursor, self._wall())

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: transactions begin and end where we say. The lock keeps threads apart.
        # A closed store opens what is there, and makes nothing: a new file would not have what is to be finalised.
        place = f"{self.path.as_uri()}?mode={'rw' if self.closed else 'rwc'}"
        patience = HASTY_SECONDS if self.is_hasty else BUSY_SECONDS
        database = sqlite3.connect(place, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            check_schema(database, self.path)  # before the mode is changed, which writes
            use_wal(database)
            database.execute(f"PRAGMA synchronous = {self._synchronous}")
            self.level = self._synchronous
            if self._synchronous == "FULL":
                database.execute(f"PRAGMA wal_autocheckpoint = {FULL_WAL_PAGES}")
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Close the connection and the notifier, and wake everybody; under no lock.

        If it is interrupted, a second one does what is left. In a process that was forked it does nothing: all of it
        is the parent's.
        """
        if os.getpid() != self._pid:
            return
        with self.lock:
            self.closed = True
            # Forgotten first: a message that is settled later must not find a connection that is closed.
            cursor, self._cursor = self._cursor, None
            try:
                if cursor is not None:
                    try:
                        self.retire(cursor)
                    finally:
                        cursor.connection.close()
            finally:
                try:
                    for waiters in self._waiters.values():
                        waiters.wake_all()
                finally:
                    self.notifier.close()

    def __del__(self) -> None:
        if getattr(self, "closed", True):
            return
        if os.getpid() != self._pid:
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)
        self.close()

    def outlive(self) -> list[object]:
        """Return what must not be dropped in a forked process, not even by the garbage collector."""
        return [self._cursor, self.notifier]

    def __repr__(self) -> str:
        return f"<SqliteStore {str(self.path)!r}{', closed' if self.closed else ''}>"


def _is_busy(error: BaseException) -> bool:
    """Say whether it was raised because another process has the file."""
    code = getattr(error, "sqlite_errorcode", 0)  # errors of the module itself have none
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_BUSY


def is_missing(path: Path) -> bool:
    """Say whether there is nothing; if that cannot be told, opening it says why."""
    try:
        os.stat(path)  # noqa: PTH116  `exists` keeps silent in newer Pythons
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def read_names(path: str | Path) -> list[str] | None:
    """Return the names of the mailboxes in a file, in order, without those of dead letters; None if there is no file.

    Nothing is made, and nothing is changed.

    Raises:
        InvalidParameterError: if it is not a file of mailboxes.
        MailboxConnectionError: if it cannot be read.
    """
    absolute = _check_path(path)
    if is_missing(absolute):
        return None
    try:
        # To read only would leave files behind: who cannot write cannot delete the log that SQLite makes for a look.
        database = sqlite3.connect(f"{absolute.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
        try:
            check_schema(database, absolute)
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'mailboxes'").fetchone() is None:
                return []
            found = database.execute("SELECT name FROM mailboxes ORDER BY name").fetchall()
            return [name for (name,) in found if not name.endswith(":dead")]
        finally:
            database.close()
    except FAULTS as error:
        raise MailboxConnectionError(str(path), f"{absolute}: {error}") from error


def _check_path(path: str | Path) -> Path:
    """Return where the file is, wherever the process goes from here."""
    if str(path) == ":memory:":
        raise InvalidParameterError(str(path), "path", str(path), "a file; for memory there is InMemoryMailbox")
    if "\0" in str(path):
        raise InvalidParameterError(str(path), "path", str(path), "a path without a zero byte")
    absolute = Path(path).absolute()
    try:
        is_folder = stat.S_ISDIR(os.stat(absolute).st_mode)  # noqa: PTH116  `is_dir` keeps silent in newer Pythons
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        is_folder = False  # SQLite says what is wrong, if anything is
    except OSError as error:  # too long; links in a circle
        expected = f"where a file can be ({error.strerror})"
        raise InvalidParameterError(str(path), "path", str(path), expected) from error
    if is_folder:
        raise InvalidParameterError(str(path), "path", str(path), "a file, and this is a folder")
    return absolute
