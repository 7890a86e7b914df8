"""`Directory`: what others see of a supervisor's children: their refs, who is behind them, how their ends went."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden._log import describe
from loopwarden._ticket import write
from loopwarden.actors import ActorExit, ShutdownResult
from loopwarden.errors import ChildUnavailableError, LoopAbandonedError
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.tree._child_ref import ChildRef, Occupant, Seat
from loopwarden.supervision.tree._requests import ChildCounts, ChildInfo

if TYPE_CHECKING:
    from collections.abc import Collection

    from loopwarden.actors import ControlRef
    from loopwarden.clock import Clock
    from loopwarden.supervision.policy._child import Child
    from loopwarden.supervision.tree._adapter import Life
    from loopwarden.supervision.tree._incarnation import Beginning

__all__ = ["Directory"]


@final
class Directory:
    """Kept by one supervisor's thread."""

    def __init__(self, supervisor: ControlRef, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        #: The place of each child, by its id.
        self.seats: dict[str, Seat] = {}
        self._refs: dict[str, ChildRef] = {}
        self._results: dict[str, ShutdownResult] = {}
        self._causes: dict[str, BaseException | None] = {}
        self._gone: list[str] = []

    def ref(self, child_id: str) -> ChildRef | None:
        """Return the stable ref of a child; None if there is no such child."""
        return self._refs.get(child_id)

    def is_current(self, seat: Seat) -> bool:
        """Say whether a seat is still one of a child here, and not of an earlier one of the same id."""
        return self.seats.get(seat.child) is seat

    def info(self, child: Child) -> ChildInfo:
        """Return a picture of a child."""
        return ChildInfo(
            id=child.id,
            state=child.state,
            is_supervisor=child.is_supervisor,
            restarts=child.restarts,
            retry_at=child.retry_at,
            last_error=None if child.last_error is None else describe(child.last_error),
            ref=self._refs[child.id],
        )

    @staticmethod
    def counts(children: Collection[Child]) -> ChildCounts:
        """Return how many children there are."""
        supervisors = sum(child.is_supervisor for child in children)
        return ChildCounts(
            specs=len(children),
            active=sum(child.state in {ChildState.UP, ChildState.STOPPING} for child in children),
            supervisors=supervisors,
            workers=len(children) - supervisors,
        )

    def publish(self, child: Child, life: Life | None, beginning: Beginning | None = None) -> None:
        """Let the ref of a child know who is behind it."""
        seat = self.seats.get(child.id)
        if seat is None:
            seat = self.seats[child.id] = Seat(child.id, self._clock)
            self._refs[child.id] = ChildRef(seat, self._supervisor)
        seat.occupant = Occupant(child.state, life, child.retry_at, child.restarts, child.last_error, beginning)
        if child.state is ChildState.UP and not seat.ready.is_ready():
            write(seat.ready)

    def remove(self, child_id: str) -> None:
        """Let the ref of a child know that there will be nobody any more."""
        seat = self.seats.pop(child_id, None)
        if seat is None:
            return
        del self._refs[child_id]
        self._gone.append(child_id)
        error = self._causes.pop(child_id, None)
        seat.occupant = Occupant(ChildState.DOWN, error=error, restarts=seat.occupant.restarts)
        if not seat.ready.is_ready():
            write(seat.ready, error=ChildUnavailableError(child_id, ChildState.DOWN))
        write(seat.ended, ActorExit(child_id, error, asked=True))

    def close(self) -> None:
        """Do that with all of them."""
        for child_id in tuple(self.seats):
            self.remove(child_id)

    def last_result(self, child_id: str) -> ShutdownResult:
        """Return how the last end of a child went."""
        return self._results.get(child_id) or self.result_of(child_id, None)

    @staticmethod
    def result_of(
        child_id: str, cause: BaseException | None, *, was_down: bool = False, duration: float = 0.0
    ) -> ShutdownResult:
        """Return how an end went that does not tell itself, and whether it was before the stop."""
        error = None if cause is None else describe(cause)
        return ShutdownResult(
            loop_name=child_id,
            clean_shutdown=cause is None,
            duration=duration,
            error=error,
            abandoned=isinstance(cause, LoopAbandonedError) and not was_down,
        )

    def forget_result(self, child_id: str) -> None:
        """Forget how an end went."""
        self._results.pop(child_id, None)

    def forget_results(self) -> None:
        """Do that for children that are gone, once whoever waited for their end was answered."""
        while self._gone:
            self.forget_result(self._gone.pop())

    def keep_result(
        self, child_id: str, life: Life | None, cause: BaseException | None, duration: float
    ) -> ShutdownResult:
        """Remember how an end went, in the child's own words if it tells."""
        result = (None if life is None else life.result()) or self.result_of(child_id, cause, duration=duration)
        self._results[child_id] = result
        self._causes[child_id] = cause
        return result
