"""Waiting: for an answer that comes in time, or another one instead; for all of several; and for how long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from loopwarden._arguments import is_number
from loopwarden._log import describe, report
from loopwarden._ticket import Ticket, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden._blocking import Blocking
    from loopwarden.clock import Clock

__all__ = ["checked_timeout", "in_time", "when_all"]

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


def when_all(tickets: Sequence[Ticket[Any]], blocking: Blocking) -> Ticket[None]:
    """Return a ticket that resolves when all others have, whatever their answers are."""
    done: Ticket[None] = Ticket(blocking)
    missing = [None] * len(tickets)

    def arrived(_: Ticket[Any]) -> None:
        missing.pop()  # one atomic step, so that the last of them finds it empty
        if not missing:
            write(done)

    if not missing:
        write(done)
    for ticket in tickets:
        ticket.on_ready(arrived)
    return done


def checked_timeout(timeout: float) -> float:
    """Return a time-out that is one.

    Raises:
        ValueError: if it is no number of seconds from 0 on.
    """
    if not is_number(timeout) or timeout < 0:
        raise ValueError(f"timeout must be a number of seconds from 0 on, got {describe(timeout)}")
    return timeout
