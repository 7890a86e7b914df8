"""What a worker is doing, as its loop tells it."""

from __future__ import annotations

import itertools
import math
from enum import StrEnum
from typing import TYPE_CHECKING, final

from pydantic import BaseModel, ConfigDict

from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._heartbeat import Heartbeat
    from loopwarden.actors.loop._fates import Fate

__all__ = ["Activity", "InHand", "Progress", "WorkerStatus"]

_workers = itertools.count(1)


class Activity(StrEnum):
    """What a loop is doing while it runs."""

    POLLING = "polling"
    WORKING = "working"
    PAUSED = "paused"
    DRAINING = "draining"
    BACKING_OFF = "backing_off"
    STALLED = "stalled"
    DEGRADED = "degraded"
    THROTTLED = "throttled"


class InHand(BaseModel):
    """The message that a worker has in hand, how often it was delivered, and since when it is there."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    message_id: str
    delivery_count: int
    since: float


class WorkerStatus(BaseModel):
    """What one worker of a loop is doing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Tells this worker from every other of the process, also from the one that replaces it.
    worker: int
    activity: Activity | None = None
    activity_since: float | None = None
    in_hand: InHand | None = None
    last_heartbeat: float | None = None
    #: Seconds without a sign of life that were not to be expected; None if the worker is not watched.
    silent_for: float | None = None
    #: The thread that does the work, whose stack tells where it hangs.
    thread_id: int | None = None


@final
class Progress:
    """What one worker is doing: written by that worker alone, read by anyone without a lock.

    A loop that has one of these as its ``progress``, or a tuple of them, shows in its health what it is doing.
    """

    __slots__ = (
        "_clock",
        "_doing",
        "failed",
        "fates",
        "has_left",
        "heartbeat",
        "last_error",
        "polled",
        "processed",
        "quiet_until",
        "returned",
        "thread_id",
        "waited_until",
        "worker",
    )

    def __init__(self, clock: Clock | None = None, heartbeat: Heartbeat | None = None) -> None:
        clock = resolve_clock(clock)
        self._clock = clock
        #: Tells this worker from every other of the process.
        self.worker = next(_workers)
        #: The thread that does the work, if the loop says which; otherwise it is the one that runs the loop.
        self.thread_id: int | None = None
        #: Until when it may be silent, because it waits for something.
        self.quiet_until = clock.monotonic()
        #: Says up to when the worker was kept waiting by its store, if the store can tell.
        self.waited_until: Callable[[], float] | None = None
        #: The worker's own heartbeat, if the loop has several workers.
        self.heartbeat = heartbeat
        # One tuple, replaced as a whole, so that a reader never sees half of a change.
        self._doing: tuple[Activity, float, InHand | None] = (Activity.POLLING, clock.monotonic(), None)
        #: True from the first `polling` on.
        self.polled = False
        #: True once it works no more: what it had in hand is known, but is not in hand.
        self.has_left = False
        #: Messages that were handled.
        self.processed = 0
        #: Messages whose handler raised.
        self.failed = 0
        #: What a handler raised last.
        self.last_error: str | None = None
        #: Messages that went back unhandled.
        self.returned = 0
        #: What became of messages at the end of the loop, by their ids; written by whoever ends it, the last counts.
        self.fates: dict[str, Fate] = {}

    def polling(self, wait: float = math.inf) -> None:
        """Say that the worker waits for a message, for at most ``wait`` seconds; it is not stalled meanwhile."""
        now = self._clock.monotonic()
        self._doing = (Activity.POLLING, now, None)
        self.polled = True
        self.quiet_until = now + wait

    def leave(self) -> None:
        """Say that the worker has gone home; it is not stalled."""
        self.has_left = True
        self.quiet_until = math.inf

    def paused(self) -> None:
        """Say that the worker has nothing in hand and takes nothing, for as long as it is to."""
        self._doing = (Activity.PAUSED, self._clock.monotonic(), None)
        self.quiet_until = math.inf

    def throttled(self) -> None:
        """Say that there is something to receive, but that too much is in hand already, here or in other loops."""
        self._doing = (Activity.THROTTLED, self._clock.monotonic(), None)
        self.quiet_until = math.inf

    @property
    def is_degraded(self) -> bool:
        """True from `degraded` until the worker says something else."""
        return self._doing[0] is Activity.DEGRADED

    def degraded(self, wait: float = 0.0) -> None:
        """Say that the broker is away and is tried again in ``wait`` seconds; the time is that of the first try."""
        self.quiet_until = self._clock.monotonic() + wait
        if self._doing[0] is not Activity.DEGRADED:
            self._doing = (Activity.DEGRADED, self._clock.monotonic(), None)

    def working(self, message_id: str, delivery_count: int = 1) -> None:
        """Say that the worker has a message in hand."""
        now = self._clock.monotonic()
        self.has_left = False
        in_hand = InHand(message_id=message_id, delivery_count=delivery_count, since=now)
        self.quiet_until = now
        self._doing = (Activity.WORKING, now, in_hand)

    def snapshot(self) -> tuple[Activity, float, InHand | None]:
        """Return the activity, since when, and what is in hand."""
        return self._doing

    def status(self, heartbeat: Heartbeat | None = None, thread_id: int | None = None) -> WorkerStatus:
        """Return a picture of the worker.

        Args:
            heartbeat: The loop's, for a worker that has none of its own.
            thread_id: The thread that runs the loop, likewise.
        """
        activity, since, in_hand = self._doing
        heartbeat = self.heartbeat or heartbeat
        last = None if heartbeat is None else heartbeat.last_beat
        expected = self.quiet_until if self.waited_until is None else max(self.quiet_until, self.waited_until())
        return WorkerStatus(
            worker=self.worker,
            activity=activity,
            activity_since=since,
            in_hand=in_hand,
            last_heartbeat=last,
            silent_for=None if last is None else max(0.0, self._clock.monotonic() - max(last, expected)),
            thread_id=self.thread_id or thread_id,
        )

    def __repr__(self) -> str:
        return f"<Progress, {self._doing[0]}, {self.processed} processed, {self.failed} failed>"
