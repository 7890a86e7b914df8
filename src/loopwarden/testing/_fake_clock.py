"""`FakeClock`: time that moves when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden._blocking import SYSTEM, Blocking, Gate
from loopwarden.clock import Timer, TimerQueue, call

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FakeClock"]

#: Real seconds after which `wait_timers` gives a test up; it only matters when the test fails.
_PATIENCE = 5.0


@final
class FakeClock:
    """A clock that stands still until `advance` moves it.

    Timers run on the thread that advances, in the order of their deadlines, each at its own time.
    `advance` wakes the waiters that are due; it does not wait until they have done something.

    >>> clock = FakeClock()
    >>> timer = clock.call_later(5.0, lambda: print("five seconds later"))
    >>> clock.advance(4.9)
    >>> clock.advance(0.1)
    five seconds later
    """

    def __init__(self, start: float = 1_000.0, *, blocking: Blocking = SYSTEM) -> None:
        self._blocking = blocking
        self._now = start
        self._wall_offset = 1_700_000_000.0 - start
        self._timers = TimerQueue(blocking)
        self._lock = blocking.lock()  # guards _watchers
        self._watchers: list[tuple[int, Gate]] = []

    @property
    def blocking(self) -> Blocking:
        """The seam this clock was made with."""
        return self._blocking

    def monotonic(self) -> float:
        """Return the time that `advance` has reached."""
        return self._now

    def wall(self) -> float:
        """Return the same time as seconds since the epoch."""
        return self._now + self._wall_offset

    def advance(self, seconds: float) -> None:
        """Move time forward, and do on the way what is due.

        Raises:
            ValueError: if ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not run backwards: advance({seconds!r})")
        target = self._now + seconds
        while True:
            while (due := self._timers.pop_due(target)) is not None:
                self._now = max(self._now, due[0])
                call(due[1])
            self._now = max(self._now, target)
            deadline = self._timers.next_deadline()
            if deadline is None or deadline > target:  # otherwise somebody set a timer just before time moved on
                return

    def wait(self, gate: Gate, timeout: float | None) -> bool:
        """Block until the gate opens or `advance` has passed ``timeout``."""
        if timeout is None:
            return gate.wait()
        if timeout <= 0:
            return gate.wait(0)
        timer = self.call_later(timeout, gate.open)
        try:
            gate.wait()
        finally:
            in_time = timer.cancel()
        return in_time

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back when `advance` reaches that time; a delay of zero or less waits for the next `advance`."""
        timer = self._timers.add(self._now + max(delay, 0.0), callback)
        with self._lock:
            ready = [gate for count, gate in self._watchers if count <= len(self._timers)]
        for gate in ready:
            gate.open()
        return timer

    def wait_timers(self, count: int = 1) -> None:
        """Block until at least ``count`` timers are set, so that a test advances only when all wait.

        Raises:
            TimeoutError: if that does not happen in a few real seconds.
        """
        gate = self._blocking.gate()
        watcher = (count, gate)
        with self._lock:
            self._watchers.append(watcher)
        try:
            # Registered first, looked second: a timer set in between opens the gate.
            if len(self._timers) < count and not gate.wait(_PATIENCE):
                raise TimeoutError(f"{self!r} had not {count} timers after {_PATIENCE} real seconds")
        finally:
            with self._lock:
                self._watchers.remove(watcher)

    def __repr__(self) -> str:
        return f"<FakeClock at {self._now}, {len(self._timers)} timers>"
