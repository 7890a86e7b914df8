"""`Waiters`: receives that wait, and who of them is woken."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from loopwarden._blocking import Gate

__all__ = ["Waiters"]


@final
class Waiters:
    """Gates of receives that wait, oldest first; every call is made under the mailbox's lock.

    Whoever makes something visible wakes the oldest. The youngest also sleeps no longer than until the next lease or
    delay ends, so there is always one that sees to it, and nobody needs a timer.
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
