"""`ChildRef`: a ref that stays good over restarts."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final, overload

import pykka
from typing_extensions import override

from loopwarden._log import describe
from loopwarden._ticket import SharedTicket, Ticket, TicketCarrier, settle, write
from loopwarden.actors import (
    AbandonRequest,
    Activity,
    ActorExit,
    ControlRef,
    DrainRequest,
    HealthCheckRequest,
    HealthStatus,
    LoopRef,
    LoopState,
    PauseRequest,
    RecallRequest,
    Request,
    ResumeRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    StallReport,
    WorkerStatus,
)
from loopwarden.actors.loop._loop_ref import refuse_own_wait
from loopwarden.errors import ChildUnavailableError, UnsupportedRequestError
from loopwarden.supervision.policy._child import ChildState

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.clock import Clock
    from loopwarden.supervision.tree._adapter import ChildAdapter
    from loopwarden.supervision.tree._incarnation import Beginning
    from loopwarden.supervision.tree._pykka_actor import PlainActor

__all__ = ["ChildRef", "ChildSlot", "ChildView", "ForChild", "Terminate"]


@final
@dataclass(frozen=True, slots=True)
class ChildView:
    """The present incarnation of a child, and what the supervisor knows of it."""

    state: ChildState = ChildState.PENDING
    adapter: ChildAdapter | None = None
    retry_at: float | None = None
    restarts: int = 0
    error: BaseException | None = None
    #: When that was, in seconds since the epoch.
    error_at: float | None = None
    #: Its start, while it is starting.
    beginning: Beginning | None = None


#: The worker number of the thread that starts a child; those of workers begin at 1.
_STARTER = 0

_STATES = {
    ChildState.PENDING: LoopState.IDLE,
    ChildState.STARTING: LoopState.STARTING,
    ChildState.UP: LoopState.RUNNING,
    ChildState.STOPPING: LoopState.STOPPING,
    ChildState.RESTARTING: LoopState.FAILED,
    ChildState.DOWN: LoopState.STOPPED,
}


@final
class ChildSlot:
    """The place of one child in its supervisor, which outlives the child's incarnations."""

    def __init__(self, child: str, clock: Clock) -> None:
        self.child = child
        self.clock = clock
        #: One value, replaced as a whole, so that a reader never sees half of a change.
        self.occupant = ChildView()
        #: Resolves when the child is deleted, or its supervisor has ended.
        self.ended: Ticket[ActorExit] = SharedTicket(clock.blocking)
        #: Resolves when the child is up for the first time.
        self.ready: Ticket[None] = SharedTicket(clock.blocking)

    @property
    def ref(self) -> pykka.ActorRef[Any] | None:
        """The ref of the present incarnation, if there is one."""
        adapter = self.occupant.adapter
        return None if adapter is None else adapter.ref

    @property
    def control_ref(self) -> ControlRef | None:
        """The ref of the present incarnation, if that is one of our own actors."""
        ref = self.ref
        return ref if isinstance(ref, ControlRef) else None

    @property
    def plain(self) -> PlainActor | None:
        """The present incarnation, if that is a plain Pykka actor."""
        return getattr(self.occupant.adapter, "plain", None)

    def health(self) -> HealthStatus:
        """Answer for a child that cannot answer itself."""
        now = self.occupant
        state = _STATES[now.state]
        if now.state is ChildState.DOWN and now.error is not None:
            state = LoopState.FAILED
        beginning = now.beginning if now.state is ChildState.STARTING else None
        plain = self.plain if now.state in {ChildState.UP, ChildState.STOPPING} else None
        activity, since = (None, None) if plain is None else plain.health.doing()
        if now.state is ChildState.RESTARTING:
            activity = Activity.BACKING_OFF
        workers = () if plain is None else plain.health.statuses()
        if beginning is not None:
            workers = (self._starter(beginning, now.adapter),)
        last_error = None if now.error is None else describe(now.error)
        time = self.clock.monotonic()
        return HealthStatus(
            loop_name=self.child,
            state=state,
            running=now.state.is_alive,
            last_heartbeat=None if plain is None else plain.heartbeat.last_beat,
            heartbeat_age=None if plain is None else plain.heartbeat.age(),
            at=self.clock.wall(),
            activity=activity,
            activity_since=since,
            activity_age=None if since is None else max(0.0, time - since),
            polled=now.state is ChildState.UP,  # an actor that does not tell counts as polled once it is up
            waiting=None if plain is None else plain.waiting,
            waiting_age=None if plain is None else plain.waiting_age(),
            restarts=now.restarts,
            retry_at=now.retry_at,
            retry_in=None if now.retry_at is None else max(0.0, now.retry_at - time),
            starting_since=None if beginning is None else beginning.since,
            starting_age=None if beginning is None else max(0.0, time - beginning.since),
            workers=workers,
            last_error=last_error,
            last_error_at=now.error_at,
            error=None if now.state.is_alive else last_error,
        )

    def _starter(self, beginning: Beginning, adapter: ChildAdapter | None) -> WorkerStatus:
        """Return the status of the thread that starts the child, which the watchdog judges like a worker."""
        # Without the start time-out of the spec, which the supervisor itself watches.
        age = max(0.0, self.clock.monotonic() - beginning.since)
        silent_for = age - (beginning.limit or 0.0)
        return WorkerStatus(
            worker=_STARTER,
            last_heartbeat=beginning.since,
            heartbeat_age=age,
            silent_for=max(0.0, silent_for),
            thread_id=beginning.thread_id if adapter is None else adapter.thread_id,
        )

    def __repr__(self) -> str:
        return f"<ChildSlot of {self.child!r}, {self.occupant.state}>"


R = TypeVar("R")


#: Requests that the supervisor answers for its child, because it outlives the child.
_FOR_SUPERVISOR = (ShutdownRequest, AbandonRequest, StallReport, PauseRequest, DrainRequest, ResumeRequest)


@final
class Terminate(Request[ShutdownResult]):
    """Terminate the child, and answer when it has ended, with no time-out."""


@final
@dataclass(frozen=True, slots=True)
class ForChild:
    """A request that was sent to a child, and that its supervisor answers."""

    slot: ChildSlot
    request: Request[Any]


class ChildRef(ControlRef):
    """A ref to a child, which stays good over its restarts.

    - A `ShutdownRequest`, or `stop`, terminates the child: it stays down until a request restarts it.
    - Health is answered in every state, from what its supervisor knows while the child is not running.
    - Any other request goes to the present incarnation of the child. It fails at once with `ChildUnavailableError` if
      there is none. What is in the inbox of an incarnation that ends fails with it, and is never moved to the next.
    """

    def __init__(self, slot: ChildSlot, supervisor: ControlRef) -> None:
        # Not super().__init__(): there is no single actor behind this ref.
        self.name = slot.child
        self.actor_urn = f"urn:loopwarden:{supervisor.actor_urn}:{slot.child}"
        self.actor_class = pykka.ThreadingActor
        self.ended = slot.ended
        self.ready = slot.ready
        self._slot = slot
        self._supervisor = supervisor
        self._blocking = slot.clock.blocking

    @override
    def send(self, message: Request[R]) -> Ticket[R]:
        """Send a request; return the ticket that it carries, or a new one."""
        if not issubclass(type(message), TicketCarrier):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"send() takes a Request, such as HealthCheckRequest(), got {describe(message)}")
        request: Request[R] = message  # which the checks below do not narrow
        adapter = self._slot.occupant.adapter
        asks_state = isinstance(message, HealthCheckRequest | ShutdownConfirmRequest)
        is_answered_here = asks_state and (adapter is None or not adapter.tells_health)
        if is_answered_here and isinstance(message, HealthCheckRequest):
            return self._answer(message, self._slot.health())
        ref, plain = self._slot.control_ref, self._slot.plain
        if is_answered_here or isinstance(message, _FOR_SUPERVISOR):
            answer = self._supervisor.send_as(ForChild(self._slot, request), request)
            if isinstance(ref, LoopRef):
                refuse_own_wait(ref, answer, request)
            return answer
        if ref is not None:
            return ref.send(request)
        if plain is None:
            return self._answer(request, None, self._unavailable())
        if isinstance(message, RecallRequest):  # it has no token to be stopped, and does not know what this is
            return self._answer(request, result=False)
        ticket: Ticket[R] = request.ticket or Ticket(self._blocking)
        plain.ask(request).on_ready(lambda answer: settle(ticket, lambda: answer.wait(0)))
        return ticket

    def _answer(self, message: Request[Any], result: object, error: Exception | None = None) -> Ticket[Any]:
        ticket: Ticket[Any] = message.ticket or Ticket(self._blocking)
        write(ticket, result, error)
        return ticket

    @override
    def tell(self, message: Any) -> None:
        """Send a message without asking for an answer.

        Raises:
            ChildUnavailableError: if the child is not running and the message carries no ticket that could say so.
        """
        if issubclass(type(message), TicketCarrier):
            if (
                message.ticket is None
                and self._slot.occupant.adapter is None
                and not isinstance(message, ShutdownRequest)
            ):
                raise self._unavailable()
            self.send(message)
            return
        plain, ref = self._slot.plain, self._slot.ref
        if plain is not None:
            plain.tell(message)
        elif ref is not None:
            ref.tell(message)
        else:
            raise self._unavailable()

    @overload
    def ask(self, message: Any, *, block: Literal[False], timeout: float | None = None) -> Ticket[Any]: ...

    @overload
    def ask(self, message: Any, *, block: Literal[True], timeout: float | None = None) -> Any: ...

    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any | Ticket[Any]: ...

    @override
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any | Ticket[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  its overloads are Pykka's, with Ticket for Future
        """Send a message and return the answer, or a ticket for it if not ``block``."""
        plain, ref = self._slot.plain, self._slot.control_ref
        ticket: Ticket[Any]
        if issubclass(type(message), TicketCarrier):
            ticket = self.send(message)
        elif plain is not None:
            ticket = plain.ask(message)
        elif ref is not None:
            ticket = ref.ask(message, block=False)
        else:
            ticket = Ticket(self._blocking)
            ticket.fail(self._unavailable())
        return ticket.wait(timeout) if block else ticket

    @overload
    def stop(self, *, block: Literal[True], timeout: float | None = None) -> bool: ...

    @overload
    def stop(self, *, block: Literal[False], timeout: float | None = None) -> Ticket[bool]: ...

    @overload
    def stop(self, *, block: bool = True, timeout: float | None = None) -> bool | Ticket[bool]: ...

    @override
    def stop(self, *, block: bool = True, timeout: float | None = None) -> bool | Ticket[bool]:
        """Terminate the child: it stays down until a request restarts it.

        Returns:
            True when it has ended, false if it was down before; or a ticket for that if not ``block``. On a thread of
            the child itself, which would wait for itself, it does not block, and returns false.
        """
        was_alive = self.is_alive()
        adapter = self._slot.occupant.adapter
        request = Terminate()
        stopped = self._supervisor.send_as(ForChild(self._slot, request), request).map(lambda _: was_alive)
        if not block:
            return stopped
        if adapter is not None and adapter.is_own_thread(threading.get_ident()):
            return False
        return stopped.wait(timeout)

    @property
    @override
    def has_children(self) -> bool:
        adapter = self._slot.occupant.adapter
        return adapter is not None and adapter.is_supervisor

    @override
    def is_alive(self) -> bool:
        """Return whether the child has an actor now, even one that is starting or stopping."""
        return self._slot.occupant.adapter is not None

    @override
    def proxy(self) -> pykka.ActorProxy[Any]:
        """Return Pykka's proxy, which stays good over restarts like this ref.

        Raises:
            ChildUnavailableError: if the child is not running now, so that it has no attributes.
        """
        try:
            return pykka.ActorProxy(actor_ref=self)
        except pykka.ActorDeadError:
            raise self._unavailable() from None

    def post(self, work: Callable[[], object]) -> bool:
        """Pass ``work`` to the loop's worker; false while none is running."""
        ref = self._slot.ref
        if ref is None:
            return False
        if not isinstance(ref, LoopRef):
            raise UnsupportedRequestError(str(self), "post()", "it is not a loop")
        return ref.post(work)

    @property
    def _actor_weakref(self) -> Callable[[], Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]  here it changes with each incarnation
        """What Pykka's proxy looks for: the actor whose attributes it has."""
        ref = self._slot.ref
        return (lambda: None) if ref is None else ref._actor_weakref  # noqa: SLF001  Pykka's proxy reads it too

    def _unavailable(self) -> ChildUnavailableError:
        now = self._slot.occupant
        return ChildUnavailableError(self.name, now.state, now.retry_at)

    @override
    def __str__(self) -> str:
        return f"child {self.name!r}"

    @override
    def __repr__(self) -> str:
        return f"<ChildRef {self.name!r}, {self._slot.occupant.state}>"
