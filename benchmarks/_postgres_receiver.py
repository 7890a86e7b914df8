"""A process that receives, for `postgres.py`: ``_postgres_receiver.py mailbox|listen <url>`` says when it has each.

By a clock that all processes have in common, until a message is empty.
"""

from __future__ import annotations

import contextlib
import sys
import time

import psycopg

from loopwarden.mailbox import PostgresMailbox

#: Where the messages are.
NAME = "poll"
POLL = 20


def from_mailbox(url: str) -> None:
    """Receive."""
    box: PostgresMailbox[str, None] = PostgresMailbox(url, NAME, body=str)
    with contextlib.closing(box):
        print("ready", flush=True)
        while True:
            for message in box.receive(wait_time_seconds=POLL):
                now = time.perf_counter()
                message.acknowledge()
                if not message.body:
                    return
                print(now, flush=True)


def from_notifications(url: str) -> None:
    """Do the same with what the server has for it: wait, and delete what is there."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        connection.execute("LISTEN poll")
        cursor = connection.cursor(binary=True)
        print("ready", flush=True)
        while True:
            for _ in connection.notifies(timeout=POLL, stop_after=1):
                pass
            for (body,) in cursor.execute("DELETE FROM bare RETURNING body").fetchall():
                now = time.perf_counter()
                if not body:
                    return
                print(now, flush=True)


if __name__ == "__main__":
    {"mailbox": from_mailbox, "listen": from_notifications}[sys.argv[1]](sys.argv[2])
