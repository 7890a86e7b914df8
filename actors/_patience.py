"""An answer that comes in time, or another one instead."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from loopwarden._log import report
from loopwarden._ticket import Ticket, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.clock import Clock

__all__ = ["in_time"]

R = TypeVar("R")


def in_time(answer: Ticket[R], timeout: float, late: Callable[[], R], clock: Clock, what: str) -> Ticket[R]:
    """Return a ticket for ``answer``, or for ``late()`` if ``timeout`` passes first.

    Args:
        answer: What is waited for.
        timeout: Seconds of the clock; with zero it is late unless it is there.
        late: Makes the other answer; called on the clock's thread.
        clock: The time.
        what: Is said in the log if there is no thread for the timer, and so no time-out.
    """
    reply = answer.map(lambda result: result)
    if timeout == 0:
        write(reply, late())
        return reply
    try:
        timer = clock.call_later(timeout, lambda: write(reply, late()))
    except RuntimeError as error:
        report(logging.WARNING, "%s has no time-out", what, error=error)
    else:
        reply.on_ready(lambda _: timer.cancel())
    return reply
