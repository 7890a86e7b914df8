"""A process that receives, for `servers.py`: ``_receiver.py mailbox|list <url>`` says when it has each message.

It says so by a clock that all processes have in common, until a message is empty.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, cast

import redis

from loopwarden.mailbox import RedisMailbox

#: Where the messages are.
NAME = "poll"
POLL = 20


def from_mailbox(url: str) -> None:
    """Receive."""
    box: RedisMailbox[str, None] = RedisMailbox(url, NAME, body=str)
    with contextlib.closing(box):
        print("ready", flush=True)
        while True:
            for message in box.receive(wait_time_seconds=POLL):
                now = time.perf_counter()
                message.acknowledge()
                if not message.body:
                    return
                print(now, flush=True)


def from_list(url: str) -> None:
    """Do the same with what the server has for it."""
    client = cast("Any", redis.Redis).from_url(url, socket_timeout=2 * POLL)
    with contextlib.closing(client):
        print("ready", flush=True)
        while True:
            found = client.brpop([NAME], POLL)
            now = time.perf_counter()
            if found is not None:
                if not found[1]:
                    return
                print(now, flush=True)


if __name__ == "__main__":
    {"mailbox": from_mailbox, "list": from_list}[sys.argv[1]](sys.argv[2])
