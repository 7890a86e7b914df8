"""A worker's sign of life."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Heartbeat"]


@final
class Heartbeat:
    """The time of a worker's last sign of life: one float, one writer, any number of readers.

    The work itself beats, never a timer: a timer would go on beating over a handler that hangs.
    A new heartbeat counts as just beaten.
    """

    __slots__ = ("_clock", "_last_beat", "_listener")

    def __init__(self, clock: Clock | None = None) -> None:
        clock = resolve_clock(clock)
        self._clock = clock
        self._last_beat = clock.monotonic()
        self._listener: Callable[[], object] | None = None

    def beat(self) -> None:
        """Say that there is progress; called by the worker only."""
        self._last_beat = self._clock.monotonic()
        if self._listener is not None:
            self._listener()

    def listen(self, listener: Callable[[], object] | None) -> None:
        """Have ``listener`` called with each beat, on the thread that beats; None ends it. There is one at a time."""
        self._listener = listener

    @property
    def last_beat(self) -> float:
        """When it beat last, in the clock's monotonic seconds."""
        return self._last_beat

    def age(self) -> float:
        """Return the seconds since the last beat."""
        return self._clock.monotonic() - self._last_beat

    def __repr__(self) -> str:
        return f"<Heartbeat, {self.age():.3f} s ago>"
