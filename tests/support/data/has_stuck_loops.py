"""Serves twenty loops, of which three hang for ever.

``python has_stuck_loops.py <file> <budget> <priority> <seconds>``: for the first byte on standard input it says when
all are at rest, for the second one so many seconds pass.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from loopwarden import ChildSpec, MailboxLoop, Supervisor, serve
from loopwarden._blocking import CURRENT, SYSTEM
from loopwarden.mailbox import SqliteMailbox
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from loopwarden.mailbox import Message

CLEAN = 17


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


class Sayer(logging.Handler):
    """Says when the drain begins."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("drain begins"):
            say(record.getMessage())


def hang_in_sleep() -> None:
    nap = time.sleep  # noqa: TID251  to hang is what it is here for
    nap(3600)


def hang_in_lock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def hang_in_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


WAYS = {"sleep": hang_in_sleep, "lock": hang_in_lock, "socket": hang_in_socket}


def hang(way: str, _message: Message[str, Any]) -> None:
    say(f"hangs in {way}")
    with CURRENT.get().outside():  # so that time can pass
        WAYS[way]()


def work(message: Message[str, Any]) -> None:
    say(f"done: {message.body}")


def let_time_pass(clock: FakeClock, seconds: float) -> None:
    for each in (0.0, seconds):
        os.read(0, 1)
        clock.advance(each)
        say(f"at rest, {each:g} s later")


def main() -> int:
    file, budget, priority, seconds = sys.argv[1:]
    logger = logging.getLogger("loopwarden")
    logger.setLevel(logging.INFO)
    logger.addHandler(Sayer())
    with FakeClock() as clock:
        SYSTEM.start_thread(partial(let_time_pass, clock, float(seconds)), "time")
        return serve_all(file, float(budget), priority)


def serve_all(file: str, budget: float, priority: str) -> int:
    names = [*WAYS, *(f"clean-{number}" for number in range(CLEAN))]
    boxes: dict[str, SqliteMailbox[str, Any]] = {name: SqliteMailbox(file, name, body=str) for name in names}
    for name, box in boxes.items():
        box.send(name)  # by the clock of this process
    children = [
        ChildSpec.model_validate(
            {
                "id": name,
                "start": partial(MailboxLoop, boxes[name], partial(hang, name) if name in WAYS else work),
                "priority": priority,
            }
        )
        for name in names
    ]
    report = serve(Supervisor("root", children=children), mailboxes=list(boxes.values()), shutdown_timeout=budget)
    say(report.model_dump_json())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
