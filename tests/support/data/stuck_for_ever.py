"""A process in which handlers hang for ever; its watchdog ends it.

Called with the file of the mailboxes, the way to hang, and what the main thread does. The mailbox ``stuck`` has
messages whose handlers hang; of ``others`` one is in hand and all the rest are prefetched.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from loopwarden.actors import LoopActor, MailboxLoop, beat
from loopwarden.mailbox import SqliteMailbox
from loopwarden.supervision import ChildSpec, Supervisor, WatchdogActor

if TYPE_CHECKING:
    from loopwarden.mailbox import Message


def hang_in_sleep(_message: Message[str, Any]) -> None:
    nap = time.sleep  # noqa: TID251  to hang is what it is here for
    nap(3600)


def hang_in_lock(_message: Message[str, Any] | None) -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def hang_in_socket(_message: Message[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


WAYS = {"sleep": hang_in_sleep, "lock": hang_in_lock, "socket": hang_in_socket}


def work_until_told(message: Message[str, Any]) -> None:
    assert message.token is not None
    while not message.token.wait(0.05):
        beat()
    raise InterruptedError("told to stop")


def leave_slowly(code: int) -> None:
    """End the process, but not before all threads that were woken by the end of the root have had a turn."""
    nap = time.sleep  # noqa: TID251  as if this thread got no turn
    nap(0.2)
    os._exit(code)


def main() -> None:
    path, way, end = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    stuck: SqliteMailbox[str, Any] = SqliteMailbox(path, "stuck", max_deliveries=None)
    others: SqliteMailbox[str, Any] = SqliteMailbox(path, "others")
    root = Supervisor.start("root")
    # It does not stop, whatever time it has; the others do, and have a minute for it.
    root.spawn(ChildSpec(id="stuck", start=lambda: MailboxLoop(stuck, WAYS[way], concurrency=2), shutdown=1.0))
    LoopActor.start(MailboxLoop(others, work_until_told, prefetch=10), "others")
    is_waiting = end == "main waits for the root"
    leave = leave_slowly if is_waiting else os._exit
    WatchdogActor.start([root], stall_threshold=0.3, max_zombies=1, patience=60.0, leave=leave)
    if is_waiting:
        root.wait()
    else:
        hang_in_lock(None)


if __name__ == "__main__":
    main()
