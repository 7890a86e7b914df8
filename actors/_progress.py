"""What a worker is doing, as its loop tells it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal, final

from pydantic import BaseModel, ConfigDict

from loopwarden.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from loopwarden._heartbeat import Heartbeat

__all__ = ["Activity", "InHand", "MessageFate", "Progress"]


class Activity(StrEnum):
    """What a loop is doing while it runs."""

    POLLING = "polling"
    WORKING = "working"
    PAUSED = "paused"
    DRAINING = "draining"
    BACKING_OFF = "backing_off"
    STALLED = "stalled"
    DEGRADED = "degraded"


class InHand(BaseModel):
    """The message that a worker has in hand, how often it was delivered, and since when it is there."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    message_id: str
    delivery_count: int
    since: float


class MessageFate(BaseModel):
    """What became of one message at the end of its loop."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    message_id: str
    fate: Literal["done", "returned", "extended", "abandoned"]


@final
class Progress:
    """What one worker is doing: written by that worker alone, read by anyone without a lock.

    A loop that has one of these as its ``progress``, or a tuple of them, shows in its health what it is doing.
    """

    __slots__ = ("_clock", "_doing", "failed", "fates", "heartbeat", "last_error", "processed", "returned")

    def __init__(self, clock: Clock = SYSTEM_CLOCK, heartbeat: Heartbeat | None = None) -> None:
        self._clock = clock
        #: The worker's own heartbeat, if the loop has several workers.
        self.heartbeat = heartbeat
        # One tuple, replaced as a whole, so that a reader never sees half of a change.
        self._doing: tuple[Activity, float, InHand | None] = (Activity.POLLING, clock.monotonic(), None)
        #: Messages that were handled.
        self.processed = 0
        #: Messages whose handler raised.
        self.failed = 0
        #: What a handler raised last.
        self.last_error: str | None = None
        #: Messages that went back unhandled.
        self.returned = 0
        #: What became of messages at the end of the loop; appended by whoever ends it.
        self.fates: list[MessageFate] = []

    def polling(self) -> None:
        """Say that the worker waits for a message."""
        self._doing = (Activity.POLLING, self._clock.monotonic(), None)

    @property
    def is_degraded(self) -> bool:
        """True from `degraded` until the worker says something else."""
        return self._doing[0] is Activity.DEGRADED

    def degraded(self) -> None:
        """Say that the broker is away; the time is that of the first of several."""
        if self._doing[0] is not Activity.DEGRADED:
            self._doing = (Activity.DEGRADED, self._clock.monotonic(), None)

    def working(self, message_id: str, delivery_count: int = 1) -> None:
        """Say that the worker has a message in hand."""
        now = self._clock.monotonic()
        in_hand = InHand(message_id=message_id, delivery_count=delivery_count, since=now)
        self._doing = (Activity.WORKING, now, in_hand)

    def snapshot(self) -> tuple[Activity, float, InHand | None]:
        """Return the activity, since when, and what is in hand."""
        return self._doing

    def __repr__(self) -> str:
        return f"<Progress, {self._doing[0]}, {self.processed} processed, {self.failed} failed>"
