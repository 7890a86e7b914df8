"""`LoopRef`: how a loop's actor is spoken to from any thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from loopwarden._arguments import as_tuple
from loopwarden._log import describe
from loopwarden._ticket import Ticket, check_wait, guard_wait, wait_all
from loopwarden.actors.loop._current import here
from loopwarden.actors.loop._messages import (
    HealthCheckRequest,
    HealthStatus,
    ProcessRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
)
from loopwarden.actors.loop._protocols import can_pause, can_process
from loopwarden.actors.loop._state import LoopState
from loopwarden.actors.runtime._ref import ControlRef
from loopwarden.errors import UnsupportedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden.actors.loop._health import InHand, MessageFate
    from loopwarden.actors.loop._loop_actor import LoopActor
    from loopwarden.actors.runtime._request import Request

__all__ = ["LoopRef", "cannot_process", "check_health", "refuse_own_wait"]

R = TypeVar("R")
#: Requests that are answered when the handler has returned that runs just now.
_AFTER_HANDLER = {ProcessRequest, ShutdownConfirmRequest, ShutdownRequest}


class LoopRef(ControlRef):
    """A ref to a `LoopActor`."""

    def __init__(self, actor: LoopActor) -> None:
        self.name = actor.name
        self._loop = actor.loop
        self._lifecycle = actor.lifecycle
        self._health = actor.health
        super().__init__(actor)

    def post(self, work: Callable[[], object]) -> bool:
        """Hand ``work`` to the worker; true only while the loop is running.

        What is accepted runs on the worker, also when a stop follows at once, unless the loop itself fails.
        What is refused never runs.

        Raises:
            UnsupportedRequestError: if the loop cannot take work from outside.
            TypeError: if ``work`` cannot be called.
        """
        if not callable(work):
            raise TypeError(f"post() takes a callable, got {describe(work)}")
        if not can_process(self._loop):
            raise cannot_process(self.name, "post()", self._loop)
        return self._lifecycle.state is LoopState.RUNNING and self._loop.post(work)

    @property
    def state(self) -> LoopState:
        """The state of the loop just now, without asking it."""
        return self._lifecycle.state

    @property
    def can_pause(self) -> bool:
        """Whether the loop can be told to take no more messages, without being stopped."""
        return can_pause(self._loop)

    @override
    def is_own_thread(self, thread: int) -> bool:
        own: object = getattr(self._loop, "is_own_thread", None)  # of a loop with workers of its own
        return super().is_own_thread(thread) or (callable(own) and own(thread) is True)

    @override
    def send_as(self, envelope: object, message: Request[R]) -> Ticket[R]:
        ticket = super().send_as(envelope, message)
        refuse_own_wait(self, ticket, message)
        return ticket

    def _is_own_wait(self, message: Request[Any]) -> bool:
        place = here()
        if place.owner is not self._own_threads:
            return False
        if isinstance(message, ProcessRequest):
            return place.is_alone  # otherwise another worker may answer
        return not isinstance(message, ShutdownRequest) or message.timeout > 0

    def in_hand(self) -> tuple[InHand, ...]:
        """Return what the workers have in hand, or had in hand when the loop ended."""
        return self._health.in_hand()

    def fates(self) -> tuple[MessageFate, ...]:
        """Return what became of the loop's messages so far, without asking its actor, which may hang."""
        return self._health.fates_so_far()

    @override
    def __str__(self) -> str:
        return f"LoopActor {self.name!r}"


def refuse_own_wait(ref: LoopRef, ticket: Ticket[Any], message: Request[Any]) -> None:
    """Have the handlers of a loop not wait for what its actor cannot answer before they have returned."""
    if type(message) in _AFTER_HANDLER:
        guard_wait(ticket, partial(ref._is_own_wait, message))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  its own module


def cannot_process(name: str, request: str, loop: object) -> UnsupportedRequestError:
    """Return the refusal of a loop that takes no work from outside."""
    return UnsupportedRequestError(
        f"loop {name!r}", request, f"{type(loop).__name__} has no post() and process(), see SupportsProcess"
    )


def check_health(refs: Iterable[ControlRef], timeout: float | None = 5.0) -> list[HealthStatus]:
    """Ask all for their health at once; return the answers in order, within one deadline.

    Raises:
        TicketTimeoutError: if not all have answered by then; it says how many have not.
    """
    if isinstance(refs, ControlRef):
        raise TypeError("refs must be a list of refs, got a single one")
    asked = as_tuple("refs", refs, "refs")
    for ref in asked:
        if not isinstance(ref, ControlRef):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"refs must be refs of our actors, got {describe(ref)} among them")
    check_wait(timeout)
    return wait_all([ref.send(HealthCheckRequest()) for ref in asked], timeout)
