"""Time as an interface: what we read, wait for and are woken by.

Nothing else in Loopwarden reads the time or waits for it, so that a `loopwarden.testing.FakeClock` governs
every delay. The one exception is a reader's own ``ticket.wait(timeout)``, which is real time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, final

from loopwarden._arguments import check_callable, is_wait
from loopwarden._blocking import CURRENT, SYSTEM, Blocking, Gate
from loopwarden._forks import at_fork
from loopwarden._log import describe, report

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = [
    "SYSTEM_CLOCK",
    "Blocking",
    "Clock",
    "Gate",
    "SystemClock",
    "Timer",
    "TimerQueue",
    "current_clock",
    "use_clock",
]


class Clock(Protocol):
    """Reads time, waits for it, and calls back at it."""

    @property
    def blocking(self) -> Blocking:
        """The seam through which everything that uses this clock blocks."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow; differences mean something, values do not."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, as other processes see them."""
        ...

    def wait(self, gate: Gate, timeout: float | None) -> bool:
        """Block until ``gate`` opens; false if ``timeout`` passed first."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` once, after ``delay`` seconds, on a thread of the clock.

        The callback must not block; what it raises is logged.
        """
        ...


def check_timer(delay: float, callback: Callable[[], object]) -> None:
    """Refuse what no timer can be made of."""
    if not is_wait(delay):
        raise ValueError(f"delay must be a number of seconds, got {describe(delay)}")
    check_callable("callback", callback)


@final
class Timer:
    """A call that is to come."""

    __slots__ = ("_callback", "_queue", "deadline")

    def __init__(self, deadline: float, callback: Callable[[], object], queue: TimerQueue) -> None:
        self.deadline = deadline
        self._callback: Callable[[], object] | None = callback
        self._queue = queue

    def cancel(self) -> bool:
        """Prevent the call; false if it has been made, is being made, or was cancelled before."""
        return self._queue.cancel(self)

    @property
    def is_pending(self) -> bool:
        """True until the call is made or cancelled."""
        return self._callback is not None

    def take(self) -> Callable[[], object] | None:
        """Return what is to be called and forget it; None if it is gone. Called by the queue, under its lock."""
        callback, self._callback = self._callback, None
        return callback


@final
class TimerQueue:
    """Timers in the order of their deadlines; the clocks share it, it knows no time.

    A cancelled timer stays in the heap until it comes up or until half of the heap is cancelled, so
    cancelling is O(1) amortised and a million cancelled time-outs do not pile up.
    """

    def __init__(self, blocking: Blocking, on_empty: Callable[[], None] | None = None) -> None:
        self._on_empty = on_empty  # called without the lock when the last timer is cancelled
        self._lock = blocking.lock()  # guards _heap, _live and the timers' callbacks
        self._heap: list[tuple[float, int, Timer]] = []
        self._live = 0
        self._sequence = itertools.count()

    def add(self, deadline: float, callback: Callable[[], object]) -> Timer:
        """Add a timer; equal deadlines keep the order in which they were added.

        Raises:
            ValueError: if ``deadline`` is not a number, which would be in no order.
        """
        if math.isnan(deadline):
            raise ValueError("a timer needs a time, got nan")
        timer = Timer(deadline, callback, self)
        with self._lock:
            heapq.heappush(self._heap, (deadline, next(self._sequence), timer))
            self._live += 1
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Take a timer out; false if it is out already."""
        with self._lock:
            # The callback outlives the lock: dropping the last reference to it may run a `__del__` that uses the clock.
            callback = timer.take()
            if callback is None:
                return False
            self._live -= 1
            if self._live * 2 < len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2].is_pending]
                heapq.heapify(self._heap)
            emptied = self._live == 0
        if emptied and self._on_empty is not None:
            self._on_empty()
        return True

    def pop_due(self, now: float) -> tuple[float, Callable[[], object]] | None:
        """Take the next timer whose deadline has come, with that deadline."""
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                deadline, _, timer = heapq.heappop(self._heap)
                callback = timer.take()
                if callback is not None:
                    self._live -= 1
                    return deadline, callback
            return None

    def next_deadline(self) -> float | None:
        """Return the next live deadline, or None if there is no timer."""
        with self._lock:
            while self._heap and not self._heap[0][2].is_pending:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return self._live


@final
class TimerThread:
    """The thread that makes the calls of timers: started by the first, and gone with the last.

    Args:
        blocking: Starts it, and lets it wait.
        monotonic: The time.
    """

    def __init__(self, blocking: Blocking, monotonic: Callable[[], float]) -> None:
        self._blocking = blocking
        self._monotonic = monotonic
        self._timers = TimerQueue(blocking, on_empty=self._look_again)
        self._lock = blocking.lock()  # guards _wake
        self._wake: Gate | None = None  # what the timer thread sleeps on; None while there is no such thread

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back on the timer thread.

        Raises:
            RuntimeError: if the timer thread cannot be started; then the timer is cancelled.
            ValueError: if ``delay`` is not a number.
        """
        check_timer(delay, callback)
        timer = self._timers.add(self._monotonic() + delay, callback)
        try:
            self._ensure_thread()
        except RuntimeError:
            timer.cancel()
            raise
        if self._timers.next_deadline() == timer.deadline:
            self._look_again()
        return timer

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._wake is None:
                self._wake = self._blocking.gate()
                try:
                    self._blocking.start_thread(self._run, "loopwarden-timers")
                except BaseException:
                    self._wake = None
                    raise

    def _look_again(self) -> None:
        """Wake the timer thread, if there is one: the next deadline has changed."""
        with self._lock:
            if self._wake is not None:
                self._wake.open()

    def _run(self) -> None:
        while True:
            while (due := self._timers.pop_due(self._monotonic())) is not None:
                call(due[1])
            with self._lock:
                # A fresh gate first, the look at the queue second: a timer added in between opens the fresh one.
                wake = self._wake = self._blocking.gate()
                deadline = self._timers.next_deadline()
                if deadline is None:
                    self._wake = None
                    return
            wake.wait(deadline - self._monotonic())

    def __len__(self) -> int:
        return len(self._timers)


@final
class SystemClock:
    """The machine's clock.

    Callbacks of all timers run on one thread, which the first timer starts and which ends with the last.
    """

    def __init__(self, blocking: Blocking = SYSTEM) -> None:
        self._blocking = blocking
        self._timers = TimerThread(blocking, time.monotonic)

    @property
    def blocking(self) -> Blocking:
        """The seam this clock was made with."""
        return self._blocking

    # The system's own functions, without a call of ours in between: they are on the path of every message.
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def wait(self, gate: Gate, timeout: float | None) -> bool:
        """Block on the gate itself; no timer is needed."""
        return gate.wait(timeout)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back on the timer thread.

        Raises:
            RuntimeError: if the timer thread cannot be started; then the timer is cancelled.
            ValueError: if ``delay`` is not a number.
        """
        return self._timers.call_later(delay, callback)

    def forget_threads(self) -> None:
        """Begin anew in a child process, which has the parent's timers and locks but none of its threads."""
        self._timers = TimerThread(self._blocking, time.monotonic)

    def __repr__(self) -> str:
        return f"<SystemClock, {len(self._timers)} timers>"


def call(callback: Callable[[], object]) -> None:
    """Run a timer's callback; whatever it raises is logged, because the next timer must come too."""
    try:
        callback()
    except BaseException as error:  # noqa: BLE001  isolates user code
        report(logging.ERROR, "a timer's callback raised", error=error)


SYSTEM_CLOCK = SystemClock()
#: The clock of whatever is made here without one of its own; a clock for tests hands itself on to its threads.
CURRENT_CLOCK: ContextVar[Clock] = ContextVar("loopwarden_clock", default=SYSTEM_CLOCK)


def current_clock() -> Clock:
    """Return the clock of whatever is made here without one of its own: the machine's, except in tests."""
    return CURRENT_CLOCK.get()


def resolve_clock(clock: Clock | None) -> Clock:
    """Return ``clock``, or the current one for None.

    Raises:
        TypeError: if it is no clock.
    """
    if clock is None:
        return CURRENT_CLOCK.get()
    if isinstance(clock, type) or not callable(getattr(clock, "call_later", None)):
        raise TypeError(f"clock must be a Clock, such as SYSTEM_CLOCK or a FakeClock, or None, got {describe(clock)}")
    return clock


def patience_clock() -> Clock:
    """Return whose seconds a caller's own patience is: the machine's, or those of the simulation it is in."""
    return CURRENT_CLOCK.get() if CURRENT.get().is_virtual else SYSTEM_CLOCK


@contextmanager
def use_clock(clock: Clock) -> Generator[None, None, None]:
    """Make ``clock``, and the seam that it has, the current ones for a ``with`` block."""
    kept, kept_seam = CURRENT_CLOCK.set(clock), CURRENT.set(clock.blocking)
    try:
        yield
    finally:
        CURRENT.reset(kept_seam)
        CURRENT_CLOCK.reset(kept)


def _forget_clocks_of_tests() -> None:
    """Live by the machine's clock in a child process: the threads of a test's are not there."""
    CURRENT.set(SYSTEM)
    CURRENT_CLOCK.set(SYSTEM_CLOCK)


at_fork(in_child=SYSTEM_CLOCK.forget_threads)
at_fork(in_child=_forget_clocks_of_tests)
