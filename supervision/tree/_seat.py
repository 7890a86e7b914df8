"""`Seat`: who is behind a stable ref now; written by the supervisor, read by anyone without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from loopwarden._log import describe
from loopwarden._ticket import SharedTicket, Ticket
from loopwarden.actors import Activity, ActorExit, ControlRef, HealthStatus, LoopState, WorkerStatus
from loopwarden.supervision.policy._child import ChildState

if TYPE_CHECKING:
    import pykka

    from loopwarden.clock import Clock
    from loopwarden.supervision.tree._adapter import Life
    from loopwarden.supervision.tree._incarnation import Beginning
    from loopwarden.supervision.tree._pykka_actor import PlainActor

__all__ = ["Occupant", "Seat"]


@final
@dataclass(frozen=True, slots=True)
class Occupant:
    """Who is there, and what the supervisor knows of it."""

    state: ChildState = ChildState.PENDING
    life: Life | None = None
    retry_at: float | None = None
    restarts: int = 0
    error: BaseException | None = None
    #: Since when it starts; None if it does not.
    beginning: Beginning | None = None


#: The number of what starts a child, among workers: theirs begin at 1.
_STARTER = 0

_STATES = {
    ChildState.PENDING: LoopState.IDLE,
    ChildState.STARTING: LoopState.STARTING,
    ChildState.UP: LoopState.RUNNING,
    ChildState.STOPPING: LoopState.STOPPING,
    ChildState.RESTARTING: LoopState.FAILED,
    ChildState.DOWN: LoopState.STOPPED,
}


@final
class Seat:
    """The place of one child; it outlives those who sit there."""

    def __init__(self, child: str, clock: Clock) -> None:
        self.child = child
        self.clock = clock
        #: One value, replaced as a whole, so that a reader never sees half of a change.
        self.occupant = Occupant()
        #: Resolves when the child is deleted, or its supervisor has ended.
        self.ended: Ticket[ActorExit] = SharedTicket(clock.blocking)
        #: Resolves when the child is up for the first time.
        self.ready: Ticket[None] = SharedTicket(clock.blocking)

    @property
    def ref(self) -> pykka.ActorRef[Any] | None:
        """Whom to speak to."""
        life = self.occupant.life
        return None if life is None else life.ref

    @property
    def control_ref(self) -> ControlRef | None:
        """Whom to speak to, if it is one of our own actors."""
        ref = self.ref
        return ref if isinstance(ref, ControlRef) else None

    @property
    def plain(self) -> PlainActor | None:
        """The Pykka actor that sits there, if it is one."""
        return getattr(self.occupant.life, "plain", None)

    def health(self) -> HealthStatus:
        """Answer for a child that cannot answer itself."""
        now = self.occupant
        state = _STATES[now.state]
        if now.state is ChildState.DOWN and now.error is not None:
            state = LoopState.FAILED
        beginning = now.beginning if now.state is ChildState.STARTING else None
        return HealthStatus(
            loop_name=self.child,
            state=state,
            running=now.state.is_alive,
            last_heartbeat=None,
            heartbeat_age=None,
            activity=Activity.BACKING_OFF if now.state is ChildState.RESTARTING else None,
            polled=now.state is ChildState.UP,  # an actor that does not tell has when it is up
            restarts=now.restarts,
            retry_at=now.retry_at,
            starting_since=None if beginning is None else beginning.since,
            workers=() if beginning is None else (self._starter(beginning, now.life),),
            error=None if now.error is None else describe(now.error),
        )

    def _starter(self, beginning: Beginning, life: Life | None) -> WorkerStatus:
        """Return how what starts the child is, which the watchdog judges like a worker."""
        # The time that the spec allows is the supervisor's to watch.
        silent_for = self.clock.monotonic() - beginning.since - (beginning.limit or 0.0)
        return WorkerStatus(
            worker=_STARTER,
            last_heartbeat=beginning.since,
            silent_for=max(0.0, silent_for),
            thread_id=beginning.thread_id if life is None else life.thread_id,
        )

    def __repr__(self) -> str:
        return f"<Seat of {self.child!r}, {self.occupant.state}>"
