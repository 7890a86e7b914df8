"""`SupervisorRef`: the ref of a supervisor, for any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from loopwarden._log import describe
from loopwarden.actors import ControlRef, LoopRef
from loopwarden.errors import TicketTimeoutError
from loopwarden.supervision.tree._events import EventStream
from loopwarden.supervision.tree._requests import (
    ChildInfo,
    EventsRequest,
    ResizeRequest,
    StartChildRequest,
    SubscribeRequest,
    WhichChildrenRequest,
    WhichChildRequest,
)
from loopwarden.supervision.tree._spec import ChildSpec

if TYPE_CHECKING:
    import pykka

    from loopwarden.actors import MessageFate
    from loopwarden.supervision.policy._child import ChildState
    from loopwarden.supervision.tree._child_ref import ChildRef, ChildSlot
    from loopwarden.supervision.tree._events import SupervisionEvent
    from loopwarden.supervision.tree._supervisor import Supervisor

__all__ = ["SupervisorRef"]

#: Seconds that a supervisor, which never blocks, has to answer: they only matter when something is badly wrong.
ANSWER_TIMEOUT = 30.0


class SupervisorRef(ControlRef):
    """A ref to a `Supervisor`. Its methods block their caller: inside actors, send the requests instead."""

    def __init__(self, actor: Supervisor) -> None:
        self.name = actor.name
        #: True once `wait` has raised what ended the supervisor.
        self.has_told = False
        #: The slots of its children; written by the supervisor, and only read here.
        self.slots: dict[str, ChildSlot] | None = None
        super().__init__(actor)

    def glimpse(self) -> tuple[tuple[str, ChildState, pykka.ActorRef[Any] | None], ...]:
        """Return each child's id, its state and its present actor without a request, for when none is answered."""
        slots = () if self.slots is None else tuple(self.slots.values())
        return tuple((slot.child, slot.occupant.state, slot.ref) for slot in slots)

    def fates(self) -> tuple[MessageFate, ...]:
        """Return what became so far of the messages of all loops below, without a request, as `glimpse` does."""
        refs = (ref for _, _, ref in self.glimpse())
        return tuple(fate for ref in refs if isinstance(ref, LoopRef | SupervisorRef) for fate in ref.fates())

    @property
    @override
    def has_children(self) -> bool:
        return True

    def spawn(self, child: ChildSpec, timeout: float | None = None) -> ChildRef:
        """Add a child, start it, and return a ref that stays good over its restarts.

        Raises:
            StartFailed: if it cannot be started; then it is not kept.
            ChildExistsError: if there is a child of that id.
            InvalidChildError: if this supervisor cannot have it.
            TicketTimeoutError: if ``timeout`` passes first; the child is still being started.
            TypeError: if it is no spec.
        """
        if not isinstance(child, ChildSpec):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"spawn() takes a ChildSpec: ChildSpec(id=…, start=lambda: …), got {describe(child)}")
        return self.send(StartChildRequest(child=child)).wait(timeout)

    def resize(self, size: int, timeout: float | None = None) -> tuple[ChildRef, ...]:
        """Give a pool ``size`` children; return their refs when they are up, and the others down.

        Raises:
            StartFailed: if one of them cannot be started.
            UnsupportedRequestError: if the supervisor is not a pool.
        """
        return self.send(ResizeRequest(size=size)).wait(timeout)

    def children(self, timeout: float | None = ANSWER_TIMEOUT) -> tuple[ChildInfo, ...]:
        """Return all children, in start order."""
        return self.send(WhichChildrenRequest()).wait(timeout)

    def child(self, child_id: str, timeout: float | None = ANSWER_TIMEOUT) -> ChildRef:
        """Return the stable ref of a child.

        Raises:
            ChildNotFoundError: if there is no child of that id.
        """
        return self.send(WhichChildRequest(id=child_id)).wait(timeout).ref

    def events(self, timeout: float | None = ANSWER_TIMEOUT) -> tuple[SupervisionEvent, ...]:
        """Return the last events, oldest first."""
        return self.send(EventsRequest()).wait(timeout)

    def subscribe(self) -> EventStream:
        """Return a stream of all events from now on, with those of the supervisors below."""
        stream = EventStream(self._blocking)
        self.send(SubscribeRequest(listener=stream)).wait()
        return stream

    def wait(self, timeout: float | None = None) -> None:
        """Block until the supervisor has ended.

        Raises:
            SupervisorGaveUp: if it ended because its children failed too often.
            StartFailed: if one of its first children could not be started.
            TicketTimeoutError: if it has not ended after ``timeout`` real seconds.
        """
        if not self.ended.wait_ready(timeout):
            raise TicketTimeoutError(timeout or 0.0, f" from {self}, which has not ended")
        cause = self.ended.wait(0).cause
        if cause is not None:
            self.has_told = True
            raise cause

    @override
    def __str__(self) -> str:
        return f"Supervisor {self.name!r}"
