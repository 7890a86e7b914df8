"""`ControlActor`: a Pykka actor that always answers, and whose end is always seen."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import pykka
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr
from typing_extensions import override

from loopwarden._blocking import SYSTEM
from loopwarden._callbacks import Resolving
from loopwarden._log import describe, report
from loopwarden._pykka_registry import register, unregister
from loopwarden._ticket import SharedTicket, Ticket, TicketCarrier, write
from loopwarden.actors.runtime._exit_hook import forget, note_ending, remember
from loopwarden.actors.runtime._inbox import Inbox, refuse, tickets_of
from loopwarden.actors.runtime._ref import ControlRef
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import ActorDeadError, UnsupportedRequestError

# Pykka's poison pill: an actor loop that replaces Pykka's must know it.
from pykka.messages import _ActorStop  # pyright: ignore[reportPrivateUsage]  # isort: skip  it has no public name

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors.loop._health import InHand
    from loopwarden.actors.loop._messages import ShutdownResult
    from loopwarden.actors.runtime._inbox import Envelope

__all__ = ["ActorExit", "ControlActor", "Deferred"]

#: By identity: the hash of other people's classes is code of their metaclasses.
_PYKKA_MESSAGES = frozenset(map(id, (_ActorStop, ProxyCall, ProxyGetAttr, ProxySetAttr)))
_thread_numbers = itertools.count()


@final
@dataclass(frozen=True, slots=True)
class ActorExit:
    """The end of an actor: who it was, what ended it if something did, and whether it was asked to end.

    It carries all that the actor knows of its end, so that an ended actor is never asked again.
    """

    actor: str
    cause: BaseException | None
    asked: bool = False
    #: How the end went, if it was a loop's or a supervisor's.
    result: ShutdownResult | None = None
    #: What the workers of a loop had in hand at the end.
    in_hand: tuple[InHand, ...] = ()
    #: Why its loop returned without being asked to, if the loop tells by an ``end_reason``; otherwise empty.
    end_reason: str = ""


@final
@dataclass(frozen=True, slots=True)
class Deferred:
    """What a handler returns to say that the answer will come later, by ``ticket``.

    If the actor ends first, the sender gets `ActorDeadError`.
    """

    ticket: Ticket[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.ticket, Ticket):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"Deferred takes a Ticket, got {describe(self.ticket)}")


class ControlActor(pykka.ThreadingActor):
    """A Pykka actor with Pykka's hooks and rules, except for what Pykka leaves open:

    - every ticket resolves: by a reply, by an error, or by the end of the actor;
    - nothing that a handler raises, ``SystemExit`` included, reaches another actor: it ends this one;
    - the end is seen exactly once, at `ended`, with its cause, after ``on_stop``, also if ``on_start`` raised.

    As in Pykka, an exception in a handler goes to the sender that asked; after a tell it ends the actor.
    A reply that is not taken (a cancelled ticket, one that another writer completed) is counted, never raised.
    """  # noqa: D415  the first sentence is the list

    use_daemon_thread = True
    #: Whether it is ready when ``on_start`` has returned; otherwise a subclass says when.
    _is_ready_when_started = True
    #: Whether it takes `ShutdownRequest`, `ShutdownConfirmRequest` and `AbandonRequest`.
    answers_shutdown = False
    #: Whether it has children, which take their own time to stop.
    has_children = False

    def __init__(self, *, clock: Clock | None = None) -> None:
        clock = resolve_clock(clock)
        super().__init__()
        self._clock = clock
        self._thread_name = f"{type(self).__name__}-{next(_thread_numbers)}"
        self._inbox = Inbox(clock.blocking)
        self.actor_inbox = cast("Any", self._inbox)  # Pykka's envelopes are its own; no other code reads them
        #: See `ControlRef.ended`.
        self.ended: Ticket[ActorExit] = SharedTicket(clock.blocking)
        #: See `ControlRef.ready`.
        self.ready: Ticket[None] = SharedTicket(clock.blocking)
        #: The threads that would wait for themselves if they waited for this actor's end.
        self.own_threads: set[int] = set()
        self._started = clock.blocking.slot()
        self._ending = False
        self._in_hand: Envelope | None = None
        self._was_asked = False
        self._cause: BaseException | None = None
        self._deferred: dict[object, Envelope] = {}
        self._unclaimed_lock = (
            clock.blocking.lock()
        )  # guards _unclaimed_replies; a deferred answer may come from any thread
        self._unclaimed_replies = 0
        self._actor_ref = self._create_ref()
        self._ref_name = str(self._actor_ref)  # what it is called in texts
        # A sender to an actor that is never launched is answered at the latest when the actor is collected.
        self._never_launched = weakref.finalize(self, _close_unlaunched, self._inbox, self._ref_name)
        self._never_launched.atexit = False

    @property
    def clock(self) -> Clock:
        """The clock that this actor lives by."""
        return self._clock

    @property
    @override
    def actor_ref(self) -> ControlRef:
        """The ref of this actor."""
        return cast("ControlRef", self._actor_ref)

    @classmethod
    @override
    def start(cls, *args: Any, **kwargs: Any) -> ControlRef:
        """Make an actor and start it; arguments go to its constructor."""
        return cls(*args, **kwargs).launch()

    def launch(self) -> ControlRef:
        """Start this very actor; launching again changes nothing.

        Raises:
            RuntimeError: if its thread cannot be started; then the actor has ended.
        """
        mark = object()
        if self._started.setdefault(0, mark) is mark:
            self._never_launched.detach()
            self._launching()
            register(self.actor_ref)
            remember(self.actor_ref)
            self._start_actor_loop()
        return self.actor_ref

    @property
    def is_launched(self) -> bool:
        """True once `launch` was called."""
        return self._started.get(0) is not None

    @property
    def unclaimed_replies(self) -> int:
        """How many replies were not taken."""
        return self._unclaimed_replies

    def disown(self, cause: BaseException) -> None:
        """Answer everybody who waits, now and from now on, and end as soon as the handler returns; from any thread."""
        name = self._ref_name

        def refuse_all(_message: object) -> object:
            raise ActorDeadError(name, cause)

        self._ending = True
        self._inbox.close(lambda envelope: refuse(envelope, refuse_all))
        in_hand = self._in_hand
        if in_hand is not None:
            self._answer(in_hand, None, ActorDeadError(name, cause))
        self._inbox.wake((_ActorStop(), None))

    def discard(self) -> None:
        """End an actor that is not launched, and never will be: its senders are answered; from any thread."""
        mark = object()
        if self._started.setdefault(0, mark) is mark:
            self._never_launched.detach()
            self._finish(None)

    def _tell_itself(self, message: object) -> None:
        """Put a message into this actor's own inbox; from any thread."""
        self._inbox.put((message, None))

    # What a subclass may replace.

    def _create_ref(self) -> ControlRef:
        return ControlRef(self)

    def _launching(self) -> None:
        """Do what comes just before the actor's thread is started; once, on the launching thread."""

    def _asked_to_stop(self) -> None:
        """Do what ``ref.stop()`` asks for: end after this message."""
        self._end()

    def _answers_after_end(self, cause: BaseException | None) -> Callable[[object], object]:
        """Return what answers a message after the end; called once, on the actor's thread, as it ends.

        The answer must not refer to the actor, or the ref would keep it alive.
        """
        name = self._ref_name

        def refuse_all(_message: object) -> object:
            raise ActorDeadError(name, cause)

        return refuse_all

    def _end(self, cause: BaseException | None = None) -> None:
        """End after the message that is being handled."""
        self._ending = True
        self._cause = cause

    # The replaced actor loop.

    @staticmethod
    @override
    def _create_actor_inbox() -> Any:
        return Inbox(SYSTEM)

    @staticmethod
    @override
    def _create_future() -> Ticket[Any]:
        return Ticket()

    @override
    def _start_actor_loop(self) -> None:
        try:
            self._clock.blocking.start_thread(self._actor_loop, self._thread_name)
        except Exception as error:  # after a Ctrl-C the thread may well have been started
            self._finish(error)
            raise

    @override
    def _actor_loop(self) -> None:
        cause: BaseException | None = None
        try:
            try:
                self.own_threads.add(threading.get_ident())
                cause = self._live()
            except BaseException as error:  # noqa: BLE001  whatever it is, the end must be seen
                cause = error
            self._finish(cause)
        except BaseException as error:  # noqa: BLE001  an interrupt of the end itself, each step of which may be taken again
            self._finish(error if cause is None else cause)

    def _live(self) -> BaseException | None:
        cause = _raised_by(self.on_start)
        if cause is None:
            if self._is_ready_when_started:
                write(self.ready)
            try:
                cause = self._serve()
            except BaseException as error:  # noqa: BLE001  also an interrupt between two messages
                cause = error
            unregister(self.actor_ref)
            self.actor_stopped.set()
            if cause is None:
                cause = _raised_by(self.on_stop)
            else:
                self._clean_up_after(cause)
        return cause

    def _clean_up_after(self, cause: BaseException) -> None:
        """Call the hook that Pykka calls: ``on_stop`` if a handler raised something else than an ``Exception``."""
        if issubclass(type(cause), Exception) or cause is self._cause:
            hook, raised = "on_failure", _raised_by(lambda: self.on_failure(type(cause), cause, cause.__traceback__))
        else:
            hook, raised = "on_stop", _raised_by(self.on_stop)
        if raised is not None:
            report(logging.ERROR, "%s() of %s raised", hook, self._ref_name, error=raised)

    def _serve(self) -> BaseException | None:
        get, handle = self._inbox.get, self._handle_receive
        while not self._ending:
            message, ticket = self._in_hand = get()  # woken by a send
            reply: object = None
            try:
                reply = handle(message)
                # By type(): the class of other people's objects may be a property that raises.
                if issubclass(type(message), TicketCarrier) or type(reply) is Deferred:
                    self._reply((message, ticket), reply)
                elif ticket is not None and not write(ticket, reply):
                    self._count_unclaimed()
            except UnsupportedRequestError as error:
                # A request that the actor does not know must not end it, even if no sender waits for the answer.
                if not self._answer((message, ticket), None, error):
                    report(logging.WARNING, "%s", error)
            except Exception as error:  # noqa: BLE001  isolates user code
                if not self._answer((message, ticket), None, error):
                    return error
            except BaseException as error:  # noqa: BLE001  isolates user code
                self._answer((message, ticket), None, ActorDeadError(self._ref_name, error))
                return error
            message = ticket = reply = self._in_hand = None  # an idle actor keeps no message alive
        return self._cause

    def _finish(self, cause: BaseException | None) -> None:
        note_ending(self.actor_ref)  # before the end is announced: a listener may exit, and has forgotten nothing
        unregister(self.actor_ref)
        self.actor_stopped.set()
        name = self._ref_name
        ended = ActorExit(name, cause, self._was_asked)
        if cause is not None:
            fields: dict[str, Any] = {"error": cause, "actor": name, **self._about_end(cause)}
            report(logging.ERROR, "%s was ended by %s", name, describe(cause), **fields)
        try:
            answer = self._answers_after_end(cause)
            ended = self._complete_exit(ended)
        except BaseException as error:  # noqa: BLE001  a hook that fails must not leave tickets behind
            report(logging.ERROR, "%s could not prepare its replies after its end", name, error=error, actor=name)
            answer = ControlActor._answers_after_end(self, cause)
        self._inbox.close(lambda envelope: refuse(envelope, answer))
        if not self.ready.is_ready():
            write(self.ready, error=ActorDeadError(name, cause))
        if not write(self.ended, ended):
            self._count_unclaimed()
        for envelope in self._unanswered():
            self._answer(envelope, None, ActorDeadError(name, cause))
        for key in tuple(self._deferred):
            waiting = self._deferred.get(key)
            if waiting is not None:  # otherwise its answer arrived just now
                self._answer(waiting, None, ActorDeadError(name, cause))
                self._deferred.pop(key, None)
        forget(self.actor_ref)

    def _about_end(self, _cause: BaseException) -> dict[str, Any]:
        """Return what the log record of the end carries besides; with ``error`` as text it has no traceback."""
        return {}

    def _complete_exit(self, ended: ActorExit) -> ActorExit:
        """Add what else is known of the end; called after `_answers_after_end`."""
        return ended

    def _unanswered(self) -> tuple[Envelope, ...]:
        """Return what an interrupt has left in hand, answered or not."""
        return () if self._in_hand is None else (self._in_hand,)

    @override
    def _handle_receive(self, message: Any) -> Any:
        if id(type(message)) not in _PYKKA_MESSAGES:  # pyright: ignore[reportUnknownArgumentType]  whatever it is
            return self.on_receive(message)
        if type(message) is _ActorStop:
            self._was_asked = True
            self._asked_to_stop()
            return Deferred(self.ended.map(lambda _: None))
        return super()._handle_receive(message)

    def _reply(self, envelope: Envelope, reply: object) -> None:
        if type(reply) is not Deferred:
            self._answer(envelope, reply, None)
        elif tickets := tickets_of(envelope):
            self._answer_later(envelope, tickets, reply.ticket)

    def _answer_later(self, envelope: Envelope, tickets: list[Ticket[Any]], answer: Ticket[Any]) -> None:
        key = object()
        self._deferred[key] = envelope

        has_come = False  # as in `resolve_from`

        def arrived(source: Ticket[Any]) -> None:
            nonlocal has_come
            has_come = True
            # Answered first and taken out second, as at the end of the actor: then an interrupt loses no answer.
            waiting = self._deferred.get(key)
            if waiting is not None:
                try:
                    result = source.wait(0)
                except BaseException as error:  # noqa: BLE001  whatever it is, it is the answer
                    self._answer(waiting, None, error)
                else:
                    self._answer(waiting, result, None)
                self._deferred.pop(key, None)

        def take_back(_: Ticket[Any]) -> None:
            if has_come or self.actor_stopped.is_set():
                return  # this is the answer, or the end
            if all(ticket.is_ready() for ticket in tickets) and self._deferred.pop(key, None) is not None:
                answer.forget_ready(callback)
                self._count_unclaimed()

        callback = Resolving(arrived)
        answer.on_ready(callback)
        if not has_come:
            for ticket in tickets:
                ticket.on_ready(Resolving(take_back))

    def _answer(self, envelope: Envelope, result: object, error: BaseException | None) -> bool:
        """Answer every ticket of an envelope; false if there is none."""
        tickets = tickets_of(envelope)
        for ticket in tickets:
            if not self._write(ticket, result, error):
                self._count_unclaimed()
        return bool(tickets)

    def _write(self, ticket: Ticket[Any], result: object, error: BaseException | None) -> bool:
        """Write an answer, once more if it is interrupted; a ticket with code of its own must not keep the others."""
        for _ in range(2):
            try:
                return write(ticket, result, error)
            except BaseException as fault:  # noqa: BLE001  isolates user code
                report(logging.ERROR, "%s could not write a reply to its ticket", self._ref_name, error=fault)
        return False

    def _count_unclaimed(self) -> None:
        with self._unclaimed_lock:
            self._unclaimed_replies += 1


def _close_unlaunched(inbox: Inbox, name: str) -> None:
    def refuse_all(_message: object) -> object:
        raise ActorDeadError(name)

    inbox.close(lambda envelope: refuse(envelope, refuse_all))


def _raised_by(hook: Callable[[], object]) -> BaseException | None:
    """Run one of the user's hooks; return what it raised."""
    try:
        hook()
    except BaseException as error:  # noqa: BLE001  isolates user code
        return error
    return None
