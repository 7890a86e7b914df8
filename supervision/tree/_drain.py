"""`TreeDrain`: tells children to complete what they have in hand, and says when they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from loopwarden._ticket import when_all, write
from loopwarden.actors import LoopRef
from loopwarden.supervision.policy._budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden._ticket import Ticket
    from loopwarden.actors import ActorExit
    from loopwarden.actors.loop._messages import BeginDrain
    from loopwarden.clock import Clock
    from loopwarden.supervision.tree._incarnation import Incarnation

__all__ = ["STOP_GRACE", "ShutdownDelegate", "TreeDrain"]

#: Seconds that a child with nothing in hand has to stop, when its share of the budget is over or the wait is cut short.
STOP_GRACE = 0.25


@final
@dataclass(frozen=True, slots=True)
class ShutdownDelegate:
    """Leave the end to a service, which has more to end than the tree; sent by it to its root supervisor."""

    #: Called with the seconds that a `ShutdownRequest` allows, on the supervisor's thread; must not block.
    shut_down: Callable[[float], object]


@final
class TreeDrain:
    """What the children of one supervisor have answered to a `BeginDrain`; which of them is kept, the machine decides.

    Belongs to the supervisor's thread; nothing here blocks it.

    Args:
        order: What was asked for.
        clock: The time.
    """

    def __init__(self, order: BeginDrain, clock: Clock) -> None:
        self._order = order
        self._budget = Budget(order.began, order.end - order.began)
        self._clock = clock
        self._drains: dict[int, Ticket[int]] = {}

    def begin(self, incarnations: Iterable[Incarnation]) -> frozenset[int]:
        """Tell all that can drain to do so; return which they are."""
        closed: list[Ticket[int]] = []
        for incarnation in incarnations:
            if incarnation.adapter is None or incarnation.is_stopping:
                continue
            drain = incarnation.adapter.drain(self._budget, incarnation.spec.priority, self._clock)
            if drain is not None:
                closed.append(drain.closed)
                self._drains[incarnation.number] = drain.drained
        self._complete(self._order.closed, closed)
        return frozenset(self._drains)

    def watch(self, incarnations: Iterable[Incarnation]) -> None:
        """Say when all are drained; those that cannot be, and were told to stop instead, when they have ended."""
        ends = [
            incarnation.adapter.ended
            for incarnation in incarnations
            if incarnation.is_stopping and incarnation.adapter is not None and incarnation.number not in self._drains
        ]
        self._complete(self._order.drained, list(self._drains.values()), ends)

    def _complete(
        self, ticket: Ticket[int], answers: list[Ticket[int]], ends: Iterable[Ticket[ActorExit]] = ()
    ) -> None:
        all_there = when_all([*answers, *ends], self._clock.blocking)
        # One that has failed is that of a loop whose pause() raised; it has told nothing.
        all_there.on_ready(lambda _: write(ticket, sum(each.wait(0) for each in answers if not each.has_failed())))

    def left(self, incarnation: Incarnation) -> float:
        """Return the seconds that a child has to stop."""
        # The shares are for messages; an actor without any is there for those that have some, until all are drained.
        has_messages = incarnation.adapter is None or isinstance(incarnation.adapter.ref, LoopRef)
        priority = incarnation.spec.priority if has_messages else "critical"
        return max(STOP_GRACE, self._budget.left(self._clock.monotonic(), priority))

    def is_idle(self, incarnation: Incarnation) -> bool:
        """Say whether a child has drained, and has nothing in hand."""
        drain = self._drains.get(incarnation.number)
        return drain is not None and drain.is_ready() and not drain.has_failed() and drain.wait(0) == 0

    def __repr__(self) -> str:
        return f"<TreeDrain, {sum(not each.is_ready() for each in self._drains.values())} of {len(self._drains)} left>"
