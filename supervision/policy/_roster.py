"""`Roster`: the children of one supervisor by state, and whose turn it is to be stopped or started."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never, final

from loopwarden.errors import ChildNotFoundError
from loopwarden.supervision.policy._child import After, Child, ChildState

if TYPE_CHECKING:
    from loopwarden.supervision.tree._spec import ChildSpec, Strategy

__all__ = ["Roster"]


@final
class Roster:
    """Children in start order.

    Groups go strictly one after another: whoever is to be stopped is, from right to left, before anybody is started,
    from left to right. Without a group only the first start is in order, and everybody else goes as soon as it can.
    """

    def __init__(self, strategy: Strategy, *, sequential: bool) -> None:
        self._strategy: Strategy = strategy
        self._is_ordered = sequential or strategy != "one_for_one"
        #: In start order.
        self.children: dict[str, Child] = {}
        #: Ids of children that have changed since somebody looked.
        self.touched: dict[str, None] = {}
        self._by_state: dict[ChildState, dict[str, Child]] = {state: {} for state in ChildState}
        self._doomed: dict[str, Child] = {}
        self._first: deque[Child] = deque()
        self._due: list[Child] = []  # who may be started, where there is no order
        self._positions = 0

    def add(self, spec: ChildSpec, *, is_initial: bool) -> Child:
        """Add a child at the end, to be started when its turn comes."""
        self._positions += 1
        child = Child(spec, self._positions, is_initial=is_initial, is_new=not is_initial)
        self.children[spec.id] = child
        self._by_state[child.state][spec.id] = child
        self.move(child, ChildState.PENDING)
        if is_initial:
            self._first.append(child)
        else:
            self.make_due(child)
        return child

    def current(self, child_id: str, incarnation: int) -> Child | None:
        """Return a child, if it is still living the life that is meant."""
        child = self.children.get(child_id)
        return child if child is not None and child.incarnation == incarnation else None

    def find(self, child_id: str) -> Child:
        """Return a child.

        Raises:
            ChildNotFoundError: if there is none of that id.
        """
        child = self.children.get(child_id)
        if child is None:
            raise ChildNotFoundError(child_id)
        return child

    def move(self, child: Child, state: ChildState) -> None:
        """Note where a child stands."""
        del self._by_state[child.state][child.id]
        child.state = state
        self._by_state[state][child.id] = child
        self.touched[child.id] = None

    def delete(self, child: Child) -> None:
        """Forget a child."""
        del self._by_state[child.state][child.id]
        del self.children[child.id]
        self.touched[child.id] = None

    def make_due(self, child: Child) -> None:
        """Note that a child need not wait for time any more."""
        child.retry_at = None
        self.touched[child.id] = None
        if not self._is_ordered:
            self._due.append(child)

    def doom(self, child: Child, after: After) -> None:
        """Have a child stopped when its turn comes."""
        child.after = after
        if child.state is not ChildState.STOPPING:
            child.is_doomed = True
            self._doomed[child.id] = child

    def forgive(self, child: Child) -> None:
        """Note that a child need not be stopped, because it is being stopped, or is down."""
        child.is_doomed = False
        self._doomed.pop(child.id, None)

    @property
    def are_all_down(self) -> bool:
        """True if nothing is left to be stopped."""
        return len(self._by_state[ChildState.DOWN]) == len(self.children)

    @property
    def are_first_up(self) -> bool:
        """True once each of the first children has been up, or was not to be."""
        while self._first and not self._first[0].is_initial:
            self._first.popleft()
        return not self._first

    def next_to_stop(self) -> list[Child]:
        """Return who is to be stopped now."""
        if not self._is_ordered:
            return sorted(self._doomed.values(), key=_rightmost)
        if not self._doomed or self._by_state[ChildState.STOPPING]:
            return []
        return [min(self._doomed.values(), key=_rightmost)]

    def next_to_start(self) -> list[Child]:
        """Return who is to be started now."""
        if not self._is_ordered:
            due, self._due = self._due, []
            if not self.are_first_up and self._first[0].state is ChildState.PENDING:
                due.append(self._first[0])
            return [child for child in due if child.state in _WAITING and child.retry_at is None]
        if self._doomed or self._by_state[ChildState.STOPPING] or self._by_state[ChildState.STARTING]:
            return []
        waiting = [child for state in _WAITING for child in self._by_state[state].values()]
        waiting.sort(key=lambda each: each.position)
        group = [each for each in waiting if each.state is ChildState.RESTARTING or each.is_initial]
        match self._strategy:
            case "one_for_all":  # they came down together, and come up together
                can_start = all(each.retry_at is None for each in group)
            case "rest_for_one":  # each waits for those on its left
                can_start = all(each.retry_at is None for each in group[:1])
            case "one_for_one":
                group = [each for each in group if each.retry_at is None]
                can_start = True
            case _:
                assert_never(self._strategy)
        by_hand = [each for each in waiting if each not in group and each.retry_at is None]
        # A start by hand does not wait for a back-off.
        return (group[:1] if can_start else []) or by_hand[:1]

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(children)} {state}" for state, children in self._by_state.items() if children)
        return f"<Roster, {counts or 'empty'}>"


_WAITING = (ChildState.PENDING, ChildState.RESTARTING)


def _rightmost(child: Child) -> int:
    return -child.position
