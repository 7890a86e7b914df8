"""`Incarnation`: one child's stay with its supervisor, from the call of its factory to its end."""

from __future__ import annotations

import logging
import math
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

from loopwarden._frames import stack_of
from loopwarden._log import describe, report
from loopwarden.actors import ShutdownResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Slot
    from loopwarden._threads import ThreadCache
    from loopwarden._ticket import Ticket
    from loopwarden.actors import AbandonRequest, AbandonResult, ActorExit
    from loopwarden.clock import Clock, Timer
    from loopwarden.mailbox import DeadLetterNotice
    from loopwarden.supervision.tree._adapter import ChildAdapter
    from loopwarden.supervision.tree._events import SupervisionEvent
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = [
    "Abandoned",
    "BackoffElapsed",
    "Beginning",
    "ChildEvent",
    "ChildExited",
    "ChildStarted",
    "DeadLettered",
    "FactoryReturned",
    "Incarnation",
    "IncarnationReport",
    "Report",
    "Reporter",
    "StopTimedOut",
]


@final
@dataclass(frozen=True, slots=True)
class FactoryReturned:
    """The factory of a child has returned: a life, None for "not now", or what it raised."""

    incarnation: int
    adapter: ChildAdapter | None = None
    error: BaseException | None = None


@final
@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child is running."""

    incarnation: int


@final
@dataclass(frozen=True, slots=True)
class ChildExited:
    """A child has ended, or was abandoned."""

    incarnation: int
    ended: ActorExit


@final
@dataclass(frozen=True, slots=True)
class StopTimedOut:
    """A child did not start or stop in time."""

    incarnation: int
    #: Which alarm it was: one that was set before the last says nothing any more.
    alarm: int


@final
@dataclass(frozen=True, slots=True)
class BackoffElapsed:
    """The back-off of a child is over."""

    child: str
    incarnation: int


@final
@dataclass(frozen=True, slots=True)
class StopMore:
    """Children are slow to stop: those that have not been told are to be told now."""


@final
@dataclass(frozen=True, slots=True)
class Abandoned:
    """A worker of a child was given up, as requested."""

    child: str
    request: AbandonRequest
    result: AbandonResult


@final
@dataclass(frozen=True, slots=True)
class ChildEvent:
    """Something has happened in a supervisor below."""

    event: SupervisionEvent


@final
@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message of a child's mailbox has become a dead letter."""

    child: str
    notice: DeadLetterNotice


IncarnationReport: TypeAlias = FactoryReturned | ChildStarted | ChildExited | StopTimedOut
Report: TypeAlias = IncarnationReport | BackoffElapsed | StopMore | Abandoned | ChildEvent | DeadLettered


@final
class Reporter:
    """Tells a supervisor what becomes of one life; see `Watcher`."""

    def __init__(self, incarnation: int, put: Callable[[object], None]) -> None:
        self._incarnation = incarnation
        self._put = put

    def entered(self) -> None:
        """Report that it runs."""
        self._put(ChildStarted(self._incarnation))

    def ended(self, ended: ActorExit) -> None:
        """Report its end."""
        self._put(ChildExited(self._incarnation, ended))


#: Seconds that a child has to stop, if its spec does not say.
STOP_TIMEOUT = 5.0
#: Seconds that an actor has to end once it was abandoned, which takes it milliseconds; a supervisor has more, because
#: it abandons its children first.
ABANDON_GRACE = 3.0


@final
@dataclass(slots=True, eq=False)
class Beginning:
    """The start of a child, for those who look whether it hangs."""

    #: In the clock's monotonic seconds.
    since: float
    #: Seconds that it may take, after which the supervisor itself gives it up; None if it does not.
    limit: float | None
    #: The thread of the factory; written by that thread.
    thread_id: int | None = None


@final
@dataclass(slots=True, eq=False)
class Incarnation:
    """One stay; only its supervisor's thread touches it."""

    spec: ChildSpec
    number: int
    #: Takes what is to be reported to the supervisor.
    put: Callable[[object], None]
    #: None while the factory is at work.
    adapter: ChildAdapter | None = None
    #: Resolves when the factory has returned.
    made: Ticket[None] | None = None
    #: Since when it starts; None once it is up.
    beginning: Beginning | None = None
    has_entered: bool = False
    #: What those are told who wait for its end; one for all of them, or each would stay until then.
    confirmed: Ticket[ShutdownResult] | None = None
    is_stopping: bool = False
    #: When it was asked to end, in monotonic seconds.
    stopping_since: float | None = None
    is_abandoned: bool = False
    #: Why it was abandoned.
    reason: str = ""
    #: Counts the alarms: one that rang just before it was cancelled must not be taken for the next.
    alarm: int = 0
    # Runs out when it has had its time to start, or to stop.
    _timer: Timer | None = None
    # What the factory has made, or that it is not waited for any more, whichever comes first.
    _outcome: Slot[FactoryReturned | None] | None = None

    def begin(self, threads: ThreadCache, make: Callable[[], ChildAdapter | None], clock: Clock) -> None:
        """Have the factory called, within the time that the spec allows."""
        outcome: Slot[FactoryReturned | None] = clock.blocking.slot()
        self._outcome = outcome
        beginning = self.beginning = Beginning(clock.monotonic(), self.spec.start_timeout)
        if self.spec.start_timeout is not None:
            self.set_timer(self.spec.start_timeout, clock, "start")

        def job() -> None:
            beginning.thread_id = threading.get_ident()
            try:
                made = FactoryReturned(self.number, make())
            except BaseException as error:  # noqa: BLE001  isolates user code: it is why the start failed
                describe(error)  # here, where other people's code may take its time
                made = FactoryReturned(self.number, error=error)
            if outcome.setdefault(0, made) is made:
                self.put(made)
                return
            text = "start of child %r, which was given up, has come to an end: %s"
            how = "it raised" if made.error else "what it made is not used"
            report(logging.WARNING, text, self.spec.id, how, child=self.spec.id)
            if made.adapter is not None:
                made.adapter.discard()

        try:
            self.made = threads.submit(job)
        except RuntimeError as error:  # no thread for it
            self.put(FactoryReturned(self.number, error=error))

    def give_up_start(self) -> ChildAdapter | None:
        """Let whatever the factory may still make be discarded; return what it has made just now."""
        assert self._outcome is not None, "it has begun"
        made = self._outcome.setdefault(0, None)
        return None if made is None else made.adapter

    def enter(self) -> None:
        """Note that it is up."""
        self.has_entered = True
        self.end_start()

    def end_start(self) -> None:
        """Note that it need not start in time any more, because it is up, or each of its children has its own time."""
        self.beginning = None
        if not self.is_stopping:  # otherwise the timer is that of the stop
            self.cancel_timer()

    def where_it_starts(self) -> str | None:
        """Return the stack of the thread that starts it; None if it is up."""
        if self.beginning is None:
            return None
        return stack_of(self.beginning.thread_id if self.adapter is None else self.adapter.thread_id)

    def launch(self, adapter: ChildAdapter) -> None:
        """Begin a life."""
        if adapter.is_supervisor:
            self.end_start()
        adapter.forward_events(lambda event: self.put(ChildEvent(event)))
        adapter.watch_dead_letters(lambda notice: self.put(DeadLettered(self.spec.id, notice)))
        adapter.launch(Reporter(self.number, self.put))

    def stop(self, wanted: float, clock: Clock, most: float = math.inf) -> None:
        """Ask for the end, within what the spec allows, or ``wanted`` seconds if that is more, but never ``most``."""
        self.is_stopping = True
        if self.stopping_since is None:
            self.stopping_since = clock.monotonic()
        patience = min(self.patience(wanted), most)
        if self.adapter is not None:
            # A supervisor below is not cut short, but its children are told how long they have.
            self.adapter.stop(wanted if self.is_supervisor else patience)
        if patience != math.inf:
            self.set_timer(patience, clock)
        elif self.adapter is not None:  # a factory that hangs has still its time to start
            self.cancel_timer()

    def set_timer(self, seconds: float, clock: Clock, what: str = "stop") -> None:
        """Have it reported if it has not ended by then, or is not up."""
        self.cancel_timer()
        timed_out = self.time_out()
        try:
            self._timer = clock.call_later(seconds, lambda: self.put(timed_out))
        except RuntimeError as error:  # no thread for timers
            child = self.spec.id
            report(logging.WARNING, "the %s of child %r has no time-out", what, child, error=error, child=child)
            if self.adapter is None and self.is_stopping:  # a factory that hangs would never be heard of again
                self.put(timed_out)

    def wait_for_the_end(self, clock: Clock) -> None:
        """Report it once more if it does not end although it was abandoned, because its actor hangs too."""
        self.cancel_timer()
        timed_out, seconds = self.time_out(), ABANDON_GRACE * (5 if self.is_supervisor else 1)
        with suppress(RuntimeError):  # no thread for timers: then it is waited for
            self._timer = clock.call_later(seconds, lambda: self.put(timed_out))

    def time_out(self) -> StopTimedOut:
        """Return what is reported when its time is over, as things are now."""
        return StopTimedOut(self.number, self.alarm)

    def cancel_timer(self) -> None:
        """Note that it has ended in time, or has another time-out."""
        self.alarm += 1
        if self._timer is not None:
            self._timer.cancel()

    def stopping_for(self, clock: Clock) -> float:
        """Return the seconds since it was asked to end; 0 if it was not."""
        return 0.0 if self.stopping_since is None else clock.monotonic() - self.stopping_since

    def result_so_far(self, clock: Clock, error: BaseException | None = None) -> ShutdownResult:
        """Say how it stands with one that has not ended; ``error`` if it is not waited for any more."""
        return ShutdownResult(
            loop_name=self.spec.id,
            clean_shutdown=False,
            duration=self.stopping_for(clock),
            fates=() if self.adapter is None else self.adapter.fates(),
            error=None if error is None else describe(error),
            abandoned=error is not None,
        )

    @property
    def is_supervisor(self) -> bool:
        """True if it has children of its own."""
        return self.adapter is not None and self.adapter.is_supervisor

    def patience(self, wanted: float = 0.0) -> float:
        """Return the seconds that it has to stop."""
        if isinstance(self.spec.shutdown, float | int):
            return max(self.spec.shutdown, wanted)
        if self.is_supervisor:
            return math.inf
        return max(STOP_TIMEOUT, wanted)
