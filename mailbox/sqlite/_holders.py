"""`Holders`: which stores have leases in a SQLite file, and which of them have died with their process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import re
import secrets
import sqlite3
import weakref
from typing import TYPE_CHECKING, final

from loopwarden._forks import at_fork
from loopwarden._log import report
from loopwarden._private_files import open_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator
    from pathlib import Path

__all__ = ["Holders"]

#: Seconds between two looks at the locks of the others.
LOOK_SECONDS = 1.0
#: Milliseconds that a store which is closed waits for another process before it leaves its row to others.
_CLOSING_BUSY = 100
#: How often a lock file is made that others take, or delete with its folder, at the same moment.
_TRIES = 5
#: What a lock file is called. Nothing else in the folder is ours to lock, or to delete.
_NAME = re.compile("[0-9a-f]{16}")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_ALONE = fcntl.LOCK_EX | fcntl.LOCK_NB

_LEASED = (
    "mailbox IN (SELECT name FROM mailboxes UNION ALL SELECT name || ':dead' FROM mailboxes) AND due > ? AND holder = ?"
)
_WHERE_LEASED = f"SELECT mailbox, count(*) FROM messages WHERE {_LEASED} GROUP BY mailbox"  # noqa: S608  no part of these comes from outside
_END_LEASES = f"UPDATE OR IGNORE messages SET due = ?, holder = NULL WHERE {_LEASED}"  # noqa: S608  as above
_RETIRE = f"DELETE FROM holders WHERE NOT EXISTS (SELECT 1 FROM messages WHERE {_LEASED}) AND number = ?"  # noqa: S608  as above

#: The locks of this process by number, each with its folder and with whose it is. They are here, and not at their
#: holders, because a lock outlives its store for as long as there are leases of it.
_held: dict[int, tuple[int, Path, weakref.ref[Holders]]] = {}
#: The descriptors of all lock files that this process has open, its own and those of dead holders; and what it is just
#: opening. A process that is forked closes them: while it had them open the locks would stay, whatever this one does.
_descriptors: set[int] = set()
_opening: set[Path] = set()


@final
class Holders:
    """The stores that have leases in one file, this one among them.

    A store that leases something has a number, which stands in the file and with each of its leases, and an exclusive
    lock on a file of that number, in a folder beside the mailboxes (``mail.db-holders``). The system lets the lock go
    when the process dies, however it dies. So a holder whose lock another one gets is dead, and its leases are over;
    one that is merely slow, or stopped, keeps its lock. A number is drawn by lot, and never used again.

    A store that is closed keeps its lock while messages of it are in hand: they may still be settled. Then the lock
    goes with the last of them, or when another store of the process finds that their leases have ended, or with the
    process.

    Where there can be no lock, it is logged once, and leases carry the number 0: they end at their time only. So do
    those of a holder whose lock file was deleted, because it may be alive.

    All methods are called under the store's lock.

    Args:
        path: The file of the mailboxes.
        monotonic: The time.
        is_alone: True if no other process can take part.
    """

    def __init__(self, path: Path, monotonic: Callable[[], float], *, is_alone: bool) -> None:
        real = path.resolve()
        self._folder = real.with_name(f"{real.name}-holders")
        self._monotonic = monotonic
        self._number = 0
        #: The number, once it is for good: it is committed, or is 0 and stays so. Asked with every receive.
        self.settled: int | None = 0 if is_alone else None
        self._next_look = math.inf if is_alone else -math.inf
        #: True once the store is closed.
        self.closed = False

    # This store.

    def number(self, cursor: sqlite3.Cursor, now: float) -> int:
        """Return what the leases of this store are to carry, until that is settled; in a transaction that writes."""
        if not self._number:
            try:
                self._number = self._lock_new()
            except OSError as error:
                self.settled = 0
                text = "messages in hand of processes that die come back only when their leases end: %s"
                report(logging.WARNING, text, error)
                return 0
        if cursor.execute("INSERT OR IGNORE INTO holders VALUES (?)", (self._number,)).rowcount:
            self._forget_unknown(cursor, now)
        else:  # an earlier transaction was committed
            self.settled = self._number
        return self._number

    def _forget_unknown(self, cursor: sqlite3.Cursor, now: float) -> None:
        """Delete rows without a lock file, as in the copy of a file, when their leases have ended."""
        with contextlib.suppress(OSError):
            folder = open_private_folder(self._folder, make=False)
            try:
                known = _numbers_in(folder)
            finally:
                os.close(folder)
            for (number,) in cursor.execute("SELECT number FROM holders").fetchall():
                if number not in known:
                    cursor.execute(_RETIRE, (now, number, number))

    def _lock_new(self) -> int:
        failure: OSError | None = None
        for _ in range(_TRIES):
            number = secrets.randbits(62) + 1
            try:
                if self._lock_file(number):
                    return number
            except (FileNotFoundError, BlockingIOError) as error:  # others delete the folder, or try the lock, just now
                failure = error
        raise failure or OSError(f"no lock file stays in {self._folder}")

    def _lock_file(self, number: int) -> bool:
        folder = open_private_folder(self._folder, make=True)
        try:
            descriptor = _open_lock(self._folder, folder, number, os.O_CREAT | os.O_EXCL)
            _held[number] = (descriptor, self._folder, weakref.ref(self))
            fcntl.flock(descriptor, _ALONE)
            # Another process may have taken the file for one that was left behind, and deleted it.
            is_there = os.fstat(descriptor).st_nlink > 0
        except BaseException:
            self._let_go(number)
            raise
        finally:
            os.close(folder)
        if not is_there:
            self._let_go(number)
        return is_there

    def retire(self, cursor: sqlite3.Cursor, now: float) -> None:
        """Let the lock of a closed store go, unless messages of it are in hand; never raises an error of SQLite.

        Args:
            cursor: Of a connection that is closed next, with nothing begun.
            now: The wall time.
        """
        if self._number in _held:
            with contextlib.suppress(sqlite3.Error):  # it stays, and others see to it
                cursor.execute(f"PRAGMA busy_timeout = {_CLOSING_BUSY}")
                cursor.execute("PRAGMA synchronous = NORMAL")
                self.retire_left_over(cursor, self._number, now)

    def _let_go(self, number: int) -> None:
        """Delete a lock file of this process, and let its lock go."""
        known = _held.pop(number, None)
        if known is None:
            return
        try:
            self._delete([number])
        finally:
            _close_lock(known[0])

    # The others.

    def until_look(self) -> float:
        """Return in how many seconds the locks of the others may be looked at again."""
        return max(0.0, self._next_look - self._monotonic())

    def is_look_due(self) -> bool:
        """Say whether to look at the locks of the others now; if so, not again before a second has passed."""
        now = self._monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        return True

    @contextlib.contextmanager
    def dead(self) -> Generator[list[int]]:
        """Give the numbers of dead holders. They are locked until the end, and then their files are deleted."""
        locked: dict[int, int] = {}
        try:
            with contextlib.suppress(OSError):  # there is no folder, or it is not ours and tells nothing
                folder = open_private_folder(self._folder, make=False)
                try:
                    for number in _numbers_in(folder) - _held.keys():
                        _try_lock(self._folder, folder, number, locked)
                finally:
                    os.close(folder)
            yield list(locked)
            if locked:
                self._delete(locked)
        finally:
            for descriptor in locked.values():
                _close_lock(descriptor)

    def end_leases(self, cursor: sqlite3.Cursor, dead: Collection[int], now: float) -> dict[str, int]:
        """End the leases of dead holders; return how many there were in each mailbox. In a transaction that writes.

        The messages are due now, so whatever is done with ended leases is done with them by their own mailbox.
        """
        ended: dict[str, int] = {}
        for number in dead:
            for mailbox, count in cursor.execute(_WHERE_LEASED, (now, number)).fetchall():
                ended[mailbox] = ended.get(mailbox, 0) + count
            cursor.execute(_END_LEASES, (now, now, number))
            cursor.execute("DELETE FROM holders WHERE number = ?", (number,))
        return ended

    def left_over(self) -> list[int]:
        """Return the numbers of stores of this process that were closed with messages in hand."""
        held = [(number, holder()) for number, (_, folder, holder) in tuple(_held.items()) if folder == self._folder]
        return [number for number, holder in held if holder is None or holder.closed]

    def retire_left_over(self, cursor: sqlite3.Cursor, number: int, now: float) -> None:
        """Let a lock of this process go, unless there still are leases of it; as one statement that writes."""
        cursor.execute(_RETIRE, (now, number, number))
        if cursor.execute("SELECT 1 FROM holders WHERE number = ?", (number,)).fetchone() is None:
            self._let_go(number)

    def _delete(self, numbers: Collection[int]) -> None:
        """Delete lock files, and their folder if no other one is there."""
        with contextlib.suppress(OSError):
            folder = open_private_folder(self._folder, make=False)
            try:
                for number in numbers:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(_name(number), dir_fd=folder)
            finally:
                os.close(folder)
            self._folder.rmdir()


def _name(number: int) -> str:
    return f"{number:016x}"


def _numbers_in(folder: int) -> set[int]:
    names = os.listdir(folder)
    return {int(name, 16) for name in names if _NAME.fullmatch(name)}


def _open_lock(path: Path, folder: int, number: int, flags: int = 0) -> int:
    """Open a lock file, by the descriptor of its folder, so that a process which is forked at any moment closes it."""
    file = path / _name(number)
    _opening.add(file)
    try:
        descriptor = os.open(_name(number), _FLAGS | flags, 0o600, dir_fd=folder)
        _descriptors.add(descriptor)
    finally:
        _opening.discard(file)
    return descriptor


def _close_lock(descriptor: int) -> None:
    # First it is forgotten: when it is closed, another file may have its number.
    _descriptors.discard(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked just now may have it open too
    finally:
        os.close(descriptor)


def _try_lock(path: Path, folder: int, number: int, locked: dict[int, int]) -> None:
    """Lock the file of another holder, if it is dead."""
    with contextlib.suppress(OSError):
        descriptor = _open_lock(path, folder, number)
        try:
            fcntl.flock(descriptor, _ALONE)
        except BaseException:  # it is alive, as a rule
            _close_lock(descriptor)
            raise
        locked[number] = descriptor


def _leave_to_the_parent() -> None:
    for descriptor in (*_descriptors, *_descriptors_of(_opening)):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _opening.clear()
    _held.clear()


def _descriptors_of(files: set[Path]) -> set[int]:
    """Return what this process has open of some files, without its descriptors being known."""
    wanted: set[tuple[int, int]] = set()
    for file in files:
        with contextlib.suppress(OSError):
            found = file.lstat()
            wanted.add((found.st_dev, found.st_ino))
    descriptors: set[int] = set()
    if wanted:
        with contextlib.suppress(OSError):
            for name in os.listdir("/dev/fd"):  # noqa: PTH208  as above
                with contextlib.suppress(OSError):
                    found = os.fstat(int(name))
                    if (found.st_dev, found.st_ino) in wanted:
                        descriptors.add(int(name))
    return descriptors


at_fork(in_child=_leave_to_the_parent)
