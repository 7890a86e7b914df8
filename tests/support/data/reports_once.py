"""Runs a periodic loop that runs once in a fleet: ``reports_once.py FILE EVERY RUNS LOG``.

Without a log it tells each run in a line, and waits in it for a byte. With one it writes there when each run begins and
ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loopwarden import PeriodicLoop
from loopwarden.actors.loop._current import current
from loopwarden.mailbox import SqliteMailbox


def main(file: str, every: str, runs: str, log: str = "") -> None:
    def wait() -> None:
        print("began", current.message_id, current.delivery, flush=True)
        sys.stdin.buffer.read(1)

    def write() -> None:
        for what in ("began", "ended"):
            with Path(log).open("a", encoding="utf-8") as lines:
                lines.write(f"{what} {current.message_id}\n")

    mailbox: SqliteMailbox[str, None] = SqliteMailbox(file, "report", max_size=1)
    PeriodicLoop(write if log else wait, every=float(every), once_per=mailbox).run(max_iterations=int(runs))
    mailbox.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
