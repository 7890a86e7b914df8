"""`FakeClock`: time that moves when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

from loopwarden._arguments import is_number
from loopwarden._log import describe
from loopwarden.clock import Timer, TimerQueue, call, check_timer, use_clock
from loopwarden.testing._counted_blocking import CountedBlocking

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from loopwarden._blocking import Blocking, Gate

__all__ = ["FakeClock"]

#: Real seconds after which a test is given up; it only matters when the test fails.
_REST_TIMEOUT = 60.0


@final
class FakeClock:
    """A clock that stands still until `advance` moves it.

    Timers run on the thread that advances, in the order of their deadlines, each at its own time. Everything else runs
    on real threads, which truly race. Time moves only while all of them are at rest, and when `advance` returns
    everything that was set off on the way is done, and they are at rest again: see `settle`.

    As a context manager it is the clock of whatever is made in the block, and on the threads that are started there,
    without a ``clock=`` of its own.

    >>> clock = FakeClock()
    >>> timer = clock.call_later(5.0, lambda: print("five seconds later"))
    >>> clock.advance(4.9)
    >>> clock.advance(0.1)
    five seconds later

    Args:
        start: The time at first.
        blocking: Where threads come from; one that cannot tell when its threads are at rest is not waited for.
    """

    def __init__(self, start: float = 1_000.0, *, blocking: Blocking | None = None) -> None:
        if blocking is None:
            blocking = CountedBlocking()
        self._blocking = blocking
        self._now = start
        self._wall_offset = 1_700_000_000.0 - start
        self._timers = TimerQueue(blocking)
        self._lock = blocking.lock()  # guards _watchers
        self._watchers: list[tuple[int, Gate]] = []
        self._wait_rest: Callable[[float], None] | None = getattr(blocking, "wait_rest", None)
        self._entered: list[AbstractContextManager[None]] = []  # one for each time that it was entered
        belong_to: Callable[[FakeClock], None] | None = getattr(blocking, "belong_to", None)
        if belong_to is not None:
            belong_to(self)

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

    def settle(self) -> None:
        """Block until all threads that this clock's seam has started are at rest.

        Raises:
            RestlessError: if they are not in a real minute; it says what each of them is doing.
            TypeError: if the seam cannot tell.
        """
        if self._wait_rest is None:
            raise TypeError(f"{self._blocking!r} cannot tell whether its threads are at rest")
        self._wait_rest(_REST_TIMEOUT)

    def advance(self, seconds: float) -> None:
        """Move time forward, and do on the way what is due; return when all is done, and all threads are at rest.

        Raises:
            ValueError: if ``seconds`` is negative.
            RestlessError: as `settle`.
        """
        if not is_number(seconds):
            raise ValueError(f"seconds must be a number, got {describe(seconds)}")
        if seconds < 0:
            raise ValueError(f"time does not run backwards, seconds must be from 0 on: advance({seconds!r})")
        target = self._now + seconds
        self._rest()
        while True:
            deadline = self._timers.next_deadline()
            if deadline is None or deadline > target:
                self._now = max(self._now, target)
                if self._timers.next_deadline() == deadline:
                    return
                continue  # a thread that is not counted has set a timer just before time moved on
            self._now = max(self._now, deadline)
            while (due := self._timers.pop_due(self._now)) is not None:
                call(due[1])
            self._rest()

    def _rest(self) -> None:
        if self._wait_rest is not None:
            self._wait_rest(_REST_TIMEOUT)

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
        check_timer(delay, callback)
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
            if len(self._timers) < count and not gate.wait(_REST_TIMEOUT):
                raise TimeoutError(f"{self!r} had not {count} timers after {_REST_TIMEOUT} real seconds")
        finally:
            with self._lock:
                self._watchers.remove(watcher)

    def __enter__(self) -> Self:
        entered = use_clock(self)
        entered.__enter__()
        self._entered.append(entered)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._entered.pop().__exit__(None, None, None)

    def __repr__(self) -> str:
        return f"<FakeClock at {self._now}, {len(self._timers)} timers>"
