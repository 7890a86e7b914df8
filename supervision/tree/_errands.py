"""`Errands`: what a supervisor is asked to do with its children, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from loopwarden._log import type_name
from loopwarden._ticket import Ticket, write
from loopwarden.actors import Deferred
from loopwarden.errors import InvalidChildError, UnsupportedRequestError
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.tree._pool import Pool
from loopwarden.supervision.tree._requests import (
    ChildSpecRequest,
    CountChildrenRequest,
    DeleteChildRequest,
    ResizeRequest,
    RestartChildRequest,
    StartChildRequest,
    TerminateChildRequest,
    WhichChildrenRequest,
    WhichChildRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import ShutdownResult
    from loopwarden.clock import Clock
    from loopwarden.supervision.policy._effects import Effect
    from loopwarden.supervision.tree._child_ref import ChildRef
    from loopwarden.supervision.tree._executor import Household
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = ["ERRANDS", "Errands"]

#: What can be asked about children.
ERRANDS = (
    StartChildRequest,
    TerminateChildRequest,
    RestartChildRequest,
    DeleteChildRequest,
    WhichChildrenRequest,
    WhichChildRequest,
    CountChildrenRequest,
    ChildSpecRequest,
    ResizeRequest,
)


@final
class Errands:
    """Belongs to one supervisor's thread; nothing here blocks it, and each ticket resolves when it is done.

    Args:
        household: Its children.
        clock: The time.
    """

    def __init__(self, household: Household, clock: Clock) -> None:
        self.household = household
        self._clock = clock
        template = household.family.spec.template
        self._pool = None if template is None else Pool(template, self)

    def answer(self, message: object) -> object:  # noqa: C901, PLR0911  one answer for each request
        """Do what is asked, or say what is; raises what refuses it."""
        directory, roster = self.household.directory, self.household.family.roster
        match message:
            case StartChildRequest():
                return Deferred(self._add(message.child))
            case TerminateChildRequest():
                return Deferred(self.terminate_child(message.id))
            case RestartChildRequest():
                self._refuse_pool(message)
                return Deferred(self._restart_child(message.id))
            case DeleteChildRequest():
                self._refuse_pool(message)
                return Deferred(self._delete_child(message.id))
            case WhichChildrenRequest():
                return tuple(directory.info(child) for child in roster.children.values())
            case WhichChildRequest():
                return directory.info(roster.find(message.id))
            case CountChildrenRequest():
                return directory.counts(roster.children.values())
            case ChildSpecRequest():
                return roster.find(message.id).spec
            case ResizeRequest() if self._pool is not None:
                return Deferred(self._pool.resize(message.size))
            case ResizeRequest():
                raise self.unsupported(message, "it is no pool: give a template")
            case _:
                raise self.unsupported(message, "it is no request of a supervisor")

    def start_child(self, spec: ChildSpec) -> Ticket[ChildRef]:
        """Add a child and start it."""
        found: list[ChildRef | None] = []
        ticket = self._wait(lambda waiter: self.household.family.start_child(spec, waiter), lambda: found[0])
        # Now: one that says "not now" may be gone when it is answered.
        found.append(self.household.directory.ref(spec.id))
        return ticket

    def terminate_child(self, child_id: str, wanted: float = 0.0) -> Ticket[ShutdownResult]:
        """Stop a child, which then stays down; it has ``wanted`` seconds if that is more than its spec says."""
        household = self.household
        child = household.family.roster.children.get(child_id)
        if child is not None and not child.state.is_alive:
            household.directory.forget_result(child_id)  # that was an earlier end
        elif child is not None and child.state is not ChildState.STOPPING:
            household.allow(child_id, wanted)
        return self._wait(
            lambda waiter: household.family.terminate_child(child_id, waiter),
            lambda: household.directory.last_result(child_id),
        )

    def wait_down(self, child_id: str) -> Ticket[ShutdownResult]:
        """Wait until a child is down, without asking for it."""
        household = self.household
        return self._wait(
            lambda waiter: household.family.watch_stop(child_id, waiter),
            lambda: household.directory.last_result(child_id),
        )

    def wait_started(self, child_id: str) -> Ticket[Any]:
        """Wait until a child is up, if it is on its way."""
        return self._wait(lambda waiter: self.household.family.watch_start(child_id, waiter), lambda: None)

    def _restart_child(self, child_id: str) -> Ticket[ChildRef]:
        household = self.household
        return self._wait(
            lambda waiter: household.family.restart_child(child_id, waiter), lambda: household.directory.ref(child_id)
        )

    def _delete_child(self, child_id: str) -> Ticket[None]:
        return self._wait(lambda waiter: self.household.family.delete_child(child_id, waiter), lambda: None)

    def _wait(
        self, ask: Callable[[Callable[[Exception | None], None]], list[Effect]], result: Callable[[], Any]
    ) -> Ticket[Any]:
        ticket: Ticket[Any] = Ticket(self._clock.blocking)

        def answer(error: Exception | None) -> None:
            write(ticket, None if error is not None else result(), error)

        self.household.carry_out(ask(answer))
        return ticket

    def _add(self, child: ChildSpec) -> Ticket[ChildRef]:
        spec = self.household.family.spec
        if self._pool is not None:
            raise InvalidChildError(child.id, f"cannot be added to the pool {spec.name!r}: send a ResizeRequest")
        objection = spec.objection_to(child)
        if objection is not None:
            raise InvalidChildError(child.id, f"cannot be added to supervisor {spec.name!r}: {objection}")
        return self.start_child(child)

    def _refuse_pool(self, message: object) -> None:
        if self._pool is not None:
            raise self.unsupported(message, "in a pool children are all alike: send a ResizeRequest")

    def unsupported(self, message: object, why: str) -> UnsupportedRequestError:
        """Return what refuses a request."""
        return UnsupportedRequestError(f"Supervisor {self.household.family.spec.name!r}", type_name(message), why)
