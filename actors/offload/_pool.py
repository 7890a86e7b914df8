"""`OffloadPool`: work beside the loops, on threads or processes."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

from loopwarden._arguments import check_plain, is_number, is_whole
from loopwarden._blocking import SYSTEM
from loopwarden._log import describe
from loopwarden._ticket import Ticket, orphan, write
from loopwarden.actors.offload._thread_workers import ThreadWorkers, Workers, name_of
from loopwarden.actors.runtime._exit_hook import forget_pool, remember_pool
from loopwarden.clock import SYSTEM_CLOCK, Clock, resolve_clock
from loopwarden.errors import ActorDeadError, TicketTimeoutError
from loopwarden.mailbox._validation import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["OffloadPool"]

T = TypeVar("T")


@final
class OffloadPool:
    """Runs functions for loops that must not be kept waiting, and answers by tickets.

    A time-out wins over a late completion, which is counted and dropped. What was accepted is run once, even if its
    time-out has passed or the ticket is not read; what is refused, because the pool is closed, never runs, and its
    ticket says so. Give it to `serve(pools=[…])`: it is drained after the loops and before they are stopped, so a
    completion never comes to a loop that is gone. Otherwise close it yourself: one that is open when the interpreter
    exits has five seconds to complete what it has accepted, one that you have dropped ends its threads and processes
    once all of it is done, and both are complained about by a ``ResourceWarning``.

    >>> with OffloadPool(workers=2) as pool:
    ...     pool.submit(pow, 2, 10, timeout=5).wait()
    1024

    Args:
        name: What its threads are called.
        workers: How many functions run at once.
        processes: Whether they run in processes of their own, for work that keeps the interpreter busy. Then functions,
            arguments and results must be picklable, and ``__main__`` importable; an error that is not picklable comes
            as a ``RuntimeError`` that describes it. If a process dies, the function that it ran fails with
            ``BrokenProcessPool``, because it is not known what was done; the others do not notice.
        clock: The time.
    """

    def __init__(
        self, name: str = "offload", *, workers: int = 4, processes: bool = False, clock: Clock | None = None
    ) -> None:
        clock = resolve_clock(clock)
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"name must be a string, got {describe(name)}")
        if not is_whole(workers) or not 1 <= workers <= MAX_WORKERS:
            raise ValueError(
                f"workers of {name!r} must be a whole number from 1 to {MAX_WORKERS}, got {describe(workers)}"
            )
        self.name = name
        self._clock = clock
        self._lock = clock.blocking.lock()  # guards _is_closed together with _in_flight, who waits for that, and counts
        self._is_closed = self._is_cut_off = False
        self._in_flight: set[Ticket[Any]] = set()
        self._idle: set[Ticket[None]] = set()
        self._refused = self._late = 0
        self._workers: Workers = ThreadWorkers(name, workers, clock.blocking)
        if processes:
            from loopwarden.actors.offload._process_workers import ProcessWorkers  # noqa: PLC0415  only they pay for it

            self._workers = ProcessWorkers(name, workers, clock.blocking)
        self._finalizer = weakref.finalize(self, _drop, self._workers, str(self))
        self._finalizer.atexit = False  # then it is closed
        remember_pool(self, self._close_in_real_time)

    def submit(self, function: Callable[..., T], /, *args: Any, timeout: float | None = None) -> Ticket[T]:
        """Run ``function(*args)`` soon; the ticket resolves to what it returns or raises.

        Args:
            function: What to run.
            args: What to run it with; use ``functools.partial`` for keywords.
            timeout: Seconds from now after which the ticket fails with `TicketTimeoutError`; the function goes on.

        Raises:
            TypeError: if it cannot be called, or ``timeout`` is no number of seconds.
        """
        if not callable(function):
            raise TypeError(f"submit() takes a callable, got {describe(function)}")
        check_plain("function", function)
        if timeout is not None and (not is_number(timeout) or timeout < 0):
            raise TypeError(f"timeout must be a number of seconds from 0 on, or None, got {describe(timeout)}")
        ticket: Ticket[T] = Ticket(self._clock.blocking)
        with self._lock:
            is_accepted = not self._is_closed
            if is_accepted:
                self._in_flight.add(ticket)
            else:
                self._refused += 1
        if not is_accepted:
            ticket.fail(ActorDeadError(str(self)))
            return ticket

        catch_up: Callable[[], None] | None = None

        def done(result: Any, error: BaseException | None) -> None:
            if catch_up is not None:
                catch_up()
            self._done(ticket, result, error)

        try:
            if timeout is not None:
                catch_up = self._set_timer(ticket, timeout, function)
            self._workers.run(function, args, done)
        except BaseException as error:  # there is no thread or process for it: that is the answer
            self._done(ticket, None, error)
            if isinstance(error, KeyboardInterrupt):
                raise
        return ticket

    def leave_to_parent(self) -> None:
        """Be closed in a child process, which has none of the threads."""
        self._finalizer.detach()
        if self._clock.blocking is not SYSTEM:  # the seam of a test wants its scheduler, which is a thread too
            return
        self._lock = SYSTEM.lock()
        self._is_closed = True
        for ticket in self._in_flight:
            orphan(ticket, ActorDeadError(str(self)))
        self._in_flight = set()

    @property
    def in_flight(self) -> int:
        """How many functions were accepted and have not returned, also of tickets that timed out."""
        return len(self._in_flight)

    @property
    def late(self) -> int:
        """How many have returned, or were dropped by the close, after their ticket had timed out or was cancelled."""
        return self._late

    @property
    def refused(self) -> int:
        """How many were not accepted, because the pool was closed."""
        return self._refused

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Block until nothing is in flight, or ``timeout`` seconds have passed; say which. Others may still submit."""
        return self._wait_idle(timeout, self._clock)

    def close(self, timeout: float = 30.0) -> bool:
        """Accept nothing more, and wait for what was accepted; say whether all of it is done.

        What is not done by then is given up: its tickets fail, what is not begun never will be, its threads are left
        behind as zombies, its processes are killed. What is lost meanwhile with a process that dies is not done.
        Closing again changes nothing.
        """
        return self._close(timeout, self._clock)

    def _close_in_real_time(self, timeout: float) -> bool:
        return self._close(timeout, SYSTEM_CLOCK)

    def _close(self, timeout: float, clock: Clock) -> bool:
        with self._lock:
            self._is_closed = True
        lost_before = self._workers.lost
        self._wait_idle(timeout, clock)
        # In this order: what has begun may still complete its ticket, what has not will not begin once that has failed,
        # and what is killed has failed because of the close.
        dropped = self._workers.close()
        with self._lock:
            given_up = tuple(self._in_flight)
            self._is_cut_off = self._is_cut_off or bool(given_up)
            is_done = not self._is_cut_off and self._workers.lost == lost_before
        for ticket in given_up:
            write(ticket, error=ActorDeadError(str(self)))
        for done in dropped:
            done(None, ActorDeadError(str(self)))
        self._workers.give_up()
        self._finalizer.detach()
        forget_pool(self)
        return is_done

    def _wait_idle(self, timeout: float | None, clock: Clock) -> bool:
        with self._lock:
            if not self._in_flight:
                return True
            idle: Ticket[None] = Ticket(self._clock.blocking)
            self._idle.add(idle)
        try:
            return idle.wait_ready(timeout, clock)  # resolved by the last one in flight
        finally:
            with self._lock:
                self._idle.discard(idle)

    def _set_timer(self, ticket: Ticket[Any], timeout: float, function: Callable[..., Any]) -> Callable[[], None]:
        """Have a ticket time out; what is returned does it if the timer should have done so by now."""
        what = f" from {name_of(function)} in pool {self.name!r}"

        def time_out() -> None:
            write(ticket, error=TicketTimeoutError(timeout, what))

        timer = self._clock.call_later(timeout, time_out)
        ticket.on_ready(lambda _: timer.cancel())

        def catch_up() -> None:
            # One thread makes the calls of all timers, and may be late; the time-out wins all the same.
            if self._clock.monotonic() >= timer.deadline:
                time_out()

        return catch_up

    def _done(self, ticket: Ticket[Any], result: object, error: BaseException | None) -> None:
        # First the answer: a caller that waits until nothing is in flight finds every ticket resolved.
        is_late = not write(ticket, result, error)
        idle: set[Ticket[None]] = set()
        with self._lock:
            self._in_flight.discard(ticket)
            self._late += is_late
            if not self._in_flight:
                idle, self._idle = self._idle, set()
        for each in idle:
            write(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self}, {self.in_flight} in flight{', closed' if self._is_closed else ''}>"

    def __str__(self) -> str:
        return f"OffloadPool {self.name!r}"


def _drop(workers: Workers, pool: str) -> None:
    """End the workers of a pool that is garbage; takes no lock, because that may be found while any lock is held."""
    workers.drop()
    warnings.warn(f"dropped without being closed: {pool}", ResourceWarning, stacklevel=1)
