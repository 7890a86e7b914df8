"""Serves twenty loops, of which three hang for ever: ``python has_stuck_loops.py <file> <budget> <priority>``."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from loopwarden import ChildSpec, MailboxLoop, Supervisor, serve
from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from loopwarden.mailbox import Message

CLEAN = 17


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


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
    WAYS[way]()


def work(message: Message[str, Any]) -> None:
    say(f"done: {message.body}")


def main() -> int:
    file, budget, priority = sys.argv[1:]
    names = [*WAYS, *(f"clean-{number}" for number in range(CLEAN))]
    boxes: dict[str, SqliteMailbox[str, Any]] = {name: SqliteMailbox(file, name, body=str) for name in names}
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
    report = serve(
        Supervisor("root", children=children), mailboxes=list(boxes.values()), shutdown_timeout=float(budget)
    )
    say(report.model_dump_json())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
