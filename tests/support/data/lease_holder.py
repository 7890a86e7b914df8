"""Leases messages of a file, says how many, and waits; with a third argument, a forked process waits too."""

from __future__ import annotations

import os
import sys
from typing import Any

from loopwarden.mailbox import SqliteMailbox

if __name__ == "__main__":
    path, count, *forks = sys.argv[1:]
    jobs: SqliteMailbox[Any, Any] = SqliteMailbox(path, "jobs")
    held = [*jobs.receive(max_messages=int(count)), *jobs.dead_letters.receive(max_messages=int(count))]
    if forks == ["and ends"]:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    elif forks == ["and stays"] and not os.fork():
        os.close(1)
        os.read(0, 1)  # ends with the pipe
        os._exit(0)
    os.write(1, f"holds {len(held)}\n".encode())
    os.read(0, 1)
