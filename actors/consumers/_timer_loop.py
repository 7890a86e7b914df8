"""`TimerLoop`: calls a function at the due times of a schedule, by the clock of its process alone."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, final

from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe, report
from loopwarden._ticket import Ticket
from loopwarden.actors.consumers._mailbox_worker import refuse_unfinished
from loopwarden.actors.consumers._pause_state import PauseState
from loopwarden.actors.loop._current import current
from loopwarden.actors.loop._health import Progress
from loopwarden.mailbox import Token
from loopwarden.mailbox._token import wait_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors.consumers._schedule import Schedule
    from loopwarden.clock import Clock

__all__ = ["TimerLoop", "note_late"]


def note_late(progress: Progress, name: str, late: float) -> None:
    """Say in the health that a due time has passed during a run, and in the log when that begins."""
    was_late, progress.late_by = progress.late_by, late or None
    if late and was_late is None:
        text = "%s is late: a run ended %.1f s after the next was due; what it has missed is skipped"
        report(logging.WARNING, text, name, late)


@final
class TimerLoop:
    """What a `PeriodicLoop` does if each process has due times of its own.

    Args:
        fn: What to call.
        schedule: When.
        name: What the function is called in the log.
        run_at_start: Whether there is a run at once.
        crash_on: Classes of exceptions that end the loop.
        clock: The time it lives by.
    """

    #: There is no mailbox that could be closed.
    end_reason = ""

    def __init__(
        self,
        fn: Callable[[], object],
        schedule: Schedule,
        *,
        name: str,
        run_at_start: bool,
        crash_on: tuple[type[BaseException], ...],
        clock: Clock,
    ) -> None:
        self._schedule = schedule
        self._fn = fn
        self._run_at_start = run_at_start
        self._crash_on = crash_on
        self._clock = clock
        self._name = name
        #: Its sign of life: with each look at the time, and each run.
        self.heartbeat = Heartbeat(clock)
        #: What it is doing.
        self.progress = Progress(clock, self.heartbeat)
        self._pause_state = PauseState(clock.blocking)
        self._token = Token()
        #: How often the function was called.
        self.runs = 0
        self._is_recalled = self._is_abandoned = False
        self._lock = clock.blocking.lock()  # guards _refuses together with _posted, and _done against a second run
        self._refuses = self._is_stopped = False
        self._posted: deque[Callable[[], object]] = deque()
        self._done: Ticket[None] | None = None
        self._thread: int | None = None

    def run(
        self,
        *,
        max_iterations: int | None,
        visibility_timeout: float | None = None,  # noqa: ARG002  there is no message to lease
        wait_time_seconds: float | None = None,  # noqa: ARG002  as above
    ) -> None:
        """Call the function at its times; see `PeriodicLoop.run`."""
        done: Ticket[None] = Ticket(self._clock.blocking)
        with self._lock:
            if self._done is not None:
                raise RuntimeError(f"the loop that calls {self._name!r} is running already")
            self._done, self._thread = done, threading.get_ident()
            self._refuses = self._is_stopped
        before, before_stopped = current.heartbeat, current.is_stopped
        current.heartbeat, current.is_stopped = self.heartbeat, lambda: self._token.stopped
        self.progress.thread_id = threading.get_ident()
        self._pause_state.enter(self)
        try:
            try:
                self._work(max_iterations)
            finally:
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

    def post(self, work: Callable[[], object]) -> bool:
        """Accept work for the thread of the loop, ending its wait; false from the stop on."""
        with self._lock:
            if self._refuses:
                return False
            self._posted.append(work)
        self._token.nudge()
        return True

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
            note_late(self.progress, self._name, schedule.advance())

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
        self.runs += 1
        run = f"run-{self.runs}"
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

    def _run_posted(self) -> None:
        """Run what was posted; on the thread of the loop."""
        while self._posted:
            self._posted.popleft()()

    def __repr__(self) -> str:
        return f"<TimerLoop that calls {self._name} {self._schedule!r}>"
