"""`Stops`: tells children to stop, not all in the same instant."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, final

from loopwarden.supervision._reports import Hurry

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.clock import Clock, Timer
    from loopwarden.supervision._tenure import Tenure

__all__ = ["Stops"]

#: How many children stop at once, as long as they are quick about it. A thousand that all wake up in the same instant
#: get in each other's way, and take half as long again.
AT_ONCE = 32
#: Seconds without an end after which the others are told too, because those before them may be at it for long.
PATIENCE = 0.05


@final
class Stops:
    """Belongs to one supervisor's thread.

    Args:
        clock: The time.
        put: Takes `Hurry`, on any thread, for the supervisor.
    """

    def __init__(self, clock: Clock, put: Callable[[object], None]) -> None:
        self._clock = clock
        self._put = put
        self._waiting: deque[tuple[Tenure, float, float]] = deque()
        self._told: set[int] = set()
        self._timer: Timer | None = None
        self._has_progress = False

    def add(self, tenure: Tenure, wanted: float, most: float = math.inf) -> None:
        """Have a child told to stop, within ``wanted`` seconds if its spec says less, but never more than ``most``."""
        tenure.is_stopping = True
        self._waiting.append((tenure, wanted, most))
        self._tell(AT_ONCE)

    def ended(self, incarnation: int) -> None:
        """Note that a child has ended, which makes room for the next."""
        self._has_progress = True
        if incarnation in self._told:
            self._told.discard(incarnation)
        elif self._waiting:  # by itself, before it was told
            self._waiting = deque(each for each in self._waiting if each[0].incarnation != incarnation)
        self._tell(AT_ONCE)

    def hurry(self) -> None:
        """Tell all the others, unless children have ended meanwhile, and so make room for them."""
        self._timer = None
        self._tell(AT_ONCE if self._has_progress else math.inf)

    def close(self) -> None:
        """Set no timer any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, at_once: float) -> None:
        while self._waiting and len(self._told) < at_once:
            tenure, wanted, most = self._waiting.popleft()
            self._told.add(tenure.incarnation)
            tenure.stop(wanted, self._clock, most)
        if self._waiting and self._timer is None:
            self._has_progress = False
            try:
                self._timer = self._clock.call_later(PATIENCE, lambda: self._put(Hurry()))
            except RuntimeError:  # no thread for timers: then nobody waits
                self._tell(math.inf)
        elif not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __repr__(self) -> str:
        return f"<Stops, {len(self._told)} told, {len(self._waiting)} waiting>"
