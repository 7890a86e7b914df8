"""`LoopHealth`: what is known of a loop's workers: what they do, since when, what became of their messages."""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, final

from pydantic import BaseModel, ConfigDict

from loopwarden._frames import stack_of
from loopwarden.actors.loop._current import here
from loopwarden.actors.loop._work_budget import BudgetStatus, WorkBudget
from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden._heartbeat import Heartbeat
    from loopwarden.mailbox import Message

__all__ = [
    "Activity",
    "Fate",
    "InHand",
    "LoopHealth",
    "MessageFate",
    "Progress",
    "WorkerStatus",
    "fate_of",
    "fields_of_hand",
    "merged_fates",
    "stack_of_worker",
    "stacks_of",
    "words_of_hand",
]


#: ``done``: completed. ``returned``: not completed, and back in the queue. ``abandoned``: its worker was given up while
#: it was in hand, and it is back in the queue. ``extended``: still in hand, or the store did not take it back; it comes
#: back when its lease ends. What goes back after its last delivery is a dead letter then.
Fate: TypeAlias = Literal["done", "returned", "extended", "abandoned"]
#: Of a message that several tell of, because it went back and was taken again: the one further down is what it came to.
_WEIGHTS: dict[Fate, int] = {"returned": 0, "abandoned": 1, "extended": 2, "done": 3}


class MessageFate(BaseModel):
    """What became of one message at the end of its loop."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    message_id: str
    fate: Fate


def merged_fates(fates: Iterable[MessageFate]) -> tuple[MessageFate, ...]:
    """Return one fate of each message."""
    merged: dict[str, MessageFate] = {}
    for each in fates:
        known = merged.setdefault(each.message_id, each)
        if _WEIGHTS[each.fate] > _WEIGHTS[known.fate]:
            merged[each.message_id] = each
    return tuple(merged.values())


def fate_of(message: Message[Any, Any]) -> Fate:
    """Return what became of a message that was in hand, however it was settled."""
    return "extended" if not message.is_finalized else "returned" if message.is_returned else "done"


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
    """The message that a worker has in hand, how often it was delivered, and since when it is there.

    ``since`` is in the clock's monotonic seconds; ``age`` is how many seconds ago that was when this was told.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    message_id: str
    delivery_count: int
    since: float
    age: float = 0.0


class WorkerStatus(BaseModel):
    """What one worker of a loop is doing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Tells this worker from every other of the process, also from the one that replaces it.
    worker: int
    activity: Activity | None = None
    activity_since: float | None = None
    #: Seconds since then.
    activity_age: float | None = None
    in_hand: InHand | None = None
    last_heartbeat: float | None = None
    #: Seconds since then.
    heartbeat_age: float | None = None
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
        "__weakref__",
        "_clock",
        "_doing",
        "_last_error",
        "dead_letters",
        "failed",
        "fates",
        "has_left",
        "has_raised",
        "heartbeat",
        "is_free",
        "late_by",
        "mailbox",
        "polled",
        "processed",
        "quiet_until",
        "returned",
        "thread_id",
        "trouble",
        "waited_until",
        "warnings",
        "where",
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
        #: True for one that has no thread of its own, while it has nothing in hand: there is nothing to be told of it.
        self.is_free = False
        #: Returns the stack of a worker that has no thread of its own.
        self.where: Callable[[], str] | None = None
        #: What slows its mailbox down, as it was told last.
        self.warnings: tuple[str, ...] = ()
        #: The worker's own heartbeat, if the loop has several workers.
        self.heartbeat = heartbeat
        # One tuple, replaced as a whole, so that a reader never sees half of a change.
        self._doing: tuple[Activity, float, InHand | None] = (Activity.POLLING, clock.monotonic(), None)
        #: True from the first `polling` on.
        self.polled = False
        #: True once it works no more: what it had in hand is known, but is not in hand.
        self.has_left = False
        #: True once what it has in hand has ended it, and its loop.
        self.has_raised = False
        #: The name of the mailbox that it receives from, if it has one; for the log.
        self.mailbox: str | None = None
        #: Messages that were handled.
        self.processed = 0
        #: Messages whose handler raised.
        self.failed = 0
        #: Messages of its mailbox that became dead letters here.
        self.dead_letters = 0
        #: Why no messages are taken, while it is degraded, and how many have failed in a row if that is why.
        self.trouble: tuple[str, int] = ("", 0)
        self._last_error: tuple[str, float] | None = None
        #: For how many seconds the next due time had passed when the last run ended, or its own when it began.
        self.late_by: float | None = None
        #: Messages that went back unhandled.
        self.returned = 0
        #: What became of messages at the end of the loop, by their ids; written by what ends it, the last counts.
        self.fates: dict[str, Fate] = {}

    def say_where(self, where: Callable[[], str]) -> None:
        """Say what returns the stack of the worker, because it has no thread of its own."""
        self.where = where
        _PLACES[self.worker] = self

    @property
    def last_error(self) -> str | None:
        """What a handler raised last; when that was is noted with it."""
        return None if self._last_error is None else self._last_error[0]

    @last_error.setter
    def last_error(self, error: str | None) -> None:
        self._last_error = None if error is None else (error, self._clock.wall())

    @property
    def last_error_at(self) -> float | None:
        """When it was, in seconds since the epoch."""
        return None if self._last_error is None else self._last_error[1]

    def polling(self, wait: float = math.inf) -> None:
        """Say that the worker waits for a message, for at most ``wait`` seconds; it is not stalled meanwhile."""
        now = self._clock.monotonic()
        here().leave_message()
        self._doing = (Activity.POLLING, now, None)
        self.polled = True
        self.quiet_until = now + wait

    def leave(self) -> None:
        """Say that the worker has gone home; it is not stalled."""
        self.has_left = True
        here().leave_message()
        self.quiet_until = math.inf

    def paused(self) -> None:
        """Say that the worker has nothing in hand and takes nothing, for as long as it is to."""
        here().leave_message()
        self._doing = (Activity.PAUSED, self._clock.monotonic(), None)
        self.quiet_until = math.inf

    def free(self) -> None:
        """Say that the worker, which has no thread of its own, has nothing in hand."""
        self._doing = (Activity.POLLING, self._clock.monotonic(), None)
        self.polled = self.is_free = True
        self.quiet_until = math.inf

    def throttled(self) -> None:
        """Say that there is something to receive, but that too much is in hand already, here or in other loops."""
        self._doing = (Activity.THROTTLED, self._clock.monotonic(), None)
        self.quiet_until = math.inf

    @property
    def is_degraded(self) -> bool:
        """True from `degraded` until the worker says something else."""
        return self._doing[0] is Activity.DEGRADED

    def degraded(self, wait: float = 0.0, reason: str = "", failures: int = 0) -> None:
        """Say that no messages are taken, and why.

        Args:
            wait: Seconds after which it is tried again.
            reason: What is the matter.
            failures: How many messages have failed in a row, if that is the reason, and not the mailbox.
        """
        self.quiet_until = self._clock.monotonic() + wait
        self.trouble = (reason, failures)
        if self._doing[0] is not Activity.DEGRADED:
            self._doing = (Activity.DEGRADED, self._clock.monotonic(), None)

    def working(self, message_id: str, delivery_count: int = 1) -> None:
        """Say that the worker has a message in hand."""
        now = self._clock.monotonic()
        self.has_left = self.has_raised = self.is_free = False
        in_hand = InHand(message_id=message_id, delivery_count=delivery_count, since=now)
        self.quiet_until = now
        place = here()
        place.message_id, place.delivery = message_id, delivery_count  # for the log
        self._doing = (Activity.WORKING, now, in_hand)

    def busy(self) -> None:
        """Say that the worker does something that is no message of a mailbox, and so cannot go back."""
        now = self._clock.monotonic()
        self.has_left = False
        self.quiet_until = now
        self._doing = (Activity.WORKING, now, None)

    def snapshot(self) -> tuple[Activity, float, InHand | None]:
        """Return the activity, since when, and what is in hand."""
        return self._doing

    def in_hand(self) -> InHand | None:
        """Return what is in hand, with its age."""
        in_hand = self._doing[2]
        return None if in_hand is None else _aged(in_hand, self._clock.monotonic())

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
        now = self._clock.monotonic()
        return WorkerStatus(
            worker=self.worker,
            activity=activity,
            activity_since=since,
            activity_age=max(0.0, now - since),
            in_hand=None if in_hand is None else _aged(in_hand, now),
            last_heartbeat=last,
            heartbeat_age=None if last is None else max(0.0, now - last),
            silent_for=None if last is None else max(0.0, now - max(last, expected)),
            thread_id=self.thread_id or thread_id,
        )

    def __repr__(self) -> str:
        return f"<Progress, {self._doing[0]}, {self.processed} processed, {self.failed} failed>"


#: The workers that have no thread of their own, by their numbers.
_PLACES: weakref.WeakValueDictionary[int, Progress] = weakref.WeakValueDictionary()


def stack_of_worker(status: WorkerStatus) -> str:
    """Return the stack of what a worker does."""
    progress = _PLACES.get(status.worker)
    return stack_of(status.thread_id) if progress is None or progress.where is None else progress.where()


def stacks_of(statuses: Iterable[WorkerStatus]) -> str:
    """Return the stack of each worker, those that are alike once."""
    workers: dict[str, list[int]] = {}
    for status in statuses:
        workers.setdefault(stack_of_worker(status), []).append(status.worker)
    return "\n".join(f"{_named(numbers)}:\n{stack}" for stack, numbers in workers.items())


def _named(workers: list[int]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]}"
    return f"{len(workers)} workers, from {workers[0]} to {workers[-1]}"


def fields_of_hand(in_hand: tuple[InHand, ...], mailbox: str | None = None) -> dict[str, Any]:
    """Return what a log record carries of what is in hand: the first of it, and how much it is, if it is more."""
    fields: dict[str, Any] = {} if mailbox is None else {"mailbox": mailbox}
    if in_hand:
        fields |= {"message_id": in_hand[0].message_id, "delivery": in_hand[0].delivery_count}
    if len(in_hand) > 1:
        fields["in_hand"] = len(in_hand)
    return fields


def words_of_hand(in_hand: tuple[InHand, ...]) -> str:
    """Return the same in words, to stand at the end of a sentence."""
    if not in_hand:
        return ""
    first, others = in_hand[0], len(in_hand) - 1
    more = f" and {others} more" if others else ""
    return f", with message {first.message_id} (delivery {first.delivery_count}){more} in hand"


def _aged(in_hand: InHand, now: float) -> InHand:
    return in_hand.model_copy(update={"age": max(0.0, now - in_hand.since)})


_COUNTS = ("processed", "failed", "returned", "dead_letters")


@final
class LoopHealth:
    """The progress of each worker, and of those that were given up; read by anyone, changed by the loop's actor."""

    def __init__(self, loop: object) -> None:
        self._loop = loop
        self.heartbeat: Heartbeat | None = getattr(loop, "heartbeat", None)
        #: The thread that runs the loop; written by that thread.
        self.thread_id: int | None = None
        self._stalled: dict[int, float] = {}
        self._retired: tuple[Progress, ...] = ()
        self._counted: Counter[str] = Counter()
        self.workers = self._read()
        # Of a loop that says nothing but its heartbeat, the loop is the worker.
        self._itself = None if self.workers or self.heartbeat is None else Progress(heartbeat=self.heartbeat)

    def _read(self) -> tuple[Progress, ...]:
        progress: object = getattr(self._loop, "progress", None)
        workers = cast("tuple[object, ...]", progress) if isinstance(progress, tuple) else (progress,)
        # Other people's loops may use the name for something else.
        return tuple(worker for worker in workers if isinstance(worker, Progress))

    def renew(self) -> None:
        """Look again who the workers are, after one was replaced; what the old one did until then still counts."""
        before = self.workers
        self.workers = self._read()
        gone = tuple(worker for worker in before if worker not in self.workers)
        self._retired += gone
        for count in _COUNTS:
            self._counted[count] += sum(getattr(worker, count) for worker in gone)
        self._stalled = {}

    def total(self, count: str) -> int:
        """Return one of the counters, summed over all workers there ever were."""
        return self._counted[count] + sum(int(getattr(worker, count)) for worker in self.workers)

    @property
    def polled(self) -> bool:
        """True once every worker has looked for messages; a loop that does not tell has when it runs."""
        return all(worker.polled for worker in self.workers)

    def last_error(self) -> tuple[str | None, float | None]:
        """Return what a handler raised last, and when, in seconds since the epoch."""
        told = ((worker.last_error, worker.last_error_at) for worker in (*self._retired, *self.workers))
        return max(told, key=lambda each: each[1] or 0.0, default=(None, None))

    @property
    def late_by(self) -> float | None:
        """For how many seconds a due time had passed when the run before it ended, if one had."""
        return next((worker.late_by for worker in self.workers if worker.late_by is not None), None)

    @property
    def fates(self) -> tuple[MessageFate, ...]:
        """What became of messages at the end of the loop."""
        told = (worker.fates.copy().items() for worker in (*self._retired, *self.workers))
        return merged_fates(MessageFate(message_id=each, fate=fate) for fates in told for each, fate in fates)

    def fates_so_far(self) -> tuple[MessageFate, ...]:
        """What became of messages, and of what is not over: its lease lasts for now, and then it comes back."""
        told = self.fates
        known = {fate.message_id for fate in told}
        held = (each.message_id for each in self.held())
        return told + tuple(MessageFate(message_id=each, fate="extended") for each in held if each not in known)

    def forget_fates(self) -> None:
        """Begin anew: the loop goes on after all."""
        for worker in (*self._retired, *self.workers):
            worker.fates = {}

    def budget(self) -> BudgetStatus | None:
        """Return how much is used of the limit that the loop shares with others."""
        budget: object = getattr(self._loop, "budget", None)
        return budget.snapshot() if isinstance(budget, WorkBudget) else None

    def in_hand(self) -> tuple[InHand, ...]:
        """Return what the workers have in hand, or had when the loop ended."""
        hands = (worker.in_hand() for worker in self.workers)
        return tuple(in_hand for in_hand in hands if in_hand is not None)

    def guilty(self) -> tuple[InHand, ...]:
        """Return what has ended the loop: what was in hand when a worker raised, or else what still is."""
        hands = (worker.in_hand() for worker in self.workers if worker.has_raised)
        return tuple(in_hand for in_hand in hands if in_hand is not None) or self.held()

    @property
    def mailbox(self) -> str | None:
        """The name of the mailbox that the loop receives from, if it has one."""
        return next((worker.mailbox for worker in self.workers if worker.mailbox is not None), None)

    def held(self) -> tuple[InHand, ...]:
        """Return what workers that are at work have in hand."""
        hands = (worker.snapshot()[2] for worker in self.workers if not worker.has_left)
        return tuple(in_hand for in_hand in hands if in_hand is not None)

    def doing(self) -> tuple[Activity | None, float | None]:
        """Return what the loop as a whole is doing and since when: one that works says more than ten that wait."""
        if self._stalled:
            for status in self.statuses():
                if status.last_heartbeat == self._stalled.get(status.worker, math.nan):
                    return Activity.STALLED, status.last_heartbeat
        doing = [worker.snapshot() for worker in self.workers]
        activity, since, _ = max(doing, key=lambda each: each[2] is not None, default=(None, None, None))
        return activity, since

    def trouble(self) -> tuple[str | None, int]:
        """Return why a worker takes no messages, if one does not, and how many have failed in a row."""
        for worker in self.workers:
            if worker.is_degraded:
                reason, failures = worker.trouble
                return reason or None, failures
        return None, 0

    def warnings(self) -> tuple[str, ...]:
        """Return what slows the mailbox down, each once."""
        return tuple(dict.fromkeys(each for worker in self.workers for each in worker.warnings))

    def note_stall(self, worker: int, last_heartbeat: float) -> None:
        """Show a worker as stalled until it beats again."""
        self._stalled[worker] = last_heartbeat

    def oldest_heartbeat(self) -> Heartbeat | None:
        """Return the heartbeat of the worker that was silent for longest, or the loop's own."""
        beating = [each.heartbeat for each in self.workers if each.heartbeat is not None and not each.is_free]
        return min(beating, key=lambda each: each.last_beat) if beating else self.heartbeat

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Return a picture of each worker."""
        if self._itself is not None:
            last = cast("Heartbeat", self.heartbeat)
            return (
                WorkerStatus(
                    worker=self._itself.worker,
                    last_heartbeat=last.last_beat,
                    heartbeat_age=last.age(),
                    silent_for=last.age(),
                    thread_id=self.thread_id,
                ),
            )
        return tuple(worker.status(self.heartbeat, self.thread_id) for worker in self.workers if not worker.is_free)

    def find(self, worker: int) -> WorkerStatus | None:
        """Return the picture of one worker; None if it is not, or no longer, one of the loop's."""
        return next((status for status in self.statuses() if status.worker == worker), None)

    def __repr__(self) -> str:
        return f"<LoopHealth, {len(self.workers)} workers, {len(self._retired)} retired>"
