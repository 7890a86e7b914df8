"""`PeriodicLoop`: a function that is called again and again, as a loop."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Self, cast, final

from loopwarden._arguments import check_plain, is_whole
from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe, report
from loopwarden._ticket import Ticket
from loopwarden.actors.consumers._mailbox_worker import refuse_unfinished
from loopwarden.actors.consumers._pause_state import PauseState
from loopwarden.actors.consumers._schedule import make_schedule
from loopwarden.actors.loop._current import current
from loopwarden.actors.loop._health import Progress
from loopwarden.clock import Clock, resolve_clock
from loopwarden.mailbox import Token
from loopwarden.mailbox._token import wait_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo
    from types import TracebackType

__all__ = ["PeriodicLoop"]


@final
class PeriodicLoop:
    """Calls a function every so many seconds, or at the times of a cron expression.

    The function never runs twice at once. The due times are fixed from the start on, however long a run takes; those
    that pass during a run, or while the loop is paused, are skipped. An ``Exception`` is logged and counted, and the
    next run comes at its time. Anything else, and the classes in ``crash_on``, ends the loop with that cause. A stop
    ends the wait at once, and completes the run in hand.

    It is a `Runnable`, `SupportsProcess` and `SupportsPause`: run it alone, or as a `LoopActor`.

    >>> PeriodicLoop(lambda: print("refreshed"), every=60, run_at_start=True).run(max_iterations=1)
    refreshed

    Args:
        fn: What to call, without arguments, on the thread of `run`.
        every: Seconds from one due time to the next.
        cron: Five fields as in a crontab, or six with the seconds first, in place of ``every``; this needs
            ``loopwarden[cron]``.
        timezone: Whose wall clock ``cron`` is about: a name such as ``"Europe/Berlin"``, or a ``tzinfo``; UTC if it is
            not given.
        run_at_start: Whether there is a run at once, before the first due time. By default there is none, so that a
            loop that is restarted again and again does not run more often than it should.
        crash_on: Classes of exceptions that end the loop.
        clock: The time it lives by.
    """

    def __init__(
        self,
        fn: Callable[[], object],
        *,
        every: float | None = None,
        cron: str | None = None,
        timezone: str | tzinfo | None = None,
        run_at_start: bool = False,
        crash_on: tuple[type[BaseException], ...] = (),
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        _check_function(fn)
        if not isinstance(run_at_start, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"run_at_start must be true or false, got {describe(run_at_start)}")
        _check_crash_on(crash_on)
        self._schedule = make_schedule(every, cron, timezone, clock)
        self._fn = fn
        self._run_at_start = run_at_start
        self._crash_on = crash_on
        self._clock = clock
        self._name = str(getattr(fn, "__name__", None) or describe(fn))
        #: Its sign of life: with each look at the time, and each run.
        self.heartbeat = Heartbeat(clock)
        #: What it is doing.
        self.progress = Progress(clock, self.heartbeat)
        self._pause_state = PauseState(clock.blocking)
        self._token = Token()
        self._runs = 0
        self._is_recalled = self._is_abandoned = False
        self._lock = clock.blocking.lock()  # guards _refuses together with _posted, and _done against a second run
        self._refuses = self._is_stopped = False
        self._posted: deque[Callable[[], object]] = deque()
        self._done: Ticket[None] | None = None
        self._thread: int | None = None

    # Runnable.

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,  # noqa: ARG002  as a Runnable has it; there is no message to lease
        wait_time_seconds: float | None = None,  # noqa: ARG002  as above
    ) -> None:
        """Call the function at its times, until the stop or ``max_iterations`` runs.

        Raises:
            ValueError: if ``max_iterations`` is no number of runs.
            RuntimeError: if it is running already.
            BaseException: what the function raised that ends the loop.
        """
        if max_iterations is not None and (not is_whole(max_iterations) or max_iterations < 1):
            raise ValueError(f"max_iterations must be a whole number from 1 on, got {describe(max_iterations)}")
        done: Ticket[None] = Ticket(self._clock.blocking)
        with self._lock:
            if self._done is not None:
                raise RuntimeError(f"the loop that calls {self._name!r} is running already")
            self._done, self._thread = done, threading.get_ident()
        before, before_stopped = current.heartbeat, current.is_stopped
        current.heartbeat, current.is_stopped = self.heartbeat, lambda: self._token.stopped
        self.progress.thread_id = threading.get_ident()
        self._pause_state.enter(self)
        try:
            self._work(max_iterations)
            with self._lock:
                self._refuses = True
            self._run_posted()
        finally:
            self.progress.leave()
            self._pause_state.leave(self)
            current.heartbeat, current.is_stopped = before, before_stopped
            self._done = self._thread = None
            done.complete(None)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop: end the wait, and let the run in hand complete; say whether that was within ``timeout``.

        Called from the function itself, it does not wait, and returns false.
        """
        done = self._done
        self.shutdown_nowait(timeout)
        if self.is_own_thread(threading.get_ident()):
            return False
        return done is None or done.wait_ready(timeout, self._clock)

    def shutdown_nowait(self, timeout: float = 30.0) -> bool:  # noqa: ARG002  as all loops have it
        """Stop, without waiting for anything; true, because there is nothing to give back."""
        with self._lock:
            self._refuses = self._is_stopped = True
        self._token.stop()
        return True

    @property
    def running(self) -> bool:
        """True while ``run`` is working."""
        return self._done is not None

    def is_own_thread(self, thread: int) -> bool:
        """Say whether that thread runs the loop, and would wait for itself if it waited for the end."""
        return thread == self._thread

    # SupportsProcess.

    def post(self, work: Callable[[], object]) -> bool:
        """Accept work for the thread of the loop, ending its wait; false from the stop on."""
        with self._lock:
            if self._refuses:
                return False
            self._posted.append(work)
        self._token.nudge()
        return True

    def process(self, body: object = None) -> object:
        """Call the function now, out of turn, and return its result; ``body`` must be None."""
        if body is not None:
            raise TypeError(f"body must be None, because {self._name!r} takes no arguments, got {describe(body)}")
        result = self._fn()
        refuse_unfinished(result)
        return result

    # SupportsPause.

    def pause(self, lease: float | None = None) -> Ticket[bool]:  # noqa: ARG002  there is no message to lease
        """Begin no more runs; the ticket is true once none is in hand, false if `resume` came first."""
        at_rest = self._pause_state.close()
        self._token.nudge()
        return at_rest

    def resume(self) -> None:
        """Go on at the next due time."""
        self._pause_state.open()
        self._token.nudge()

    @property
    def needs_securing(self) -> bool:
        """False: there are no messages."""
        return False

    def secure(self) -> None:
        """Do nothing: there are no messages."""

    # SupportsRecovery.

    def recall(self, worker: int) -> bool:
        """Have `stop_asked` say true in the run in hand; the loop goes on afterwards."""
        if worker != self.progress.worker:
            return False
        self._is_recalled = True
        self._token.stop()
        return True

    def replace(self, worker: int) -> Ticket[None] | None:  # noqa: ARG002  as all loops have it
        """Return None: the worker is the thread of `run`, and cannot be replaced alone."""
        return None

    def give_back(self, worker: int | None, error: str) -> None:  # noqa: ARG002  there is no message to give back
        """Have no run follow the one that hangs."""
        with self._lock:
            self._refuses = self._is_stopped = self._is_abandoned = True
        self._token.fence()
        self._pause_state.leave(self)
        in_hand = self.progress.snapshot()[2]
        if in_hand is not None:
            self.progress.fates[in_hand.message_id] = "abandoned"

    def _work(self, max_iterations: int | None) -> None:
        schedule, runs = self._schedule, 0
        schedule.begin(at_once=self._run_at_start)
        says_waiting = False
        while not self._is_abandoned:
            if self._is_recalled:
                # First the new token, then the look: a stop, an abandon or a post does it in the other order.
                self._is_recalled, self._token = False, Token()
            self._run_posted()
            if self._is_stopped or runs == max_iterations:
                return
            if self._pause_state.is_closed:
                self._rest()
                schedule.skip()
                says_waiting = False
                continue
            left = schedule.left()
            self.heartbeat.beat()
            if left:
                if not says_waiting:
                    self.progress.polling(left)
                    says_waiting = True
                wait = min(left, schedule.longest_wait())
                wait_with(self._clock, self._clock.blocking.gate(), wait, self._token)  # woken by time, or by the token
                self._token.take_nudge()
                continue
            runs += 1
            says_waiting = False
            self._call()
            self._note_late(schedule.advance())

    def _rest(self) -> None:
        """Begin nothing until the loop is resumed; woken by a nudge, or by the token's stop."""
        self._token.take_nudge()  # a resume or a post comes first, and nudges then
        self.progress.paused()
        self.heartbeat.beat()
        if self._pause_state.rest(self):
            wait_with(self._clock, self._clock.blocking.gate(), None, self._token)
            self._token.take_nudge()
            self._pause_state.enter(self)

    def _call(self) -> None:
        self._runs += 1
        run = f"run-{self._runs}"
        self.progress.working(run)
        try:
            refuse_unfinished(self._fn())
        except BaseException as error:
            self.progress.failed += 1
            self.progress.last_error = describe(error)
            if isinstance(error, self._crash_on) or not isinstance(error, Exception):
                self.progress.has_raised = True
                raise
            report(logging.WARNING, "%s raised; it is called again at its next time", self._name, error=error)
            return
        self.progress.processed += 1
        if (self._is_stopped or self._pause_state.is_closed) and not self._is_abandoned:
            self.progress.fates[run] = "done"

    def _note_late(self, late: float) -> None:
        """Say in the health that a due time has passed during a run, and in the log when that begins."""
        was_late, self.progress.late_by = self.progress.late_by, late or None
        if late and was_late is None:
            text = "%s is late: a run ended %.1f s after the next was due; what it has missed is skipped"
            report(logging.WARNING, text, self._name, late)

    def _run_posted(self) -> None:
        """Run what was posted; on the thread of the loop."""
        while self._posted:
            self._posted.popleft()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        return f"<PeriodicLoop that calls {self._name} {self._schedule!r}, {self._runs} runs, {state}>"


def _check_function(fn: object) -> None:
    """Refuse what cannot be called without arguments, or does nothing when it is."""
    if not callable(fn):
        raise TypeError(f"fn must be a function without arguments, got {describe(fn)}")
    check_plain("fn", fn)
    try:
        parameters = inspect.signature(fn)
    except (TypeError, ValueError):  # C code may have none: then it is tried
        return
    try:
        parameters.bind()
    except TypeError:
        raise TypeError(
            f"fn must be a function without arguments, but {describe(fn)} takes {parameters}: what it needs can be"
            " bound by functools.partial or a lambda"
        ) from None


def _check_crash_on(crash_on: object) -> None:
    """Refuse what the loop would stumble over when the function first raises."""
    classes = cast("tuple[object, ...]", crash_on) if issubclass(type(crash_on), tuple) else None
    if classes is None or not all(
        isinstance(each, type) and issubclass(cast("type[object]", each), BaseException) for each in classes
    ):
        raise TypeError(f"crash_on must be a tuple of exception classes, got {describe(crash_on)}")
