"""`Waiters`: who waits for a message in this process; and `wait_visible`, which waits without taking it."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Protocol, final

from loopwarden.mailbox._token import Token, wait_with
from loopwarden.mailbox._validation import check_seconds, check_token

if TYPE_CHECKING:
    from loopwarden._blocking import Gate, Lock
    from loopwarden.clock import Clock

__all__ = ["Waitable", "Waiters", "wait_visible"]


@final
class Waiters:
    """Gates of receives that wait, oldest first; every call is made under the mailbox's lock.

    A call that makes something visible wakes the oldest. The youngest also sleeps no longer than until the next lease
    or delay ends, so one of them always sees to it, and no timer is needed.
    """

    __slots__ = ("_alarm", "gates")

    def __init__(self) -> None:
        #: Who waits.
        self.gates: deque[Gate] = deque()
        self._alarm = math.inf  # when the youngest wakes up to see what has become due

    def park(self, gate: Gate, alarm: float = math.inf) -> None:
        """Add the youngest, who will wake by itself at ``alarm``."""
        self.gates.append(gate)
        self._alarm = alarm

    def leave(self, gate: Gate) -> bool:
        """Take a gate out; false if it was woken, and so is out already."""
        if gate not in self.gates:
            return False
        was_youngest = self.gates[-1] is gate
        self.gates.remove(gate)
        if was_youngest and self.gates:
            self.gates[-1].open()  # it is the youngest now, and looks again how long it may sleep
        return True

    def wake_one(self) -> None:
        """Wake the oldest: something is visible."""
        if self.gates:
            self.gates[0].open()  # before it is out of the queue: a Ctrl-C in between must not leave it asleep
            self.gates.popleft()

    def wake_all(self) -> None:
        """Wake everybody: the mailbox is closed."""
        while self.gates:
            self.wake_one()

    def due_added(self, due: float) -> None:
        """Note that something is due; the youngest is woken if it would sleep longer."""
        if self.gates and due < self._alarm:
            self._alarm = due
            self.gates[-1].open()


class Waitable(Protocol):
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

    def poll(self) -> tuple[bool, float]:
        """Say whether something is there, and in how many seconds to look again at the latest; under the lock.

        Raises:
            MailboxClosedError: if the mailbox is closed.
        """
        ...


def wait_visible(waitable: Waitable, clock: Clock, timeout: float, token: Token | None) -> bool:
    """Block until something can be received, the token is stopped or nudged, or ``timeout`` has passed; say which.

    The caller has no claim to it: another receive may be faster. A waiter that is woken wakes the next one too, so that
    nothing is left lying because one did not take it after all.
    """
    check_seconds(waitable.name, "timeout", timeout)
    check_token(waitable.name, token)
    deadline = clock.monotonic() + timeout
    gate: Gate | None = None
    waiters = waitable.waiters
    try:
        while True:
            with waitable.lock:
                was_woken = gate is not None and not waiters.leave(gate)
                is_visible, look_again = waitable.poll()
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
        with waitable.lock:  # interrupted, or closed: what it may have been woken for is for another receive
            if gate is not None and not waiters.leave(gate):
                waiters.wake_one()
        raise
