"""`Reception`: what a supervisor can be asked about its children, and how it answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, final

from loopwarden._log import report, type_name
from loopwarden._ticket import Ticket, in_time, write
from loopwarden.actors import (
    AbandonRequest,
    AbandonResult,
    Deferred,
    DrainRequest,
    LoopRef,
    PauseRequest,
    ResumeRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    StallReport,
)
from loopwarden.actors.runtime._request import MessageKinds
from loopwarden.errors import ChildNotFoundError, InvalidChildError, UnsupportedRequestError
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.policy._effects import EventKind
from loopwarden.supervision.tree._child_ref import Terminate
from loopwarden.supervision.tree._incarnation import Abandoned
from loopwarden.supervision.tree._registry import Directory
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

    from loopwarden.clock import Clock
    from loopwarden.supervision.policy._effects import Effect
    from loopwarden.supervision.tree._child_ref import ChildRef, ForChild
    from loopwarden.supervision.tree._executor import Household
    from loopwarden.supervision.tree._incarnation import Beginning, Tenure
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = ["ERRANDS", "Errands", "Pool", "Reception", "answer_for_one_that_is_gone"]


@final
class Pool:
    """Makes a household of one template larger and smaller; belongs to the supervisor's thread."""

    def __init__(self, template: ChildSpec, errands: Errands) -> None:
        self._template = template
        self._errands = errands
        self._made = 0

    def resize(self, size: int) -> Ticket[tuple[ChildRef, ...]]:
        """Start new children, or terminate the youngest; the ticket has the refs of those that are to be there."""
        errands = self._errands
        household = errands.household
        there = [child.id for child in household.family.roster.children.values() if not child.is_held_down]
        pending: list[Ticket[Any]] = [errands.terminate_child(child) for child in there[size:]]
        ids = there[:size]
        pending += [errands.wait_started(child) for child in ids]  # an earlier resize may still be at it
        for _ in range(size - len(there)):
            self._made += 1
            child = self._template.model_copy(update={"id": f"{self._template.id}-{self._made}"})
            ids.append(child.id)
            pending.append(errands.start_child(child))
        found = (household.directory.ref(child) for child in ids)
        refs = tuple(ref for ref in found if ref is not None)  # one that could not be added fails the answer below
        done: Ticket[None] = Ticket()
        done.complete(None)
        return done.join(*pending).map(lambda _: refs)

    def __repr__(self) -> str:
        return f"<Pool of {self._template.id!r}, {self._made} made>"


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


_REQUESTS = MessageKinds(
    ShutdownRequest,
    ShutdownConfirmRequest,
    Terminate,
    AbandonRequest,
    StallReport,
    PauseRequest,
    DrainRequest,
    ResumeRequest,
)


@final
class Reception:
    """Belongs to one supervisor's thread; nothing here blocks it.

    Args:
        errands: What is done for others with its children.
        clock: The time.
        put: Takes reports, on any thread, for the supervisor.
    """

    def __init__(self, errands: Errands, clock: Clock, put: Callable[[object], None]) -> None:
        self._errands = errands
        self._household = errands.household
        self._clock = clock
        self._put = put

    def answer(self, message: ForChild) -> object:  # noqa: PLR0911  one answer for each request
        """Answer for a child."""
        child, request = message.seat.child, _REQUESTS.recognize(message.request)
        if not self._household.directory.is_current(message.seat):
            return answer_for_one_that_is_gone(message)
        match request:
            case ShutdownRequest():
                return Deferred(self._shut_down(child, request.timeout))
            case Terminate():
                return Deferred(self._errands.terminate_child(child))
            case AbandonRequest():
                return self._abandon(child, request)
            case StallReport():
                self._note_stall(child, request)
                return None
            case PauseRequest() | DrainRequest() | ResumeRequest():
                return Deferred(self._household.switch.turn_one(child, request, self._household.tenure_of(child)))
            case _:
                return self._confirm_end(child)

    def _shut_down(self, child: str, timeout: float) -> Ticket[ShutdownResult]:
        def late() -> ShutdownResult:
            return ShutdownResult(loop_name=child, clean_shutdown=False, duration=timeout)

        answer = self._errands.terminate_child(child, timeout)
        return in_time(answer, timeout, late, self._clock, f"the shutdown of child {child!r}")

    def _abandon(self, child: str, request: AbandonRequest) -> Deferred | AbandonResult:
        tenure = self._household.tenure_of(child)
        request = request.model_copy(update={"ticket": None})  # answered here, not by the loop too
        if tenure is None or tenure.life is None or not isinstance(ref := tenure.life.ref, LoopRef):
            if tenure is None or not _is_meant(tenure, request):
                return AbandonResult(abandoned=False)
            self._household.abandon(tenure, request.reason)
            return AbandonResult(abandoned=True)
        answer = ref.send(request)

        def abandoned(ticket: Ticket[AbandonResult]) -> None:
            if not ticket.has_failed() and ticket.wait(0).abandoned:
                self._put(Abandoned(child, request, ticket.wait(0)))

        answer.on_ready(abandoned)
        return Deferred(answer)

    def _note_stall(self, child: str, stall: StallReport) -> None:
        tenure = self._household.tenure_of(child)
        if tenure is None:
            return
        if tenure.beginning is not None:
            self._note_slow_start(child, tenure.beginning, stall)
            return
        if tenure.life is None:
            return
        self._household.log.note(
            EventKind.RECALLED if stall.is_recalled else EventKind.STALLED,
            child,
            stack=stall.stack,
            worker=stall.worker,
            in_hand=stall.in_hand,
            reason=f"silent for {stall.silent_for:.1f} s",
        )
        if isinstance(ref := tenure.life.ref, LoopRef) and not stall.is_recalled:
            ref.send(stall.model_copy(update={"ticket": None}))

    def _note_slow_start(self, child: str, beginning: Beginning, stall: StallReport) -> None:
        if stall.is_recalled or stall.last_heartbeat != beginning.since:
            return  # nothing can be recalled from a factory
        reason = f"starting for {self._clock.monotonic() - beginning.since:.1f} s"
        self._household.log.note(EventKind.STALLED, child, stack=stall.stack, worker=stall.worker, reason=reason)
        report(logging.WARNING, "child %r has been %s; it is at\n%s", child, reason, stall.stack)

    def _confirm_end(self, child: str) -> Deferred | ShutdownResult:
        """Wait for the end of a child, without asking for it; of one that is down, return the last one."""
        directory, tenure = self._household.directory, self._household.tenure_of(child)
        if tenure is not None and tenure.life is not None:
            if tenure.confirmed is None:
                tenure.confirmed = tenure.life.ended.map(lambda ended: directory.result_of(child, ended.cause))
            return Deferred(tenure.confirmed)
        if tenure is not None:  # its factory is at work
            return Deferred(self._errands.wait_down(child))
        return directory.last_result(child)


def _is_meant(tenure: Tenure, request: AbandonRequest) -> bool:
    """Say whether a request is still about what it was decided on: a start that is over is not given up."""
    if request.last_heartbeat is None:
        return True
    return tenure.beginning is not None and tenure.beginning.since == request.last_heartbeat


def answer_for_one_that_is_gone(message: ForChild) -> ShutdownResult:
    """Answer for a child that was deleted, or whose supervisor has ended."""
    child = message.seat.child
    if isinstance(_REQUESTS.recognize(message.request), ShutdownRequest | ShutdownConfirmRequest | Terminate):
        return Directory.result_of(child, None)
    raise ChildNotFoundError(child)
