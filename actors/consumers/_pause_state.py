"""`PauseState`: whether a loop's workers take messages, and when all of them are at rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden._ticket import SharedTicket, Ticket, write

if TYPE_CHECKING:
    from loopwarden._blocking import Blocking

__all__ = ["PauseState"]


@final
class PauseState:
    """Any thread may close and open it; each worker says when it begins, rests, goes on and leaves.

    A worker looks whether it is closed after each receive and before it begins a message, so once all have rested
    nothing is in hand, and nothing will be until it is opened.
    """

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._lock = blocking.lock()  # guards all of the following together
        self._is_closed = False
        self._busy: set[object] = set()
        self._at_rest: Ticket[bool] = SharedTicket(blocking)
        #: Until when leases of what is in hand must last, in monotonic seconds, if a drain has set it.
        self.secured_until: float | None = None

    @property
    def is_closed(self) -> bool:
        """True while nothing is to be taken."""
        return self._is_closed

    def close(self) -> Ticket[bool]:
        """Have nothing taken any more; the ticket is true once no worker is busy, false if it was opened before."""
        with self._lock:
            self._is_closed = True
            if self._at_rest.is_ready():
                self._at_rest = SharedTicket(self._blocking)
            at_rest, is_idle = self._at_rest, not self._busy
        if is_idle:
            write(at_rest, result=True)
        return at_rest

    def open(self) -> None:
        """Have messages taken again."""
        with self._lock:
            self._is_closed = False
            self.secured_until = None
            at_rest = self._at_rest
        write(at_rest, result=False)

    def enter(self, worker: object) -> None:
        """Note that a worker is busy."""
        with self._lock:
            self._busy.add(worker)

    def rest(self, worker: object) -> bool:
        """Note that a worker has nothing in hand, and takes nothing; false if it is to go on."""
        with self._lock:
            if not self._is_closed:
                return False
            self._busy.discard(worker)
            at_rest, is_idle = self._at_rest, not self._busy
        if is_idle:
            write(at_rest, result=True)
        return True

    def leave(self, worker: object) -> None:
        """Note that a worker has gone home, or was given up."""
        with self._lock:
            self._busy.discard(worker)
            at_rest, is_idle = self._at_rest, self._is_closed and not self._busy
        if is_idle:
            write(at_rest, result=True)

    def __repr__(self) -> str:
        return f"<PauseState, {'closed' if self._is_closed else 'open'}, {len(self._busy)} busy>"
