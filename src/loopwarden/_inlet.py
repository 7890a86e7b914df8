"""`Inlet`: where work enters a loop, and how a stop shuts it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar, final

from loopwarden._blocking import CURRENT, Blocking

if TYPE_CHECKING:
    from loopwarden._blocking import WorkQueue

__all__ = ["Inlet"]

W = TypeVar("W")


class _End(Enum):
    """Comes after the last thing that was accepted."""

    END = "end"


@final
class Inlet(Generic[W]):
    """A queue for one worker that is closed once, with an exact border between before and after.

    What `post` accepted comes out of `take`, in order; what it refused never does. The border needs a lock, so
    neither `post` nor `close` is for signal handlers.

    >>> inlet: Inlet[str] = Inlet()
    >>> inlet.post("accepted")
    True
    >>> inlet.close()
    >>> inlet.post("refused")
    False
    >>> inlet.take(), inlet.take()
    ('accepted', None)
    """

    __slots__ = ("_accepted", "_closed", "_lock")

    def __init__(self, blocking: Blocking | None = None) -> None:
        if blocking is None:
            blocking = CURRENT.get()
        self._lock = blocking.lock()  # guards _closed together with the order of _accepted: END comes last
        self._accepted: WorkQueue[W | _End] = blocking.queue()
        self._closed = False

    def post(self, work: W) -> bool:
        """Accept ``work``, unless the inlet is closed; wakes the worker."""
        with self._lock:
            if self._closed:
                return False
            self._accepted.put(work)
            return True

    def close(self) -> None:
        """Refuse from now on; wakes the worker. Closing again changes nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._accepted.put(_End.END)

    @property
    def closed(self) -> bool:
        """True from the first `close` on."""
        return self._closed

    def take(self) -> W | None:
        """Block until there is work; None once the inlet is closed and all that it accepted was taken."""
        work = self._accepted.get()  # woken by post and close
        if isinstance(work, _End):
            self._accepted.put(work)  # for the next call, which must not block either
            return None
        return work

    def __repr__(self) -> str:
        return f"<Inlet, {'closed' if self._closed else 'open'}>"
