"""Leases messages of a file, says how many, and waits; with a third argument, a forked process waits too.

Or it only looks at the locks of others, says how many messages have come back, and waits.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from loopwarden.mailbox import SqliteMailbox

_open = os.open


def fork_and_stay() -> None:
    if not os.fork():
        os.close(1)
        os.read(0, 1)  # ends with the pipe
        os._exit(0)


def open_and_fork(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Do what `os.open` does; while it lets other threads run, one of them forks."""
    descriptor = _open(path, flags, mode, dir_fd=dir_fd)
    if flags & os.O_EXCL:
        fork_and_stay()
    return descriptor


def look_and_fork(jobs: SqliteMailbox[Any, Any]) -> int:
    """Look at the locks of others, in vain, because the file is busy; meanwhile another thread forks."""
    store = jobs._store
    with suppress(TimeoutError), store.lock, store.holders.dead():
        fork_and_stay()
        raise TimeoutError
    return len(jobs.reap().returned)


if __name__ == "__main__":
    path, count, *forks = sys.argv[1:]
    jobs: SqliteMailbox[Any, Any] = SqliteMailbox(path, "jobs")
    if forks == ["while it looks"]:
        os.write(1, f"brings back {look_and_fork(jobs)}\n".encode())
        os.read(0, 1)
        sys.exit()
    if forks == ["while it locks"]:
        os.open = open_and_fork
    held = [*jobs.receive(max_messages=int(count)), *jobs.dead_letters.receive(max_messages=int(count))]
    if forks == ["and ends"]:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    elif forks == ["and stays"]:
        fork_and_stay()
    os.write(1, f"holds {len(held)}\n".encode())
    os.read(0, 1)
