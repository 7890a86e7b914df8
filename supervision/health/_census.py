"""`take_census`: ask all loops below some refs for their health, within one deadline."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

from loopwarden.actors import ControlRef, HealthCheckRequest, HealthStatus
from loopwarden.clock import Clock, resolve_clock
from loopwarden.supervision.tree._requests import ChildInfo, WhichChildrenRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden._blocking import WorkQueue
    from loopwarden._ticket import Ticket

__all__ = ["Census", "take_census"]

#: Seconds for all answers. Each takes microseconds, and Kubernetes waits for a probe for one second.
CENSUS_TIMEOUT = 0.8


@final
@dataclass(frozen=True, slots=True)
class Census:
    """The health of all loops that were asked, in start order."""

    loops: tuple[HealthStatus, ...]
    #: The names of loops that did not answer in time, and of supervisors that did not or have ended.
    missing: tuple[str, ...]


@final
@dataclass(slots=True, eq=False)
class _Node:
    """A loop or a supervisor that is asked, and its answer: its health, or its children."""

    ref: ControlRef
    is_asked_for_children: bool = False
    told: HealthStatus | tuple[_Node, ...] | None = None


@final
class _Round:
    """Belongs to the thread that takes the census, which sends all requests itself: actors only put answers here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: WorkQueue[tuple[_Node, Ticket[Any]]] = clock.blocking.queue()
        self._gate = clock.blocking.gate()
        self._pending = 0

    def visit(self, ref: ControlRef) -> _Node:
        node = _Node(ref)
        self._ask(node)
        return node

    def _ask(self, node: _Node) -> None:
        node.is_asked_for_children = node.ref.has_children
        request = WhichChildrenRequest() if node.is_asked_for_children else HealthCheckRequest()
        ticket: Ticket[Any] = node.ref.send(request)
        self._pending += 1
        ticket.on_ready(lambda answered: self._arrived(node, answered))

    def _arrived(self, node: _Node, answered: Ticket[Any]) -> None:
        """Take an answer, on the thread of the actor that gives it."""
        self._answers.put((node, answered))
        self._gate.open()

    def finish(self, deadline: float) -> None:
        """Return when all have answered, or at the deadline."""
        in_time = True
        while self._pending and in_time:
            # A fresh gate first, the look at the answers second: an answer in between opens the fresh gate.
            gate = self._gate = self._clock.blocking.gate()
            self._take_in()
            if self._pending:
                in_time = self._clock.wait(gate, deadline - self._clock.monotonic())
        self._take_in()

    def _take_in(self) -> None:
        while True:
            try:
                node, answered = self._answers.get_nowait()
            except queue.Empty:
                return
            self._pending -= 1
            self._sort_in(node, None if answered.has_failed() else answered.wait(0))

    def _sort_in(self, node: _Node, answer: object) -> None:
        if node.is_asked_for_children != node.ref.has_children:  # a supervisor has begun or ended meanwhile
            self._ask(node)
        elif isinstance(answer, HealthStatus):
            node.told = answer
        elif isinstance(answer, tuple):
            node.told = tuple(self.visit(child.ref) for child in cast("tuple[ChildInfo, ...]", answer))


def take_census(refs: Iterable[ControlRef], timeout: float = CENSUS_TIMEOUT, clock: Clock | None = None) -> Census:
    """Ask loops, and all loops below supervisors, for their health; return what they have answered in time.

    A supervisor answers for a child that is starting, backing off or down. A loop that does not answer takes no time
    from the others. It blocks its caller, so an actor must not call it.

    Args:
        refs: The refs of loops and supervisors.
        timeout: Seconds for all answers together.
        clock: The time.
    """
    clock = resolve_clock(clock)
    if isinstance(refs, ControlRef):
        raise TypeError("take_census() takes a list of refs, got a single one")
    deadline = clock.monotonic() + timeout
    asking = _Round(clock)
    roots = [asking.visit(ref) for ref in refs]
    asking.finish(deadline)
    loops: list[HealthStatus] = []
    missing: list[str] = []
    left = roots[::-1]
    while left:
        node = left.pop()
        if node.told is None:
            missing.append(str(getattr(node.ref, "name", node.ref)))
        elif isinstance(node.told, HealthStatus):
            loops.append(node.told)
        else:
            left.extend(reversed(node.told))
    return Census(tuple(loops), tuple(missing))
