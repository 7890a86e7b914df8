"""`TreePause`: whether a supervisor's children take messages, also those that are started later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, final

from loopwarden._ticket import Ticket, settle, when_all
from loopwarden.actors import ControlRef, DrainRequest, IntakeStatus, LoopRef, PauseRequest, ResumeRequest
from loopwarden.errors import ActorDeadError, UnsupportedRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden.clock import Clock
    from loopwarden.supervision.tree._incarnation import Incarnation

__all__ = ["IntakeRequest", "TreePause"]

IntakeRequest: TypeAlias = PauseRequest | DrainRequest | ResumeRequest


@final
class TreePause:
    """Belongs to one supervisor's thread; nothing here blocks it."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._is_all_off = False
        self._but: set[str] = set()  # those that are the other way
        #: True once everything is being shut down, so that nothing can be turned on again.
        self.is_locked = False

    def is_off(self, child_id: str) -> bool:
        """Say whether a child is to take nothing when it is started."""
        return self.is_locked or self._is_all_off != (child_id in self._but)

    def turn_off(self) -> None:
        """Have all that are started from now on take nothing."""
        self._is_all_off = True

    def forget(self, child_id: str) -> None:
        """Forget a child that is gone."""
        self._but.discard(child_id)

    def turn(self, request: IntakeRequest, incarnations: Iterable[Incarnation]) -> Ticket[IntakeStatus]:
        """Pass a request on to all children; the ticket resolves when all have answered."""
        self._refuse_late(request)
        self._is_all_off = not isinstance(request, ResumeRequest)
        self._but.clear()
        began = self._clock.monotonic()
        answers = [
            _answer_of(incarnation.spec.id, ref.send(_without_ticket(request)), self._clock)
            for incarnation in incarnations
            if (ref := _told(incarnation)) is not None
        ]

        def total() -> IntakeStatus:
            children = tuple(answer.wait(0) for answer in answers)
            return IntakeStatus(
                loop_name=self._name,
                taking=any(child.taking for child in children),
                drained=self._is_all_off and all(child.drained for child in children),
                in_hand=sum(child.in_hand for child in children),
                done=sum(child.done for child in children),
                returned=sum(child.returned for child in children),
                duration=self._clock.monotonic() - began,
                children=children,
            )

        return when_all(answers, self._clock.blocking).map(lambda _: total())

    def turn_one(self, child_id: str, request: IntakeRequest, incarnation: Incarnation | None) -> Ticket[IntakeStatus]:
        """Pass a request on to one child; if it is not there just now, it holds for its next life."""
        ref = None if incarnation is None else _told(incarnation)
        if incarnation is not None and incarnation.adapter is not None and ref is None:
            raise UnsupportedRequestError(f"child {child_id!r}", type(request).__name__, "it takes no messages")
        self._refuse_late(request)
        if self._is_all_off == isinstance(request, ResumeRequest):
            self._but.add(child_id)
        else:
            self._but.discard(child_id)
        if ref is not None:
            return ref.send(_without_ticket(request))
        answer: Ticket[IntakeStatus] = Ticket(self._clock.blocking)
        answer.complete(_absent(child_id, taking=False))  # there is no loop that could take anything
        return answer

    def _refuse_late(self, request: IntakeRequest) -> None:
        if self.is_locked and isinstance(request, ResumeRequest):
            raise UnsupportedRequestError(f"Supervisor {self._name!r}", "ResumeRequest", "it is being shut down")


def _told(incarnation: Incarnation) -> ControlRef | None:
    """Return whom to tell: loops, and supervisors."""
    ref: object = None if incarnation.adapter is None else incarnation.adapter.ref
    return ref if isinstance(ref, LoopRef) or (isinstance(ref, ControlRef) and ref.has_children) else None


def _without_ticket(request: IntakeRequest) -> Any:
    return request.model_copy(update={"ticket": None})  # answered here, not by the child too


def _answer_of(child_id: str, answer: Ticket[IntakeStatus], clock: Clock) -> Ticket[IntakeStatus]:
    """Return an answer that never fails: one that has ended has no messages, one that cannot be paused takes them."""

    def judge() -> IntakeStatus:
        try:
            return answer.wait(0)
        except ActorDeadError:
            return _absent(child_id, taking=False)
        except Exception:  # noqa: BLE001  it has no pause(), or that raised
            return _absent(child_id, taking=True)

    judged: Ticket[IntakeStatus] = Ticket(clock.blocking)
    answer.on_ready(lambda _: settle(judged, judge))
    return judged


def _absent(child_id: str, *, taking: bool) -> IntakeStatus:
    return IntakeStatus(
        loop_name=child_id, taking=taking, drained=not taking, in_hand=0, done=0, returned=0, duration=0.0
    )
