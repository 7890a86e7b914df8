"""Typed refs: how an actor is spoken to from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import pykka
from typing_extensions import override

from loopwarden._log import describe
from loopwarden._ticket import Ticket, TicketCarrier, orphan, resolve_from, write
from loopwarden.actors.runtime._inbox import refuse
from loopwarden.errors import ActorDeadError

# Pykka's poison pill: a ref that stops an actor must send it.
from pykka.messages import _ActorStop  # pyright: ignore[reportPrivateUsage]  # isort: skip  it has no public name

if TYPE_CHECKING:
    from loopwarden.actors.runtime._actor import ActorExit, ControlActor
    from loopwarden.actors.runtime._inbox import Inbox
    from loopwarden.actors.runtime._request import Request

__all__ = ["ControlRef"]

R = TypeVar("R")


class ControlRef(pykka.ActorRef[Any]):
    """A ref to one of our actors: Pykka's, plus `send` and `ended`.

    Nothing here blocks unless it is asked to (``ask`` and ``stop`` with ``block=True``), and every
    ticket that it returns resolves, also if the actor ends, or has ended.
    """

    def __init__(self, actor: ControlActor) -> None:
        super().__init__(actor)
        self._blocking = actor.clock.blocking
        self._inbox = cast("Inbox", self.actor_inbox)
        self._enqueue = self._inbox.enqueue
        self._own_threads = actor.own_threads
        #: Resolves once, when the actor has ended, after its ``on_stop``: with the cause, never with an error.
        self.ended: Ticket[ActorExit] = actor.ended
        #: Resolves when the actor has started, and its loop is running if it has one; fails if it ends before.
        self.ready: Ticket[None] = actor.ready

    @property
    def has_children(self) -> bool:
        """True if it is a supervisor's."""
        return False

    def send(self, message: Request[R]) -> Ticket[R]:
        """Send a request; return the ticket that it carries, or a new one.

        Raises:
            TypeError: if it is no request.
        """
        if not issubclass(type(message), TicketCarrier):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"send() takes a Request, such as HealthCheckRequest(), got {describe(message)}")
        return self.send_as(message, message)

    def send_as(self, envelope: object, message: Request[R]) -> Ticket[R]:
        """Send ``message`` in another that says more about it; return the ticket of ``message``, or a new one."""
        carried = message.ticket
        ticket: Ticket[R] = Ticket(self._blocking) if carried is None else carried
        ticket.about = (message, self)
        self._inbox.put((envelope, ticket))
        return ticket

    def leave_to_parent(self) -> None:
        """Be dead in a child process, which has none of the actor's threads: whatever is asked is refused at once."""
        name = str(self)
        error = ActorDeadError(name, RuntimeError("its threads are those of the process that was forked"))

        def refuse_all(_message: object) -> object:
            raise ActorDeadError(name, error.__cause__)

        self._inbox.leave_to_parent(lambda envelope: refuse(envelope, refuse_all), error)
        for ticket in (self.ready, self.ended):
            orphan(ticket, error)

    def is_own_thread(self, thread: int) -> bool:
        """Say whether that thread would wait for itself if it waited for the actor's end."""
        return thread in self._own_threads

    @override
    def tell(self, message: Any) -> None:
        """Send a message without asking for an answer; a ticket that it carries is answered nevertheless.

        Raises:
            ActorDeadError: if the actor has ended and the message carries no ticket that could say so.
        """
        inbox = self._inbox
        if inbox.closed and not (issubclass(type(message), TicketCarrier) and cast("Request[Any]", message).ticket):
            raise ActorDeadError(str(self))
        self._enqueue((message, None))
        if inbox.closed:
            inbox.flush()

    @overload
    def ask(self, message: Any, *, block: Literal[False], timeout: float | None = None) -> Ticket[Any]: ...

    @overload
    def ask(self, message: Any, *, block: Literal[True], timeout: float | None = None) -> Any: ...

    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any | Ticket[Any]: ...

    @override
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any | Ticket[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  its overloads are Pykka's, with Ticket for Future
        """Send a message and return the answer, or a ticket for it if not ``block``."""
        ticket: Ticket[Any] = Ticket(self._blocking)
        self._enqueue((message, ticket))
        inbox = self._inbox
        if inbox.closed:
            inbox.flush()
        return ticket.wait(timeout) if block else ticket

    @overload
    def stop(self, *, block: Literal[True], timeout: float | None = None) -> bool: ...

    @overload
    def stop(self, *, block: Literal[False], timeout: float | None = None) -> Ticket[bool]: ...

    @overload
    def stop(self, *, block: bool = True, timeout: float | None = None) -> bool | Ticket[bool]: ...

    @override
    def stop(self, *, block: bool = True, timeout: float | None = None) -> bool | Ticket[bool]:
        """Ask the actor to end once it has handled what was sent before.

        From one of the actor's own threads it does not block, because that would be waiting for itself.

        Returns:
            True when it has ended, false if it had ended before, or if it ends only after this call because
            the call is its own; or a ticket for that if not ``block``.
        """
        stopped: Ticket[bool] = Ticket(self._blocking)
        asked = self.ask(_ActorStop(), block=False)
        resolve_from(asked, lambda answer: write(stopped, not isinstance(_error_of(answer), ActorDeadError)), stopped)
        if not block:
            return stopped
        if self.is_own_thread(threading.get_ident()):
            return False
        return stopped.wait(timeout)

    @override
    def proxy(self) -> pykka.ActorProxy[Any]:
        """Return Pykka's proxy of the actor.

        Raises:
            ActorDeadError: if the actor has ended.
        """
        try:
            return super().proxy()
        except pykka.ActorDeadError:
            raise ActorDeadError(str(self)) from None


def _error_of(ticket: Ticket[Any]) -> BaseException | None:
    try:
        ticket.wait(0)
    except BaseException as error:  # noqa: BLE001  it is data here
        return error
    return None
