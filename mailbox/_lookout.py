"""Waiting until there is something to receive, without receiving it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from loopwarden.mailbox._token import Token, wait_with
from loopwarden.mailbox._validation import check_seconds, check_token

if TYPE_CHECKING:
    from loopwarden._blocking import Gate, Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._waiters import Waiters

__all__ = ["Lookout", "wait_visible"]


class Lookout(Protocol):
    """A mailbox, as one sees it who only looks."""

    @property
    def name(self) -> str:
        """The mailbox's name."""
        ...

    @property
    def lock(self) -> Lock:
        """Guards the mailbox, and who waits for it."""
        ...

    @property
    def waiters(self) -> Waiters: ...

    def look(self) -> tuple[bool, float]:
        """Say whether something is there, and in how many seconds to look again at the latest; under the lock.

        Raises:
            MailboxClosedError: if the mailbox is closed.
        """
        ...


def wait_visible(lookout: Lookout, clock: Clock, timeout: float, token: Token | None) -> bool:
    """Block until something can be received, the token is stopped or nudged, or ``timeout`` has passed; say which.

    It is not promised to whoever is told: somebody else may be faster. Whoever is woken wakes the next one too, so that
    nothing is left lying because one did not take it after all.
    """
    check_seconds(lookout.name, "timeout", timeout)
    check_token(lookout.name, token)
    deadline = clock.monotonic() + timeout
    gate: Gate | None = None
    waiters = lookout.waiters
    try:
        while True:
            with lookout.lock:
                was_woken = gate is not None and not waiters.leave(gate)
                is_visible, look_again = lookout.look()
                left = deadline - clock.monotonic()
                is_over = left <= 0 or (token is not None and (token.stopped or token.take_nudge()))
                if is_visible or is_over:
                    if is_visible or was_woken:
                        waiters.wake_one()
                    return is_visible and not (token is not None and token.stopped)
                gate = clock.blocking.gate()
                wait = min(left, look_again)
                waiters.park(gate, clock.monotonic() + wait)
            wait_with(clock, gate, wait, token)  # woken by a send, a return, close, or time
    except BaseException:
        with lookout.lock:  # interrupted, or closed: what it may have been woken for is for somebody else
            if gate is not None and not waiters.leave(gate):
                waiters.wake_one()
        raise
