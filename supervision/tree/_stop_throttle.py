"""`Stops`: tells children to stop, not all in the same instant."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, final

from loopwarden.supervision.tree._reports import Hurry

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.clock import Clock, Timer
    from loopwarden.supervision.tree._incarnation import Tenure

__all__ = ["Stops"]

#: How many children stop at once at first. A thousand that all wake up in the same instant get in each other's way, and
#: take half as long again.
AT_ONCE = 32
#: Seconds after which twice as many may stop at once, because those before them may be at it for long; if none of them
#: has ended meanwhile, all are told.
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
        # Each with the seconds that are wanted, and the time until which it has to stop at the latest.
        self._waiting: deque[tuple[Tenure, float, float]] = deque()
        self._at_once: float = AT_ONCE
        self._told: set[int] = set()
        self._timer: Timer | None = None
        self._has_progress = False

    def add(self, tenure: Tenure, wanted: float, most: float = math.inf) -> None:
        """Have a child told to stop, within ``wanted`` seconds if its spec says less, but never more than ``most``."""
        tenure.is_stopping = True
        self._waiting.append((tenure, wanted, self._clock.monotonic() + most))
        self._tell()

    def ended(self, incarnation: int) -> None:
        """Note that a child has ended, which makes room for the next."""
        self._has_progress = True
        if incarnation in self._told:
            self._told.discard(incarnation)
        elif self._waiting:  # by itself, before it was told
            self._waiting = deque(each for each in self._waiting if each[0].incarnation != incarnation)
        self._tell()

    def hurry(self) -> None:
        """Tell all the others, or more of them if some have ended meanwhile: nobody waits for long to be told."""
        self._timer = None
        self._at_once = 2 * self._at_once if self._has_progress else math.inf
        self._tell()

    def close(self) -> None:
        """Set no timer any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and len(self._told) < self._at_once:
            tenure, wanted, deadline = self._waiting.popleft()
            self._told.add(tenure.incarnation)
            tenure.stop(wanted, self._clock, max(0.0, deadline - now))
        if self._waiting and self._timer is None:
            self._has_progress = False
            try:
                self._timer = self._clock.call_later(PATIENCE, lambda: self._put(Hurry()))
            except RuntimeError:  # no thread for timers: then nobody waits
                self._at_once = math.inf
                self._tell()
        elif not self._waiting:
            self._at_once = AT_ONCE
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def __repr__(self) -> str:
        return f"<Stops, {len(self._told)} told, {len(self._waiting)} waiting>"
