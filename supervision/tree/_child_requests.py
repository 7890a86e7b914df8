"""`ChildRequests`: answers the requests about a supervisor's children."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, final

from loopwarden._log import report, type_name
from loopwarden._message_kinds import MessageKinds
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
from loopwarden.actors.loop._health import fields_of_hand, words_of_hand
from loopwarden.errors import ChildNotFoundError, InvalidChildError, UnsupportedRequestError
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.policy._effects import EventKind
from loopwarden.supervision.tree._child_ref import ForChild, Terminate
from loopwarden.supervision.tree._incarnation import Abandoned
from loopwarden.supervision.tree._registry import ChildRegistry
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
    from loopwarden.supervision.tree._child_ref import ChildRef
    from loopwarden.supervision.tree._executor import EffectExecutor
    from loopwarden.supervision.tree._incarnation import Beginning, Incarnation
    from loopwarden.supervision.tree._pykka_actor import PlainActor
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = ["CHILD_REQUESTS", "ChildRequests", "answer_for_one_that_is_gone"]


#: Requests to a supervisor about its children.
CHILD_REQUESTS = (
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


#: Requests to a child through its ref that its supervisor answers.
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
class ChildRequests:
    """Belongs to one supervisor's thread; nothing here blocks it, and each ticket resolves when it is done.

    Args:
        executor: Carries out the effects on the children.
        clock: The time.
        put: Puts a report into the supervisor's inbox, on any thread.
    """

    def __init__(self, executor: EffectExecutor, clock: Clock, put: Callable[[object], None]) -> None:
        self._executor = executor
        self._clock = clock
        self._put = put
        # The spec of all children of a pool, and how many were made of it.
        self._template = executor.machine.spec.template
        self._made = 0

    def answer(self, message: object) -> object:  # noqa: C901, PLR0911  one answer for each request
        """Carry out a request, or answer it; raises if it is refused."""
        registry, roster = self._executor.registry, self._executor.machine.roster
        match message:
            case ForChild():
                return self._answer_for_child(message)
            case StartChildRequest():
                return Deferred(self._add(message.child))
            case TerminateChildRequest():
                return Deferred(self._terminate_child(message.id))
            case RestartChildRequest():
                self._refuse_pool(message)
                return Deferred(self._restart_child(message.id))
            case DeleteChildRequest():
                self._refuse_pool(message)
                return Deferred(self._delete_child(message.id))
            case WhichChildrenRequest():
                return tuple(registry.info(child) for child in roster.children.values())
            case WhichChildRequest():
                return registry.info(roster.find(message.id))
            case CountChildrenRequest():
                return registry.counts(roster.children.values())
            case ChildSpecRequest():
                return roster.find(message.id).spec
            case ResizeRequest() if self._template is not None:
                return Deferred(self._resize(self._template, message.size))
            case ResizeRequest():
                raise self.unsupported(message, "it is not a pool: give a template")
            case _:
                raise self.unsupported(message, "it is not a request that a supervisor knows")

    def _start_child(self, spec: ChildSpec) -> Ticket[ChildRef]:
        """Add a child and start it."""
        found: list[ChildRef | None] = []
        ticket = self._wait(lambda waiter: self._executor.machine.start_child(spec, waiter), lambda: found[0])
        # Now: a child whose factory says "not now" may be gone when the ticket resolves.
        found.append(self._executor.registry.ref(spec.id))
        return ticket

    def _terminate_child(self, child_id: str, wanted: float = 0.0) -> Ticket[ShutdownResult]:
        """Stop a child, which then stays down; it has ``wanted`` seconds if that is more than its spec says."""
        executor = self._executor
        child = executor.machine.roster.children.get(child_id)
        if child is not None and not child.state.is_alive:
            executor.registry.forget_result(child_id)  # that was an earlier end
        elif child is not None and child.state is not ChildState.STOPPING:
            executor.allow(child_id, wanted)
        return self._wait(
            lambda waiter: executor.machine.terminate_child(child_id, waiter),
            lambda: executor.registry.last_result(child_id),
        )

    def _wait_down(self, child_id: str) -> Ticket[ShutdownResult]:
        """Wait until a child is down, without stopping it."""
        executor = self._executor
        return self._wait(
            lambda waiter: executor.machine.watch_stop(child_id, waiter),
            lambda: executor.registry.last_result(child_id),
        )

    def _wait_started(self, child_id: str) -> Ticket[Any]:
        """Wait until a child is up, if it is being started."""
        return self._wait(lambda waiter: self._executor.machine.watch_start(child_id, waiter), lambda: None)

    def _restart_child(self, child_id: str) -> Ticket[ChildRef]:
        executor = self._executor
        return self._wait(
            lambda waiter: executor.machine.restart_child(child_id, waiter), lambda: executor.registry.ref(child_id)
        )

    def _delete_child(self, child_id: str) -> Ticket[None]:
        return self._wait(lambda waiter: self._executor.machine.delete_child(child_id, waiter), lambda: None)

    def _resize(self, template: ChildSpec, size: int) -> Ticket[tuple[ChildRef, ...]]:
        """Start new children, or terminate the youngest; the ticket has the refs of those that stay or are new."""
        executor = self._executor
        there = [child.id for child in executor.machine.roster.children.values() if not child.is_terminated]
        pending: list[Ticket[Any]] = [self._terminate_child(child) for child in there[size:]]
        ids = there[:size]
        pending += [self._wait_started(child) for child in ids]  # an earlier resize may still be starting them
        for _ in range(size - len(there)):
            self._made += 1
            child = template.model_copy(update={"id": f"{template.id}-{self._made}"})
            ids.append(child.id)
            pending.append(self._start_child(child))
        found = (executor.registry.ref(child) for child in ids)
        refs = tuple(ref for ref in found if ref is not None)  # a child that could not be added fails the answer below
        done: Ticket[None] = Ticket()
        done.complete(None)
        return done.join(*pending).map(lambda _: refs)

    def _wait(
        self, ask: Callable[[Callable[[Exception | None], None]], list[Effect]], result: Callable[[], Any]
    ) -> Ticket[Any]:
        ticket: Ticket[Any] = Ticket(self._clock.blocking)

        def answer(error: Exception | None) -> None:
            write(ticket, None if error is not None else result(), error)

        self._executor.carry_out(ask(answer))
        return ticket

    def _add(self, child: ChildSpec) -> Ticket[ChildRef]:
        spec = self._executor.machine.spec
        if self._template is not None:
            raise InvalidChildError(child.id, f"cannot be added to the pool {spec.name!r}: send a ResizeRequest")
        objection = spec.objection_to(child)
        if objection is not None:
            raise InvalidChildError(child.id, f"cannot be added to supervisor {spec.name!r}: {objection}")
        return self._start_child(child)

    def _refuse_pool(self, message: object) -> None:
        if self._template is not None:
            raise self.unsupported(message, "in a pool children are all alike: send a ResizeRequest")

    def unsupported(self, message: object, why: str) -> UnsupportedRequestError:
        """Return the error that refuses a request."""
        return UnsupportedRequestError(f"Supervisor {self._executor.machine.spec.name!r}", type_name(message), why)

    # Through the ref of a child.

    def _answer_for_child(self, message: ForChild) -> object:  # noqa: PLR0911  one answer for each request
        child, request = message.slot.child, _REQUESTS.recognize(message.request)
        if not self._executor.registry.is_current(message.slot):
            return answer_for_one_that_is_gone(message)
        match request:
            case ShutdownRequest():
                return Deferred(self._shut_down(child, request.timeout))
            case Terminate():
                return Deferred(self._terminate_child(child))
            case AbandonRequest():
                return self._abandon(child, request)
            case StallReport():
                self._note_stall(child, request)
                return None
            case PauseRequest() | DrainRequest() | ResumeRequest():
                incarnation = self._executor.incarnation_of(child)
                answer = self._executor.pause.turn_one(child, request, incarnation)
                if isinstance(request, DrainRequest) and incarnation is not None:
                    self._executor.note_drain([incarnation], "drain")
                return Deferred(answer)
            case _:
                return self._confirm_end(child)

    def _shut_down(self, child: str, timeout: float) -> Ticket[ShutdownResult]:
        def late() -> ShutdownResult:
            return ShutdownResult(loop_name=child, clean_shutdown=False, duration=timeout)

        answer = self._terminate_child(child, timeout)
        return in_time(answer, timeout, late, self._clock, f"the shutdown of child {child!r}")

    def _abandon(self, child: str, request: AbandonRequest) -> Deferred | AbandonResult:
        incarnation = self._executor.incarnation_of(child)
        request = request.model_copy(update={"ticket": None})  # answered here, not by the loop too
        if (
            incarnation is None
            or incarnation.adapter is None
            or not isinstance(ref := incarnation.adapter.ref, LoopRef)
        ):
            if incarnation is None or not _is_meant(incarnation, request):
                return AbandonResult(abandoned=False)
            self._executor.abandon(incarnation, request.reason, request.stack)
            return AbandonResult(abandoned=True)
        answer = ref.send(request)

        def abandoned(ticket: Ticket[AbandonResult]) -> None:
            if not ticket.has_failed() and ticket.wait(0).abandoned:
                self._put(Abandoned(child, request, ticket.wait(0)))

        answer.on_ready(abandoned)
        return Deferred(answer)

    def _note_stall(self, child: str, stall: StallReport) -> None:
        incarnation = self._executor.incarnation_of(child)
        if incarnation is None:
            return
        if incarnation.beginning is not None:
            self._note_slow_start(child, incarnation.beginning, stall)
            return
        if incarnation.adapter is None:
            return
        plain: PlainActor | None = getattr(incarnation.adapter, "plain", None)
        if plain is not None:
            if stall.is_recalled:
                return  # a plain actor has no token to be stopped
            plain.health.note_stall(stall.worker, stall.last_heartbeat)
            text, held = "child %r has given no sign of life for %.1f s%s", words_of_hand(stall.in_hand)
            fields = fields_of_hand(stall.in_hand)
            report(logging.WARNING, text, child, stall.silent_for, held, stack=stall.stack, child=child, **fields)
        self._executor.log.note(
            EventKind.RECALLED if stall.is_recalled else EventKind.STALLED,
            child,
            stack=stall.stack,
            worker=stall.worker,
            in_hand=stall.in_hand,
            reason=f"silent for {stall.silent_for:.1f} s",
        )
        if isinstance(ref := incarnation.adapter.ref, LoopRef):
            ref.send(stall.model_copy(update={"ticket": None}))

    def _note_slow_start(self, child: str, beginning: Beginning, stall: StallReport) -> None:
        if stall.is_recalled or stall.last_heartbeat != beginning.since:
            return  # a factory has no token to be stopped
        reason = f"starting for {self._clock.monotonic() - beginning.since:.1f} s"
        self._executor.log.note(EventKind.STALLED, child, stack=stall.stack, worker=stall.worker, reason=reason)
        report(logging.WARNING, "child %r has been %s", child, reason, stack=stall.stack, child=child)

    def _confirm_end(self, child: str) -> Deferred | ShutdownResult:
        """Wait for the end of a child, without stopping it; if it is down, return its last result."""
        registry, incarnation = self._executor.registry, self._executor.incarnation_of(child)
        if incarnation is not None and incarnation.adapter is not None:
            if incarnation.confirmed is None:
                incarnation.confirmed = incarnation.adapter.ended.map(
                    lambda ended: ended.result or registry.result_of(child, ended.cause)
                )
            return Deferred(incarnation.confirmed)
        if incarnation is not None:  # its factory is running
            return Deferred(self._wait_down(child))
        return registry.last_result(child)


def _is_meant(incarnation: Incarnation, request: AbandonRequest) -> bool:
    """Say whether a request is about this start, or this message: one that is over is not abandoned."""
    if request.last_heartbeat is None:
        return True
    plain: PlainActor | None = getattr(incarnation.adapter, "plain", None)
    if incarnation.beginning is None and plain is not None and request.worker == plain.progress.worker:
        return plain.is_busy and plain.heartbeat.last_beat == request.last_heartbeat
    return incarnation.beginning is not None and incarnation.beginning.since == request.last_heartbeat


def answer_for_one_that_is_gone(message: ForChild) -> ShutdownResult:
    """Answer for a child that was deleted, or whose supervisor has ended."""
    child = message.slot.child
    if isinstance(_REQUESTS.recognize(message.request), ShutdownRequest | ShutdownConfirmRequest | Terminate):
        return ChildRegistry.result_of(child, None)
    raise ChildNotFoundError(child)
