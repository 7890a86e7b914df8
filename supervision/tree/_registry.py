"""`ChildRegistry`: what refs show of a supervisor's children: their states, their adapters, their last results."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden._log import describe
from loopwarden._ticket import write
from loopwarden.actors import ActorExit, ShutdownResult
from loopwarden.errors import ChildUnavailableError, LoopAbandonedError
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.tree._child_ref import ChildRef, ChildSlot, ChildView
from loopwarden.supervision.tree._requests import ChildCounts, ChildInfo

if TYPE_CHECKING:
    from collections.abc import Collection

    from loopwarden.actors import ControlRef
    from loopwarden.clock import Clock
    from loopwarden.supervision.policy._child import Child
    from loopwarden.supervision.tree._adapter import ChildAdapter
    from loopwarden.supervision.tree._incarnation import Beginning

__all__ = ["ChildRegistry"]


@final
class ChildRegistry:
    """Belongs to one supervisor's thread."""

    def __init__(self, supervisor: ControlRef, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        #: The slot of each child, by its id.
        self.slots: dict[str, ChildSlot] = {}
        self._refs: dict[str, ChildRef] = {}
        self._results: dict[str, ShutdownResult] = {}
        self._causes: dict[str, BaseException | None] = {}
        self._gone: list[str] = []

    def ref(self, child_id: str) -> ChildRef | None:
        """Return the stable ref of a child; None if there is no such child."""
        return self._refs.get(child_id)

    def is_current(self, slot: ChildSlot) -> bool:
        """Say whether a slot is that of a present child, and not of an earlier one of the same id."""
        return self.slots.get(slot.child) is slot

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

    def publish(self, child: Child, adapter: ChildAdapter | None, beginning: Beginning | None = None) -> None:
        """Let the ref of a child know its state and its adapter."""
        slot = self.slots.get(child.id)
        if slot is None:
            slot = self.slots[child.id] = ChildSlot(child.id, self._clock)
            self._refs[child.id] = ChildRef(slot, self._supervisor)
        error, error_at = child.last_error, self._error_at(slot, child.last_error)
        slot.occupant = ChildView(child.state, adapter, child.retry_at, child.restarts, error, error_at, beginning)
        if child.state is ChildState.UP and not slot.ready.is_ready():
            write(slot.ready)

    def remove(self, child_id: str) -> None:
        """Let the ref of a child know that the child is gone for good."""
        slot = self.slots.pop(child_id, None)
        if slot is None:
            return
        del self._refs[child_id]
        self._gone.append(child_id)
        error = self._causes.pop(child_id, None)
        error_at = self._error_at(slot, error)
        slot.occupant = ChildView(ChildState.DOWN, error=error, error_at=error_at, restarts=slot.occupant.restarts)
        if not slot.ready.is_ready():
            write(slot.ready, error=ChildUnavailableError(child_id, ChildState.DOWN))
        write(slot.ended, ActorExit(child_id, error, asked=True))

    def _error_at(self, slot: ChildSlot, error: BaseException | None) -> float | None:
        """Return when an error came up: now, unless the child is known to have it."""
        known = slot.occupant
        return None if error is None else known.error_at if error is known.error else self._clock.wall()

    def close(self) -> None:
        """Remove all children."""
        for child_id in tuple(self.slots):
            self.remove(child_id)

    def last_result(self, child_id: str) -> ShutdownResult:
        """Return the result of the last end of a child."""
        return self._results.get(child_id) or self.result_of(child_id, None)

    @staticmethod
    def result_of(
        child_id: str,
        cause: BaseException | None,
        *,
        was_down: bool = False,
        started: bool = True,
        duration: float = 0.0,
    ) -> ShutdownResult:
        """Return the result of an end that carries none: whether it was before the stop, and if there was a start."""
        error = None if cause is None else describe(cause)
        return ShutdownResult(
            loop_name=child_id,
            clean_shutdown=cause is None,
            duration=duration,
            error=error,
            abandoned=isinstance(cause, LoopAbandonedError) and not was_down,
            started=started,
        )

    def forget_result(self, child_id: str) -> None:
        """Forget the result of a child."""
        self._results.pop(child_id, None)

    def forget_results(self) -> None:
        """Forget the results of children that are gone, once the requests that waited for their ends are answered."""
        while self._gone:
            self.forget_result(self._gone.pop())

    def keep_result(self, child_id: str, ended: ActorExit, duration: float) -> ShutdownResult:
        """Keep the result of an end, the child's own if it carries one."""
        result = ended.result or self.result_of(child_id, ended.cause, duration=duration)
        self._results[child_id] = result
        self._causes[child_id] = ended.cause
        return result
