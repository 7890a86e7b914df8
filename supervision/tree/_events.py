"""The events of a supervisor: typed, kept up to a number, and sent to subscribers."""

from __future__ import annotations

import logging
import traceback
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Self, cast, final

import pykka
from pydantic import BaseModel, ConfigDict

from loopwarden._log import describe, report
from loopwarden._ticket import Ticket, write
from loopwarden.actors import InHand
from loopwarden.errors import ActorDeadError, ChildUnavailableError, TicketTimeoutError
from loopwarden.supervision.policy._effects import EmitEvent, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from loopwarden._blocking import Blocking
    from loopwarden.clock import Clock
    from loopwarden.mailbox import DeadLetterNotice

__all__ = ["EventLog", "EventStream", "SupervisionEvent", "stack_of"]

#: How many events a supervisor keeps, and a stream that is not read.
KEPT = 1_000
#: Real seconds that a reader waits for an event: they only matter when none comes.
EVENT_TIMEOUT = 30.0
#: Characters of a trace that are kept.
LONGEST_STACK = 16_000


class SupervisionEvent(BaseModel):
    """One event, of one child."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: EventKind
    #: The supervisor in which it happened, and the child it happened to.
    supervisor: str
    child: str
    #: When, in seconds since the epoch.
    at: float
    #: The exception, as text.
    cause: str | None = None
    #: The trace of the exception, or the stack of the thread that gave no sign of life.
    stack: str | None = None
    #: The number of the restart that it is about; 0 is the first start.
    attempt: int = 0
    #: Seconds until the restart.
    delay: float = 0.0
    #: Why a child ended (``normal``, ``shutdown``, ``error``, ``killed``), or was abandoned; of a restart and of a
    #: supervisor that gives up, why the loop had ended, if it has told.
    reason: str = ""
    #: The worker that it is about, if it is about one.
    worker: int | None = None
    #: The message that became a dead letter.
    message_id: str | None = None
    in_hand: tuple[InHand, ...] = ()


def stack_of(error: BaseException | None) -> str | None:
    """Return the trace of an exception as text, so that an event keeps no frame alive; runs no code of the error."""
    if error is None:
        return None
    lines = traceback.format_tb(error.__traceback__)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and cause.__traceback__ is not None:
        lines = [*traceback.format_tb(cause.__traceback__), f"{describe(cause)}, and then\n", *lines]
    text = "".join(lines) + describe(error)
    return text if len(text) <= LONGEST_STACK else f"{text[:LONGEST_STACK]} and so on"


@final
class EventStream:
    """Events in order, from the subscription on, for one reader: ``for event in stream`` ends with the supervisor.

    Once it is closed, or dropped, it gets no more events. As a context manager it closes itself.
    """

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._lock = blocking.lock()  # guards _events together with _waiting
        self._events: deque[SupervisionEvent] = deque(maxlen=KEPT)
        self._waiting: Ticket[None] | None = None
        self._is_over = False
        #: True once its reader has closed it.
        self.closed = False

    def put(self, event: SupervisionEvent) -> None:
        """Add an event and wake the reader; if too many are unread, the oldest is dropped."""
        with self._lock:
            if not self.closed:
                self._events.append(event)
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            write(waiting)

    def end(self) -> None:
        """Note that there will be no more; wakes the reader, which still gets the unread ones. For the supervisor."""
        with self._lock:
            self._is_over = True
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            write(waiting)

    def close(self) -> None:
        """Drop unread events, and take no more; from any thread, and more than once. A waiting reader is woken."""
        with self._lock:
            self.closed = True
            self._events.clear()
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def get(self, timeout: float | None = None) -> SupervisionEvent:
        """Return the next event.

        Raises:
            TicketTimeoutError: if no event comes in ``timeout`` real seconds.
            ActorDeadError: if there are no more, because the supervisor has ended.
            ValueError: if the stream is closed.
        """
        event = self._next(timeout)
        if event is None and self.closed:
            raise ValueError(f"{self!r} has no more events: subscribe() gives a new one")
        if event is None:
            raise ActorDeadError(f"the supervisor of {self!r}")
        return event

    def wait_for(
        self, kind: EventKind | str, child: str | None = None, timeout: float | None = EVENT_TIMEOUT
    ) -> SupervisionEvent:
        """Return the next event of that kind, dropping those before it.

        Args:
            kind: The kind of the event.
            child: The child that it is about; any if not given.
            timeout: Real seconds without any event; in a simulation simulated ones, and without limit if not given.

        Raises:
            ValueError: if there is no such kind, or the stream is closed.
            TicketTimeoutError: if no event comes for ``timeout`` seconds; it names the events before.
            ActorDeadError: if there are no more, because the supervisor has ended.
        """
        kind, dropped = _checked(kind), deque[str](maxlen=10)
        if timeout is EVENT_TIMEOUT and self._blocking.is_virtual:  # this very object: the caller has given none
            timeout = None
        while True:
            try:
                event = self.get(timeout)
            except TicketTimeoutError:
                whose = "" if child is None else f" of child {child!r}"
                before = ", ".join(dropped) or "nothing"
                text = f": no {kind.value!r}{whose}, but {before}"
                raise TicketTimeoutError(timeout or 0.0, text) from None
            if event.kind is kind and child in {None, event.child}:
                return event
            dropped.append(f"{event.kind.value} {event.child}")

    def __iter__(self) -> Iterator[SupervisionEvent]:
        """Return the events as they happen, until the supervisor has ended, or the stream is closed."""
        while (event := self._next(None)) is not None:
            yield event

    def _next(self, timeout: float | None) -> SupervisionEvent | None:
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._is_over:
                    return None
                waiting = self._waiting = Ticket(self._blocking)
            waiting.wait(timeout)  # woken by put, end and close

    def __repr__(self) -> str:
        return "<EventStream, closed>" if self.closed else f"<EventStream, {len(self._events)} unread>"


def _checked(kind: EventKind | str) -> EventKind:
    try:
        return EventKind(kind)
    except ValueError:
        kinds = ", ".join(each.value for each in EventKind)
        raise ValueError(f"kind must be the kind of an event, one of {kinds}; got {describe(kind)}") from None


@final
class EventLog:
    """The last events of one supervisor, and its subscribers; belongs to that supervisor's thread."""

    def __init__(self, supervisor: str, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        #: Passes each event to the supervisor above.
        self.forward: Callable[[SupervisionEvent], object] | None = None
        self._kept: deque[SupervisionEvent] = deque(maxlen=KEPT)
        # Streams are held weakly: a stream that its reader has dropped is never read.
        self._streams: list[weakref.ref[EventStream]] = []
        self._listeners: list[pykka.ActorRef[Any]] = []

    def note(self, kind: EventKind, child: str, *, cause: BaseException | None = None, **fields: Any) -> None:
        """Make an event, and add it."""
        text = None if cause is None else describe(cause)
        at = self._clock.wall()
        self.add(SupervisionEvent(kind=kind, supervisor=self._supervisor, child=child, at=at, cause=text, **fields))

    def note_dead_letter(self, child: str, notice: DeadLetterNotice) -> None:
        """Make an event of a dead letter; its mailbox has logged it."""
        self.add(
            SupervisionEvent(
                kind=EventKind.DEAD_LETTERED,
                supervisor=self._supervisor,
                child=child,
                at=self._clock.wall(),
                cause=notice.error,
                reason=notice.reason,
                message_id=notice.message_id,
            )
        )

    def take(self, note: EmitEvent, in_hand: tuple[InHand, ...], untold: BaseException | None = None) -> None:
        """Make an event of what the machine has emitted, and log the kinds that are not logged elsewhere.

        Args:
            note: What was emitted.
            in_hand: What the workers of the child had in hand, if it has ended.
            untold: The error whose traceback is told neither by another record nor by raising it.
        """
        is_exit = note.kind is EventKind.EXITED
        has_stack = is_exit or note.kind is EventKind.START_FAILED  # the other kinds follow from one of these
        self.note(
            note.kind,
            note.child,
            cause=note.error,
            stack=stack_of(note.error) if has_stack else None,
            attempt=note.attempt,
            delay=note.delay,
            reason=note.reason,
            in_hand=in_hand if is_exit else (),
        )
        cause = describe(note.error)
        if note.kind is EventKind.START_FAILED:
            error = cause if untold is None or note.error is not untold else untold
            self._log(logging.WARNING, "child %r could not be started: %s", note, cause, error=error)
        elif note.kind is EventKind.RESTARTING and note.reason and note.error is None:
            self._log(logging.WARNING, "child %r ended, and will be restarted, because %s", note, note.reason)
        elif note.kind is EventKind.RESTARTING:
            self._log(logging.INFO, "child %r will be restarted in %.1f s", note, note.delay)
        elif note.kind is EventKind.CHILD_GAVE_UP:
            why = note.reason or cause
            self._log(logging.ERROR, "child %r failed too often, and stays down: %s", note, why, error=cause)

    def _log(
        self, level: int, text: str, note: EmitEvent, known: object, error: BaseException | str | None = None
    ) -> None:
        supervisor, child = self._supervisor, note.child
        report(level, text, child, known, error=error, supervisor=supervisor, child=child, attempt=note.attempt)

    def add(self, event: SupervisionEvent) -> None:
        """Keep an event, and send it to all subscribers; an actor that has ended is unsubscribed."""
        self._kept.append(event)
        for stream in self._open_streams():
            stream.put(event)
        for listener in tuple(self._listeners):
            try:
                listener.tell(event)
            except Exception as error:  # noqa: BLE001  a subscriber must not end the supervisor
                if isinstance(error, ChildUnavailableError) and not cast("Any", listener).ended.is_ready():
                    continue  # it is being restarted, and stays subscribed
                self.unsubscribe(listener)
                if not isinstance(error, pykka.ActorDeadError):
                    report(logging.WARNING, "could not tell %r an event, so it is unsubscribed", listener, error=error)
        if self.forward is not None:
            self.forward(event)

    def subscribe(self, listener: EventStream | pykka.ActorRef[Any]) -> None:
        """Send each event from now on to a stream or an actor."""
        if isinstance(listener, EventStream):
            self._open_streams()  # forgets the closed ones
            self._streams.append(weakref.ref(listener))
        else:
            self._listeners.append(listener)

    def unsubscribe(self, listener: EventStream | pykka.ActorRef[Any]) -> None:
        """Send it no more events."""
        self._listeners = [each for each in self._listeners if each is not listener]
        self._streams = [each for each in self._streams if each() is not listener]

    def close(self) -> None:
        """End the streams."""
        for stream in self._open_streams():
            stream.end()

    def _open_streams(self) -> list[EventStream]:
        """Return the streams that may still be read, and forget the others."""
        streams = [(each, stream) for each in self._streams if (stream := each()) is not None and not stream.closed]
        self._streams = [each for each, _ in streams]
        return [stream for _, stream in streams]

    @property
    def kept(self) -> tuple[SupervisionEvent, ...]:
        """The last events, oldest first."""
        return tuple(self._kept)
