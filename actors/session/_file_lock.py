"""`FileLock`: says that a session has a file, as long as its process lives."""

from __future__ import annotations

import fcntl
import os
import weakref
from typing import TYPE_CHECKING, final

from loopwarden._forks import at_fork
from loopwarden._private_files import open_private_file
from loopwarden.errors import JournalLockedError, JournalUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FileLock"]

_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


@final
class FileLock:
    """A lock on the file ``<path>-lock``, which the system itself lets go when the process dies, however it dies.

    It is on a file of its own, because SQLite has locks on the other one, and keeps two sessions of one process apart
    as well as two processes. The file is never deleted: another session may be about to lock it.

    Raises:
        JournalLockedError: if another session has it; it says which process.
        JournalUnavailableError: if the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._descriptors: list[int] = []  # one or none; the thread that pops it closes it
        try:
            descriptor = open_private_file(f"{path}-lock")
        except OSError as error:
            raise JournalUnavailableError(path, f"it cannot be locked: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)  # for the error of a session that is refused
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace")
            os.close(descriptor)
            raise JournalLockedError(path, f"process {owner or 'unknown'} has it open") from None
        except OSError as error:
            os.close(descriptor)
            raise JournalUnavailableError(path, f"it cannot be locked: {error}") from error
        self._descriptors.append(descriptor)
        _locks.add(self)

    def release(self) -> None:
        """Let it go; from any thread, and again without effect."""
        self._close(unlock=True)

    def leave_to_the_parent(self) -> None:
        """Let a forked process have no part in it, without letting it go for the parent."""
        self._close(unlock=False)

    def _close(self, *, unlock: bool) -> None:
        try:
            descriptor = self._descriptors.pop()
        except IndexError:
            return
        try:
            # A process that was forked just now has the file open too, and only closing it would not unlock it.
            if unlock:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _leave_to_the_parent() -> None:
    # While a forked process had the file open, the parent's death would not let it go.
    for lock in tuple(_locks):
        lock.leave_to_the_parent()


at_fork(in_child=_leave_to_the_parent)
