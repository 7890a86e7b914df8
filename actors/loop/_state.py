"""The life cycle of a loop: what state follows which, as data."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from loopwarden._blocking import Blocking

__all__ = ["LifeEvent", "Lifecycle", "LoopState", "next_state"]


class LoopState(StrEnum):
    """Where a loop is in its life: ``idle → starting → running → stopping → stopped | failed``."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        """True when no worker will run any more."""
        return self in {LoopState.STOPPED, LoopState.FAILED}


class LifeEvent(StrEnum):
    """What moves a loop from one state to the next."""

    START = "start"  # the actor was started
    ENTER = "enter"  # the worker is about to call run()
    STOP = "stop"  # the end was requested
    RETURN = "return"  # run() has returned
    CRASH = "crash"  # run() has raised, or the actor itself was lost


_ALIVE = (LoopState.IDLE, LoopState.STARTING, LoopState.RUNNING, LoopState.STOPPING)

_NEXT: dict[tuple[LoopState, LifeEvent], LoopState] = {
    (LoopState.IDLE, LifeEvent.START): LoopState.STARTING,
    (LoopState.STARTING, LifeEvent.ENTER): LoopState.RUNNING,
    # A stop is never forgotten: neither starting nor entering leads out of `stopping`.
    **{(state, LifeEvent.STOP): LoopState.STOPPING for state in _ALIVE},
    **{(state, LifeEvent.RETURN): LoopState.STOPPED for state in _ALIVE},
    **{(state, LifeEvent.CRASH): LoopState.FAILED for state in _ALIVE},
}


def next_state(state: LoopState, event: LifeEvent) -> LoopState:
    """Return the state after ``event``; an event that means nothing in ``state`` changes nothing."""
    return _NEXT.get((state, event), state)


@final
class Lifecycle:
    """The state of one loop; any thread may read it or move it on."""

    def __init__(self, blocking: Blocking) -> None:
        self._lock = blocking.lock()  # guards _state against two events at once
        self._state = LoopState.IDLE

    @property
    def state(self) -> LoopState:
        """The state now."""
        return self._state

    def move(self, event: LifeEvent) -> tuple[LoopState, LoopState]:
        """Apply an event; return the state before and after it."""
        with self._lock:
            before = self._state
            self._state = next_state(before, event)
            return before, self._state

    def __repr__(self) -> str:
        return f"<Lifecycle, {self._state}>"
