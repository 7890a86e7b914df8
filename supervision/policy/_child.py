"""`Child`: what a supervisor knows of one child, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = ["After", "Child", "ChildState"]


class ChildState(StrEnum):
    """Where a child stands.

    pending ─▶ starting ─▶ up ─▶ stopping ─▶ down
                   ▲              ─▶ restarting ─┐
                   └─────────────────────────────┘
    """

    PENDING = "pending"  # to be started when its turn comes
    STARTING = "starting"  # its factory is at work, or its loop has not entered `run`
    UP = "up"
    STOPPING = "stopping"  # it was told to stop
    RESTARTING = "restarting"  # to be started again, when its delay is over and its turn comes
    DOWN = "down"  # only its spec is there

    @property
    def is_alive(self) -> bool:
        """True while there is something that must be stopped."""
        return self in {ChildState.STARTING, ChildState.UP, ChildState.STOPPING}


class After(Enum):
    """What becomes of a child that is being stopped."""

    KEEP = "keep"  # it stays down
    DELETE = "delete"  # its spec is deleted
    RESTART = "restart"  # it went down with a sibling, and comes up with it


@final
@dataclass(slots=True, eq=False)
class Child:
    """One child; only its `SupervisorMachine` changes it."""

    spec: ChildSpec
    #: Its place in the start order, which it keeps for ever.
    position: int
    state: ChildState = ChildState.DOWN
    #: Which life of the child this is; a report about another one is out of date.
    incarnation: int = 0
    restarts: int = 0
    #: Failures in a row, which the back-off is made of.
    failures: int = 0
    up_since: float | None = None
    #: When the back-off is over.
    retry_at: float | None = None
    #: When it was restarted, for its own intensity.
    history: tuple[float, ...] = ()
    #: True from the decision to stop it until it is told, which in a group must wait for its turn.
    stop_pending: bool = False
    #: True if its stop waits until it has completed what it has in hand, or has had its time for that.
    is_draining: bool = False
    after: After = After.KEEP
    #: True if its end was asked for: then only a request brings it up again.
    is_terminated: bool = False
    #: True until it is up for the first time as one of the supervisor's first children.
    is_initial: bool = False
    #: True until a child that was added at run time is up: until then a failure discards it.
    is_new: bool = False
    is_supervisor: bool = False
    last_error: BaseException | None = None
    #: Why its loop returned by itself when it last ended, if it has told; kept while it cannot be started again.
    end_reason: str = ""
    start_waiters: list[object] = field(default_factory=list[object])
    stop_waiters: list[object] = field(default_factory=list[object])

    @property
    def is_unwanted(self) -> bool:
        """True from the decision to stop it until it is down."""
        return self.stop_pending or self.state is ChildState.STOPPING

    @property
    def id(self) -> str:
        """What it is called."""
        return self.spec.id
