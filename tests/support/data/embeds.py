"""A program with signals, a wake-up descriptor and threads of its own, in which a tree is served for a while.

``python embeds.py <file>``: it says as JSON what it had before and after.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from loopwarden import ChildSpec, MailboxLoop, Supervisor, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden._log_writer import LOG_THREAD
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.mailbox import SqliteMailbox
from loopwarden.supervision import Service

if TYPE_CHECKING:
    from types import FrameType

    from loopwarden.mailbox import Message

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def threads() -> dict[int | None, Any]:
    # But for the one that writes records, which lives as long as the process.
    return {thread.ident: thread for thread in threading.enumerate() if thread.name != LOG_THREAD}


def main() -> None:
    called: list[str] = []

    def mine(number: int, _frame: FrameType | None) -> None:
        called.append(signal.Signals(number).name)
        say(f"mine: {signal.Signals(number).name}")

    near, far = socket.socketpair()
    far.settimeout(0)
    near.settimeout(60)
    for each in SIGNALS:
        signal.signal(each, mine)
    signal.set_wakeup_fd(far.fileno())
    over: Ticket[None] = Ticket()
    own = [SYSTEM.start_thread(over.wait, f"own-{number}") for number in range(3)]
    before = threads()
    jobs: SqliteMailbox[str, Any] = SqliteMailbox(sys.argv[1], "jobs")

    def handle(message: Message[str, Any]) -> None:
        say(f"done: {message.body}")
        if message.body == "end":
            service.shut_down("asked by a handler")

    tree = Supervisor("root", children=[ChildSpec(id="jobs", start=lambda: MailboxLoop(jobs, handle))])
    service = Service(tree, mailboxes=[jobs], health_port=0)
    report = service.run()

    deadline = SYSTEM_CLOCK.monotonic() + 60
    while left := [other for number, other in threads().items() if number not in before]:
        if SYSTEM_CLOCK.monotonic() > deadline:
            break
        left[0].join(60)  # one that has done its work may need a moment to be gone
    fd_is_back = signal.set_wakeup_fd(far.fileno()) == far.fileno()
    handlers_are_back = all(signal.getsignal(each) is mine for each in SIGNALS)
    bytes_before = list(near.recv(64))
    meanwhile = list(called)
    os.kill(os.getpid(), signal.SIGTERM)
    found = {
        "reason": report.reason,
        "code": report.exit_code,
        "fd is back": fd_is_back,
        "handlers are back": handlers_are_back,
        "threads left": [other.name for other in left],
        "own threads are there": before.keys() <= threads().keys(),
        "own descriptor got": bytes_before,
        "own handlers called meanwhile": meanwhile,
        "own handlers called after": called[len(meanwhile) :],
        "own descriptor got after": list(near.recv(64)),
    }
    over.complete(None)
    for thread in own:
        thread.join()
    say(json.dumps(found))


if __name__ == "__main__":
    main()
