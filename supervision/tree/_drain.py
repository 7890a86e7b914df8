"""`TreeDrain`: lets children complete what they have in hand before they are stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from loopwarden._ticket import when_all, write
from loopwarden.actors import IntakeStatus, LoopRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden._ticket import Ticket
    from loopwarden.clock import Clock
    from loopwarden.supervision.policy._budget import Budget
    from loopwarden.supervision.tree._incarnation import Incarnation

__all__ = ["STOP_GRACE", "BeginDrain", "ShutdownDelegate", "TreeDrain"]

#: Seconds that a child has to stop that has nothing in hand, when its share of the budget is over, or nobody waits.
STOP_GRACE = 0.25


@final
@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Take no more messages anywhere below, start nobody, and let what is in hand complete.

    Whoever sends it then says when to stop, with a `ShutdownRequest`.
    """

    budget: Budget
    #: Completed when nobody takes messages any more, with how many are in hand then.
    closed: Ticket[int]
    #: Completed when nobody has anything in hand any more, or has had its time, with how many are in hand then.
    drained: Ticket[int]


@final
@dataclass(frozen=True, slots=True)
class ShutdownDelegate:
    """Leave the end to somebody else, who has more to end than the tree; sent by a service to its root supervisor."""

    #: Called with the seconds that a `ShutdownRequest` allows, on the supervisor's thread; must not block.
    shut_down: Callable[[float], object]


@final
class TreeDrain:
    """Belongs to one supervisor's thread; nothing here blocks it.

    Args:
        order: What was asked for.
        clock: The time.
    """

    def __init__(self, order: BeginDrain, clock: Clock) -> None:
        self._order = order
        self._clock = clock
        self._drains: dict[int, Ticket[Any]] = {}
        self._held: dict[int, Incarnation] = {}
        self._let_go: set[int] = set()
        self._is_over = False

    def left(self, incarnation: Incarnation) -> float:
        """Return the seconds that a child has to stop."""
        now = self._clock.monotonic()
        # The shares are for messages; an actor without any is there for those that have some, until all are drained.
        has_messages = incarnation.adapter is None or isinstance(incarnation.adapter.ref, LoopRef)
        priority = incarnation.spec.priority if has_messages else "critical"
        return max(STOP_GRACE, self._order.budget.left(now, priority))

    def begin(self, incarnations: Iterable[Incarnation]) -> None:
        """Tell everybody to take no more."""
        closed: list[Ticket[Any]] = []
        for incarnation in incarnations:
            if incarnation.adapter is None or incarnation.is_stopping:
                continue
            drain = incarnation.adapter.drain(self._order.budget, incarnation.spec.priority, self._clock)
            if drain is not None:
                closed.append(drain.closed)
                self._drains[incarnation.number] = drain.drained
        self._tell(self._order.closed, closed)

    def watch(self, incarnations: Iterable[Incarnation]) -> None:
        """Say when all are drained; those that cannot be, and were told to stop instead, when they have ended."""
        ends = [
            incarnation.adapter.ended
            for incarnation in incarnations
            if incarnation.is_stopping and incarnation.adapter is not None and incarnation.number not in self._drains
        ]
        self._tell(self._order.drained, [*self._drains.values(), *ends])

    def _tell(self, ticket: Ticket[int], answers: list[Ticket[Any]]) -> None:
        all_there = when_all(answers, self._clock.blocking)
        all_there.on_ready(lambda _: write(ticket, sum(_in_hand(answer) for answer in answers)))

    def hold(self, incarnation: Incarnation) -> bool:
        """Keep a child from its stop until `release`; false if it is not to be kept."""
        if self._is_over or incarnation.number not in self._drains.keys() - self._let_go:
            return False
        incarnation.is_stopping = True
        self._held[incarnation.number] = incarnation
        if not incarnation.is_supervisor:
            incarnation.set_timer(self.left(incarnation), self._clock)
        return True

    def let_go(self, incarnation: Incarnation) -> bool:
        """Note that the time of a child is over; true if it has nothing in hand, and can be stopped."""
        if self._held.pop(incarnation.number, None) is None:
            return False
        self._let_go.add(incarnation.number)  # so that it is not kept again
        return self._has_drained(incarnation)

    def release(self) -> tuple[Incarnation, ...]:
        """Return those that are to be stopped now; nobody is kept any more."""
        held, self._held, self._is_over = self._held, {}, True
        return tuple(held.values())

    def lets_end(self, incarnation: Incarnation) -> bool:
        """Say whether a child was told to stop with nothing in hand, so that it ends by itself unless it hangs."""
        return (self._is_over or incarnation.number in self._let_go) and self._has_drained(incarnation)

    def _has_drained(self, incarnation: Incarnation) -> bool:
        drain = self._drains.get(incarnation.number)
        # One whose pause() raised takes messages until it is stopped.
        return drain is not None and drain.is_ready() and not drain.has_failed() and _in_hand(drain) == 0

    def ended(self, incarnation: Incarnation) -> None:
        """Note that a child has ended."""
        self._held.pop(incarnation.number, None)

    def __repr__(self) -> str:
        return f"<TreeDrain, {len(self._held)} held of {len(self._drains)}>"


def _in_hand(answer: Ticket[Any]) -> int:
    """Return how many messages somebody has in hand: a loop tells its status, a supervisor the number."""
    if answer.has_failed():  # it has ended
        return 0
    status: object = answer.wait(0)
    return status.in_hand if isinstance(status, IntakeStatus) else status if isinstance(status, int) else 0
