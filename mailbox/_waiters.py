"""`wait_for`: how every call waits for something in a mailbox; and `Waiters`, who does so in this process."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar, final

from loopwarden.mailbox._token import Token, wait_with
from loopwarden.mailbox._validation import check_seconds, check_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Gate, Lock
    from loopwarden.clock import Clock

__all__ = [
    "LONGEST_WAIT",
    "RECHECK",
    "Waitable",
    "WaitableOutside",
    "Waiters",
    "wait_for",
    "wait_outside",
    "wait_visible",
]

F = TypeVar("F")

#: Seconds after which a call that waits for a server looks again in a simulation, where no other process takes part.
RECHECK = 1.0
#: Seconds after which a call that waits looks in any case: a server rings for nothing that is due later, and a
#: wake-up may have been for a process that has died.
LONGEST_WAIT = 20.0


@final
class Waiters:
    """Gates of calls that wait, oldest first; every call is made under the mailbox's lock.

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
        if self.gates[-1] is gate and len(self.gates) > 1:
            # It is the youngest in a moment, and looks again how long it may sleep. It is woken before this one is out,
            # because a Ctrl-C in between must not leave it asleep.
            self.gates[-2].open()
        self.gates.remove(gate)
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
    """A mailbox, as a call sees it that waits for something there; its methods are called under the lock."""

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

    def poll(self) -> bool:
        """Say whether something is there.

        Raises:
            MailboxClosedError: if the mailbox is closed.
        """
        ...

    def until_due(self) -> float:
        """Return in how many seconds to look again at the latest; asked when a call is about to wait."""
        ...

    def pass_on(self) -> None:
        """Wake the next one, if there may be something for it."""
        ...


def _do_nothing() -> None: ...


def wait_for(  # noqa: PLR0917  few callers, and each passes nearly all of it
    waitable: Waitable,
    look: Callable[[], F],
    clock: Clock,
    timeout: float,
    token: Token | None,
    unlocked: Callable[[], object] = _do_nothing,
) -> F:
    """Look until something is found, the token is stopped or nudged, or ``timeout`` has passed; return what was found.

    A look and the parking after it are one step under the lock, so what becomes visible from then on finds the gate. A
    wake-up is for one waiter. It is passed on when that one has found something, because there may be more, and when
    it ends without: stopped, too late, refused or interrupted. However it ends, it is parked no longer.

    A back end that asks a server must not do so under a lock. It asks between two calls of this function, and ``look``
    says whether there was a wake-up since it asked.

    Args:
        waitable: The mailbox.
        look: Takes what is there, or says that it is; false if there is nothing, and None if there may be, but the call
            is to end without it. Called under the lock.
        clock: The time.
        timeout: Seconds.
        token: Ends it early.
        unlocked: Called without the lock before each wait, and at the end.
    """
    deadline = clock.monotonic() + timeout
    gate: Gate | None = None
    waiters = waitable.waiters
    try:
        while True:
            with waitable.lock:
                was_woken = gate is not None and not waiters.leave(gate)
                found = look()
                now = clock.monotonic()
                has_more = bool(found) or found is None
                if has_more or now >= deadline or (token is not None and (token.stopped or token.take_nudge())):
                    if has_more or was_woken:
                        waitable.pass_on()
                    return found
                gate = clock.blocking.gate()
                wait = min(deadline - now, waitable.until_due())
                waiters.park(gate, now + wait)
            unlocked()
            wait_with(clock, gate, wait, token)  # woken by what becomes visible or due sooner, by close, or by time
    except BaseException:
        if gate is not None:
            if token is not None:
                token.detach(gate)  # once more: a Ctrl-C may come while the wait does so itself
            with waitable.lock:
                if not waiters.leave(gate):
                    waitable.pass_on()
        raise
    finally:
        unlocked()


class WaitableOutside(Protocol):
    """A mailbox in a server, as a call sees it that waits for something there."""

    @property
    def lock(self) -> Lock:
        """Guards who waits in this process."""
        ...

    @property
    def waiters(self) -> Waiters: ...

    def check_open(self) -> None:
        """Refuse if the mailbox is closed.

        Raises:
            MailboxClosedError: if it is.
        """
        ...

    def park(self, gate: Gate, alarm: float) -> float | None:
        """Wait from now on, at a gate that the caller takes out again, whatever comes; it looks again at ``alarm``.

        Returns:
            Seconds after which it must look again, if it turns out to be sooner.
        """
        ...

    def pass_on(self) -> None:
        """Wake the next one, here or elsewhere: who was woken has not looked."""
        ...


def wait_outside(
    waitable: WaitableOutside,
    look: Callable[[], tuple[F, float | None]],
    clock: Clock,
    timeout: float,
    token: Token | None,
) -> F | None:
    """Do as `wait_for` does, where a look asks a server, so that it is under no lock.

    What is told meanwhile stays with the server until a call waits. A wake-up is for one: it is passed on by who ends
    without having looked.

    Args:
        waitable: The mailbox.
        look: Returns what was found, with the seconds until it must be looked again. What it has found is false if
            there is nothing, and None if the call is to end without.
        clock: The time.
        timeout: Seconds.
        token: Ends it early.
    """
    deadline = clock.monotonic() + timeout
    gate: Gate | None = None
    is_woken = is_watching = False  # it was told of something to receive; of when there will be
    try:
        while True:
            waitable.check_open()
            if token is not None and token.stopped:
                return None
            found, again = look()
            is_woken = is_watching = False
            now = clock.monotonic()
            if found or found is None or now >= deadline or (token is not None and token.take_nudge()):
                return found
            wait = min(deadline - now, RECHECK if clock.blocking.is_virtual else LONGEST_WAIT)
            wait = wait if again is None else min(wait, again)
            gate = clock.blocking.gate()
            is_watching = again is not None
            sooner = waitable.park(gate, now + wait)
            wait = wait if sooner is None else min(wait, sooner)
            wait_with(clock, gate, wait, token)  # woken by a ring, by what is due, by close, or by time
            with waitable.lock:
                is_woken = not waitable.waiters.leave(gate)
            gate = None
    finally:
        if gate is not None:
            if token is not None:
                token.detach(gate)  # once more: a Ctrl-C may come while the wait does so itself
            with waitable.lock:
                is_woken = not waitable.waiters.leave(gate)
        if is_woken or is_watching:
            waitable.pass_on()


def wait_visible(waitable: Waitable, clock: Clock, timeout: float, token: Token | None) -> bool:
    """Block until something can be received, the token is stopped or nudged, or ``timeout`` has passed; say which.

    The caller has no claim to it: another receive may be faster.
    """
    check_seconds(waitable.name, "timeout", timeout)
    check_token(waitable.name, token)
    is_visible = wait_for(waitable, waitable.poll, clock, timeout, token)
    return is_visible and not (token is not None and token.stopped)
