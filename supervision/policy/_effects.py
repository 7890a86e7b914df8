"""What a `SupervisorMachine` wants to have done: data, which the supervisor carries out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, final

if TYPE_CHECKING:
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = [
    "Effect",
    "EmitEvent",
    "EventKind",
    "Finish",
    "GiveUp",
    "Hold",
    "Ready",
    "Reply",
    "Start",
    "StartTimer",
    "Stop",
]


class EventKind(StrEnum):
    """What an event is about."""

    STARTED = "started"  # a child is running
    START_FAILED = "start_failed"  # a child could not be started
    EXITED = "exited"  # a child has ended
    RESTARTING = "restarting"  # a child will be started again, after a delay
    TERMINATED = "terminated"  # a child was stopped, and stays down
    CHILD_GAVE_UP = "child_gave_up"  # a child failed more often than it may for itself, and stays down
    GAVE_UP = "gave_up"  # children failed more often than the supervisor allows: it ends
    ESCALATED = "escalated"  # a child failed with something that its supervisor is not to handle: it ends
    AUTO_SHUTDOWN = "auto_shutdown"  # significant children have ended: the supervisor ends
    DRAINING = "draining"  # a child was told to take no more messages, and to complete what it has in hand
    STALLED = "stalled"  # a worker gives no sign of life
    RECALLED = "recalled"  # a worker that gives none was told to let go
    ABANDONED = "abandoned"  # a worker was given up
    DEAD_LETTERED = "dead_lettered"  # a message of a child's mailbox became a dead letter


@final
@dataclass(frozen=True, slots=True)
class Start:
    """Start a child; report to the machine: `started`, `ignored` or `start_failed`, then `ended`.

    If none of the first three can be reported within the ``start_timeout`` of the spec, report `timed_out`.
    """

    spec: ChildSpec
    incarnation: int
    restarts: int


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a child, or keep it from starting; report `ended`, or `timed_out` if that takes longer than it may."""

    spec: ChildSpec
    incarnation: int
    #: True if all time is over: the child has nothing in hand, and so only a moment.
    is_last: bool = False


@final
@dataclass(frozen=True, slots=True)
class Hold:
    """Let a child complete what it has in hand; report `timed_out` when its share of the time is over."""

    spec: ChildSpec
    incarnation: int


@final
@dataclass(frozen=True, slots=True)
class GiveUp:
    """Go on without a child that does not start or stop; report `start_failed`, or `ended` if it was up."""

    spec: ChildSpec
    incarnation: int
    reason: str


@final
@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call `SupervisorMachine.retry` after ``delay`` seconds."""

    child: str
    incarnation: int
    delay: float


@final
@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request for a start or a stop: with nothing, which means done, or with an error."""

    waiter: Any
    error: Exception | None = None


@final
@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Something has happened that people may want to know."""

    kind: EventKind
    child: str
    error: BaseException | None = None
    attempt: int = 0
    delay: float = 0.0
    reason: str = ""


@final
@dataclass(frozen=True, slots=True)
class Ready:
    """All the first children are up."""


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """All children are down, and the supervisor ends: with ``cause``, or because it was to."""

    cause: BaseException | None


Effect: TypeAlias = Start | Stop | Hold | GiveUp | StartTimer | Reply | EmitEvent | Ready | Finish
