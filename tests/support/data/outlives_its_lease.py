"""Works on each message for longer than its lease: ``python outlives_its_lease.py <file> <journal> <workers>``.

First it says its id, and then how far it is with each message. What it has done is a line of the journal.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from loopwarden import ChildSpec, MailboxLoop, Supervisor, Token, serve
from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from loopwarden.mailbox import Message

#: Real seconds: they are what is tried.
LEASE = 5
HANDLER = 20
THRESHOLD = 60
#: When a message is in its middle, which is between two renewals of its lease.
MIDDLE = 9


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # at once, and from several threads in whole lines


def main() -> int:
    path, journal, workers = sys.argv[1:]
    jobs: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs", body=str)
    effects = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    loops: list[MailboxLoop[str]] = []

    def handle(message: Message[str, Any]) -> None:
        which = f"{message.body} {message.delivery_count}"
        say(f"begins {which}")
        for second in range(HANDLER):
            if second == MIDDLE:
                say(f"is in the middle of {which}")
            Token().wait(1)
        os.write(effects, f"{message.body} {os.getpid()} {message.delivery_count}\n".encode())
        say(f"did {which}")

    def start() -> MailboxLoop[str]:
        loops.append(MailboxLoop(jobs, handle, concurrency=int(workers)))
        return loops[-1]

    say(str(os.getpid()))
    report = serve(
        Supervisor("root", children=[ChildSpec(id="jobs", start=start)]),
        mailboxes=[jobs],
        visibility_timeout=LEASE,
        longest_handler=HANDLER,
        stall_threshold=THRESHOLD,
    )
    say(f"settled {sum(each.processed for loop in loops for each in loop.progress)}")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
