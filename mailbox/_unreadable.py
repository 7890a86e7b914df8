"""What becomes of a message that cannot be read: on every back end a dead letter with its raw bytes, never a crash.

`Codec.decode` says that a body cannot be read. Each back end gives the message up by what is decided here, and makes
the letter in its store: `_give_up_unread` in `sqlite/_queue.py`, `take` in `memory/_mailbox.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loopwarden.mailbox._dead_letter import DeadLetterNotice

if TYPE_CHECKING:
    from loopwarden.mailbox._token import Token

__all__ = ["BODY", "HEADERS", "most_unread", "unread_notice"]

#: Why it was given up.
BODY = "its body cannot be read"
HEADERS = "its headers cannot be read"
#: How many of them a receive of a loop gives up at most: it returns then, so that the loop counts them as failures,
#: and its breaker opens before the whole queue is given up.
MOST_UNREAD = 10


def unread_notice(mailbox: str, message_id: str, reason: str, error: Exception, deliveries: int) -> DeadLetterNotice:
    """Return what is told of it: `unread`, so that the loop that would have handled it counts a failure."""
    return DeadLetterNotice(mailbox, message_id, reason, str(error), deliveries, unread=True)


def most_unread(token: Token | None) -> float:
    """Return how many of them a receive may give up; one without a token belongs to no loop, and has no limit."""
    return math.inf if token is None else 1 if token.tries_one else MOST_UNREAD
