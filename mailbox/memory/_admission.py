"""`Admission`: which messages a mailbox in memory lets in: not twice, and not too many."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, final

from loopwarden.mailbox._validation import DEDUP_WINDOW

if TYPE_CHECKING:
    from loopwarden._blocking import Gate

__all__ = ["Admission"]


@final
class Admission:
    """Dedup ids that were seen, and sends that wait for room; every call is made under the mailbox's lock."""

    def __init__(self, max_size: int | None) -> None:
        self.max_size = max_size
        #: Sends that wait for room, and for how many messages.
        self.gates: deque[tuple[Gate, int]] = deque()
        self._seen: OrderedDict[str, tuple[float, str]] = OrderedDict()  # dedup id → until when, message id

    def sent_before(self, dedup_id: str | None, now: float) -> str | None:
        """Return the message that was sent with this dedup id, if the window has not passed."""
        while self._seen and next(iter(self._seen.values()))[0] <= now:
            self._seen.popitem(last=False)
        known = None if dedup_id is None else self._seen.get(dedup_id)
        return None if known is None else known[1]

    def remember(self, dedup_id: str, message_id: str, now: float) -> None:
        """Note that a message was sent with this dedup id."""
        self._seen[dedup_id] = (now + DEDUP_WINDOW, message_id)

    def forget(self, dedup_id: str) -> None:
        """Note that it was not sent after all."""
        self._seen.pop(dedup_id, None)

    def has_room(self, size: int, more: int = 1) -> bool:
        """Say whether so many more fit beside so many."""
        return self.max_size is None or size + more <= self.max_size

    def leave(self, gate: Gate, size: int) -> None:
        """Forget a send that waits no longer; what it may have been woken for is for the next."""
        self.gates = deque(waiting for waiting in self.gates if waiting[0] is not gate)
        self.made_room(size)

    def made_room(self, size: int) -> None:
        """Wake the oldest send that waits and fits."""
        fitting = next((waiting for waiting in self.gates if self.has_room(size, waiting[1])), None)
        if fitting is not None:
            fitting[0].open()  # before it is out of the queue: a Ctrl-C in between must not leave it asleep
            self.gates.remove(fitting)

    def wake_all(self) -> None:
        """Wake everybody: the mailbox is closed, or empty."""
        while self.gates:
            self.gates[0][0].open()
            self.gates.popleft()
