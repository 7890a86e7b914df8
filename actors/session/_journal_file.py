"""`JournalFile`: one SQLite file, with the journals of a session and its children."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from typing import TYPE_CHECKING, final

from loopwarden._private_files import make_private_file
from loopwarden._sqlite_file import outlive_forks, statements_of, use_wal
from loopwarden.actors.session._file_lock import FileLock
from loopwarden.actors.session._journal_marks import JournalMarks
from loopwarden.actors.session._journal_record import Record
from loopwarden.errors import (
    JournalDamagedError,
    JournalDeletedError,
    JournalError,
    JournalLockedError,
    JournalUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from loopwarden._blocking import Blocking

__all__ = ["JournalFile"]

#: Seconds that SQLite waits for another writer, such as a backup.
BUSY_SECONDS = 30.0
#: Marks a file as a journal, in SQLite's ``application_id``: "LWJ" and the version, to be raised with the schema.
APPLICATION_ID = 0x4C574A01
#: The package, and the file in it, that has the tables.
SCHEMA = ("loopwarden.actors.session", "journal.sql")
#: What SQLite answers if the file is not as we made it. Our statements are good, so an error in one is in the schema.
DAMAGE = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH))


@final
class JournalFile:
    """The file is in WAL mode, locked for others, and has one connection and one lock for all sessions in it.

    With ``synchronous="NORMAL"`` what was committed survives the death of the process at any instant, with ``"FULL"``
    a power cut too, at the price of a flush with each commit. Its calls block; opening it reads all of it once.

    Raises:
        JournalLockedError: if another session has it.
        JournalDamagedError: if it is no SQLite file, or a broken one; it names the place, as well as it is known.
        JournalError: if it is another kind of file.
        JournalUnavailableError: if it cannot be opened now.
    """

    def __init__(self, path: Path, *, synchronous: str, blocking: Blocking) -> None:
        try:
            # One file has one name, or one session could lock it by a link and another by the file itself.
            self.path = path.resolve()
            is_something_else = _is_something_else(self.path)
        except (OSError, ValueError, RuntimeError) as error:  # too long; with a zero byte; links in a circle
            raise JournalUnavailableError(path, f"it is not a possible path of a file: {error}") from error
        if is_something_else:
            raise JournalError(self.path, "it is a folder or a device, not a file")
        self._lock = blocking.lock()  # guards _connection and _marks; called while it is held: SQLite
        self._connection: sqlite3.Connection | None = None
        self._marks: JournalMarks | None = None
        self._ownership = FileLock(self.path)
        try:
            self._marks = JournalMarks(self.path)
            make_private_file(self.path)  # SQLite's own files are made alike
            self._connection = self._connect(synchronous)
            self._identity = _identity_of(self.path)
            self._epoch = self._take_over(self._connection)
        except BaseException:
            self.close()
            raise
        outlive_forks(self)

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Give the connection for one step, which is done as a whole or not at all.

        Raises:
            JournalLockedError: if another session has taken the file over; then nothing can be written any more.
            JournalDeletedError: if the file is not there any more; what was written is lost.
            JournalUnavailableError: if the file cannot be read or written now; then nothing was.
        """
        with self._lock:
            connection = self._connection
            if connection is None:
                raise JournalUnavailableError(self.path, "it is closed")
            with self._our_errors():
                if connection.in_transaction:  # a rollback has failed
                    connection.rollback()
                connection.execute("BEGIN IMMEDIATE")
                with connection:
                    [epoch] = connection.execute("SELECT epoch FROM owner").fetchone()
                    if epoch != self._epoch:
                        raise JournalLockedError(self.path, "another session has taken it over")
                    yield connection
            # After the commit, or it could go just in between. By its name: closing another descriptor of the file
            # would take away SQLite's locks.
            if _identity_of(self.path) != self._identity:
                text = "it was deleted or replaced while it was open, so its session cannot go on"
                raise JournalDeletedError(self.path, text)

    def marked(self, session: str) -> int:
        """Return the number of the last event that a session is known to have committed; 0 if that is not known."""
        with self._lock:
            return 0 if self._marks is None else self._marks.read(session)

    def mark(self, session: str, sequence: int) -> None:
        """Note that a session has committed its events up to that one; it never raises."""
        with self._lock:
            if self._marks is not None:
                self._marks.write(session, sequence)

    def give_up(self) -> None:
        """Let another session have the file, although a thread of ours may be stuck in the middle of something.

        What that thread writes afterwards is refused, as soon as the other session has opened the file.
        """
        self._ownership.release()

    def close(self) -> None:
        """Close the connection and let the file go; again without effect."""
        with self._lock:
            connection, self._connection = self._connection, None
            try:
                if self._marks is not None:
                    self._marks.close()
                if connection is not None:
                    connection.close()
            finally:
                self._ownership.release()

    def outlive(self) -> list[object]:
        """Return what must not be dropped in a forked process."""
        return [self._connection]

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        with self._our_errors():
            # isolation_level=None: transactions begin and end where we say. The lock keeps threads apart.
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._refuse_other_files(connection)
                self._refuse_damage(connection)
                use_wal(connection)
                connection.execute(f"PRAGMA synchronous = {synchronous}")
            except BaseException:
                connection.close()
                raise
        return connection

    def _refuse_other_files(self, connection: sqlite3.Connection) -> None:
        """Look at the file before anything is written to it."""
        [mark] = connection.execute("PRAGMA application_id").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if mark != APPLICATION_ID and (mark or tables):
            raise JournalError(self.path, "it is not the journal of a session, or has another version")

    def _refuse_damage(self, connection: sqlite3.Connection) -> None:
        """Read all pages: a search by key is led past records whose key is damaged, and finds fewer than there are."""
        # Not quick_check, which does not look at the order of the keys, and takes as long: there is no other index.
        [finding] = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if finding == "ok":
            return
        before: Record | None = None
        with contextlib.suppress(sqlite3.Error, UnicodeError):
            for row in connection.execute(f"SELECT {', '.join(Record._fields)} FROM records"):  # noqa: S608  six names
                record = Record(*row)
                if not record.is_intact:
                    break
                before = record
        if before is None:
            raise JournalDamagedError(self.path, finding)
        text = f"{finding}, after record {before.sequence} of session {before.session!r}"
        raise JournalDamagedError(self.path, text, before.session, before.sequence + 1)

    def _take_over(self, connection: sqlite3.Connection) -> int:
        with self._our_errors():
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                for statement in statements_of(*SCHEMA):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute("UPDATE owner SET epoch = epoch + 1")
                [epoch] = connection.execute("SELECT epoch FROM owner").fetchone()
        return int(epoch)

    @contextlib.contextmanager
    def _our_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            # Our number is taken: a commit that seemed to fail was done. What is in the file is the truth.
            raise JournalLockedError(self.path, f"it has a record that this session does not know: {error}") from error
        except UnicodeDecodeError as error:  # in what SQLite says of the schema
            raise JournalDamagedError(self.path, str(error)) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            is_text = code is None and isinstance(error, sqlite3.OperationalError)  # Python's own: no UTF-8
            if is_text or (code is not None and code & 0xFF in DAMAGE):  # the lowest byte is the kind
                raise JournalDamagedError(self.path, str(error)) from error
            raise JournalUnavailableError(self.path, str(error)) from error

    def __repr__(self) -> str:
        return f"<JournalFile {str(self.path)!r}{', closed' if self._connection is None else ''}>"


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another of the same name; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  with each commit, and this is faster
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _is_something_else(path: Path) -> bool:
    """Say whether there is something at a path that is no file; not by `Path.exists`, which newer Pythons keep silent.

    Raises:
        OSError: if there can be nothing at such a path.
    """
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116  as above
    except (FileNotFoundError, NotADirectoryError):
        return False
