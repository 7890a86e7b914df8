"""`Reception`: answers what was sent to a child, but is its supervisor's to answer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from loopwarden._log import report
from loopwarden._patience import in_time
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
from loopwarden.errors import ChildNotFoundError
from loopwarden.supervision.policy._effects import EventKind
from loopwarden.supervision.tree._child_ref import Terminate
from loopwarden.supervision.tree._registry import Directory
from loopwarden.supervision.tree._reports import Abandoned

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._ticket import Ticket
    from loopwarden.clock import Clock
    from loopwarden.supervision.tree._child_ref import ForChild
    from loopwarden.supervision.tree._errands import Errands
    from loopwarden.supervision.tree._incarnation import Beginning, Tenure

__all__ = ["Reception", "answer_for_one_that_is_gone"]

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
