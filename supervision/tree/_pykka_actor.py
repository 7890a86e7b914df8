"""`PlainActor`: an unmodified Pykka actor whose every end is reported, once, and whose every message is watched.

Pykka does not report an ``on_start`` that raises. It stops all actors of the process when one raises a
``BaseException``. It leaves a sender waiting whose message comes too late. The class of the actor stays as it is: only
this instance is wrapped.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast, final

import pykka
from typing_extensions import override

from loopwarden._blocking import SYSTEM
from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe, report
from loopwarden._pykka_registry import register, unregister
from loopwarden._ticket import Ticket, write
from loopwarden.actors import ActorExit, Progress
from loopwarden.actors.loop._current import current
from loopwarden.actors.loop._health import LoopHealth
from loopwarden.errors import ActorDeadError

# Pykka's poison pill: it tells a stop from other ends.
from pykka.messages import _ActorStop  # pyright: ignore[reportPrivateUsage]  # isort: skip  it has no public name
from pykka._envelope import Envelope  # isort: skip  likewise

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from loopwarden._blocking import WorkQueue
    from loopwarden.clock import Clock

__all__ = ["PlainActor"]

_WAKE: Envelope[Any] = Envelope(_ActorStop())


@final
class _ReplyTo(pykka.Future[Any]):
    """Takes a reply for a ticket; a reply that comes too late is dropped, where it would end Pykka's own actor."""

    def __init__(self, ticket: Ticket[Any]) -> None:
        super().__init__()
        self._ticket = ticket

    @override
    def get(self, *, timeout: float | None = None) -> Any:
        return self._ticket.wait(timeout)

    @override
    def set(self, value: Any = None) -> None:
        write(self._ticket, value)

    @override
    def set_exception(
        self,
        exc_info: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] | None = None,
    ) -> None:
        with suppress(Exception):
            self._ticket.set_exception(exc_info)


@final
class PlainActor:
    """Runs one Pykka actor on one of our threads."""

    def __init__(self, actor: pykka.ThreadingActor, name: str, clock: Clock) -> None:
        self.actor = actor
        self._hooked = cast("Any", actor)  # what is replaced below is private to Pykka
        self._name = name
        self._clock = clock
        self._blocking = blocking = clock.blocking
        self._put: Callable[[Any], None] = actor.actor_inbox.put
        self._cause: BaseException | None = None
        self._was_asked = False
        self._stops_itself = False
        self._is_closed = False
        #: The thread that runs it.
        self.thread_id: int | None = None
        #: Resolves once, when the actor's thread has nothing more to do.
        self.ended: Ticket[ActorExit] = Ticket(blocking)
        self._entered: Callable[[], None] = lambda: None
        self._in_hand: Envelope[Any] | None = None
        #: Beats with each message, and with each `beat` in it.
        self.heartbeat = Heartbeat(clock)
        #: What it is doing.
        self.progress = Progress(clock, self.heartbeat)
        #: What the watchdog judges.
        self.health = LoopHealth(self)
        self._since: deque[float] = deque()  # when each message that waits in the inbox came
        self._wrap()  # before any message can reach it

    def launch(self, entered: Callable[[], None]) -> None:
        """Start it; ``entered`` is called, on its thread, when ``on_start`` has returned."""
        self._entered = entered
        register(self.actor.actor_ref)
        try:
            self._blocking.start_thread(self._run, f"{self._name}-actor")
        except RuntimeError as error:
            self._cause = error
            self._finish()

    def ask_to_stop(self) -> None:
        """Stop it after the messages that are in its inbox."""
        with suppress(pykka.ActorDeadError):
            self.actor.actor_ref.tell(_ActorStop())

    def ask(self, message: object) -> Ticket[Any]:
        """Send it a message, and return a ticket for its answer, which resolves even if the actor ends first."""
        ticket: Ticket[Any] = Ticket(self._blocking)
        self.actor.actor_inbox.put(Envelope(message, reply_to=_ReplyTo(ticket)))
        return ticket

    def tell(self, message: object) -> None:
        """Send it a message without an answer.

        Raises:
            ActorDeadError: if it has ended, or takes no messages any more.
        """
        if self.actor.actor_stopped.is_set():
            raise ActorDeadError(self._name, self._cause)
        self.actor.actor_inbox.put(Envelope(message))

    def disown(self) -> None:
        """Let it end as soon as its handler returns, and take no message until then."""
        unregister(self.actor.actor_ref)
        self.actor.actor_stopped.set()
        self._close_inbox()
        if (in_hand := self._in_hand) is not None:
            self._refuse(in_hand)
        self._put(_WAKE)  # it may be waiting for a message, and looks at the flag only after one

    def _wrap(self) -> None:
        hooked = self._hooked
        set_up, receive, stop = (
            hooked._actor_loop_setup,  # noqa: SLF001  Pykka's extension points, pinned to its major version
            hooked._handle_receive,  # noqa: SLF001  as above
            self.actor.stop,
        )

        def set_up_and_tell() -> None:
            set_up()
            if not self.actor.actor_stopped.is_set():
                self._entered()
            elif self._cause is None:  # it was abandoned meanwhile, and has to close what it has opened
                self.actor.on_stop()

        def record_failure(_kind: Any, error: BaseException | None, _trace: Any) -> None:
            # Not Pykka's own, which logs it too, without the name of the child.
            if not self._record(error):
                report(logging.ERROR, "a hook of %s raised", self._name, error=error)
            unregister(self.actor.actor_ref)
            self.actor.actor_stopped.set()

        def stop_itself() -> None:
            self._stops_itself = True
            stop()

        hooked._actor_loop_teardown = lambda: None  # noqa: SLF001  as above; `_finish` answers what is left, with the cause
        hooked._actor_loop_setup = set_up_and_tell  # noqa: SLF001  as above
        hooked._handle_failure = record_failure  # noqa: SLF001  as above
        hooked._handle_receive = partial(self._receive_alone, receive)  # noqa: SLF001  as above
        hooked.stop = stop_itself
        self._wrap_inbox()

    def _receive_alone(self, receive: Callable[[Any], Any], message: Any) -> Any:
        try:
            # By type(): the class of a user's object may be a property that raises.
            if type(message) is _ActorStop and not self._stops_itself:
                self._was_asked = True
            return receive(message)
        except Exception:
            raise
        except BaseException as error:  # isolates user code, for which Pykka would stop all actors
            self._end_by(error)
            in_hand = self._in_hand
            if in_hand is None or in_hand.reply_to is None:
                return None  # raised, it would be a failure, for which Pykka has another hook
            raise ActorDeadError(self._name, error) from error

    def _wrap_inbox(self) -> None:
        inbox = cast("Any", self.actor.actor_inbox)
        is_pykkas_own = type(self.actor)._create_actor_inbox is pykka.ThreadingActor._create_actor_inbox  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  as above
        if is_pykkas_own and self._blocking is not SYSTEM:
            count = self._move_to_seam(inbox)
        else:
            count = inbox.qsize() if hasattr(inbox, "qsize") else 0
        self._since.extend([self._clock.monotonic()] * count)
        put, get = inbox.put, inbox.get
        self._put = put

        def get_and_note(*args: Any, **kwargs: Any) -> Any:
            if args or kwargs:  # not the actor's own loop
                return get(*args, **kwargs)
            self._in_hand = None
            self.progress.polling()
            self.heartbeat.beat()
            envelope = self._in_hand = get()
            with suppress(IndexError):
                self._since.popleft()
            self.progress.busy()
            self.heartbeat.beat()
            return envelope

        def put_and_look(envelope: Any) -> None:
            self._since.append(self._clock.monotonic())
            put(envelope)
            if self._is_closed:  # put first, look second; closing does it in the other order
                self._flush()

        inbox.put, inbox.get = put_and_look, get_and_note

    @property
    def is_busy(self) -> bool:
        """True while it has a message in hand."""
        return self._in_hand is not None

    @property
    def waiting(self) -> int:
        """How many messages wait in its inbox."""
        return len(self._since)

    def waiting_age(self) -> float | None:
        """Return for how many seconds the oldest of those has waited."""
        try:
            return max(0.0, self._clock.monotonic() - self._since[0])
        except IndexError:
            return None

    def _move_to_seam(self, inbox: Any) -> int:
        """Let the actor wait for messages on the seam, where tests see it; its refs know this queue, so it stays.

        Returns:
            How many messages are in it.
        """
        waiting: WorkQueue[Any] = self._blocking.queue()
        count = 0
        with suppress(queue.Empty):
            while True:
                waiting.put(inbox.get_nowait())
                count += 1
        inbox.put, inbox.get, inbox.get_nowait, inbox.empty = (
            waiting.put,
            waiting.get,
            waiting.get_nowait,
            waiting.empty,
        )
        return count

    def _run(self) -> None:
        self.thread_id = self.health.thread_id = threading.get_ident()
        current.heartbeat = self.heartbeat
        try:
            self._hooked._actor_loop()  # noqa: SLF001  Pykka's own loop
        except BaseException as error:  # noqa: BLE001  isolates user code
            if not self._record(error):
                report(logging.ERROR, "a hook of %s raised", self._name, error=error)
        current.heartbeat = None  # the thread may run another actor next
        self.progress.leave()
        self._finish()

    def _finish(self) -> None:
        unregister(self.actor.actor_ref)
        self.actor.actor_stopped.set()
        self._close_inbox()
        if self._cause is not None:
            report(logging.ERROR, "%s was ended by %s", self._name, describe(self._cause), error=self._cause)
        write(self.ended, ActorExit(self._name, self._cause, self._was_asked))

    def _end_by(self, error: BaseException) -> None:
        """End after a ``BaseException`` that is not an ``Exception``; the hook is ``on_stop``, as in Pykka."""
        has_stopped = self.actor.actor_stopped.is_set()
        self._record(error)
        if has_stopped:  # it was `on_stop` itself that raised
            return
        try:
            self._hooked._stop()  # noqa: SLF001  Pykka's own
        except BaseException as another:  # noqa: BLE001  isolates user code
            report(logging.ERROR, "a hook of %s raised", self._name, error=another)

    def _record(self, error: BaseException | None) -> bool:
        """Note why it ends; false if that is known: the first error is the cause, later ones follow from it."""
        if self._cause is not None:
            return False
        if error is not None:
            describe(error)
            self._cause = error
        return True

    def _close_inbox(self) -> None:
        self._is_closed = True
        self._flush()

    def _flush(self) -> None:
        inbox = cast("WorkQueue[Envelope[Any]]", self.actor.actor_inbox)  # Pykka's queue has those methods too
        has_seen_wake = False
        while True:
            try:
                envelope = inbox.get_nowait()
            except queue.Empty:
                if has_seen_wake:
                    self._put(_WAKE)  # it is for the actor
                return
            if envelope is _WAKE:
                has_seen_wake = True
            else:
                self._refuse(envelope)

    def _refuse(self, envelope: Envelope[Any]) -> None:
        if envelope.reply_to is None:
            return
        error = ActorDeadError(self._name, self._cause)
        with suppress(Exception):  # a future of other code may have been written already
            if isinstance(envelope.message, _ActorStop):
                envelope.reply_to.set(None)
            else:
                envelope.reply_to.set_exception((ActorDeadError, error, None))

    def __repr__(self) -> str:
        return f"<PlainActor {self._name!r}, {'ended' if self.ended.is_ready() else 'not ended'}>"
