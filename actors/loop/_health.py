"""`Vitals`: what a loop's workers tell of themselves."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, cast, final

from loopwarden.actors.loop._fates import MessageFate, merged_fates
from loopwarden.actors.loop._progress import Activity, Progress, WorkerStatus
from loopwarden.actors.loop._work_budget import BudgetStatus, WorkBudget

if TYPE_CHECKING:
    from loopwarden._heartbeat import Heartbeat
    from loopwarden.actors.loop._progress import InHand

__all__ = ["Vitals"]

_COUNTS = ("processed", "failed", "returned")


@final
class Vitals:
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

    @property
    def last_error(self) -> str | None:
        """What a handler raised last, of the first worker that can tell."""
        return next((worker.last_error for worker in self.workers if worker.last_error is not None), None)

    @property
    def fates(self) -> tuple[MessageFate, ...]:
        """What became of messages at the end of the loop."""
        told = (worker.fates.copy().items() for worker in (*self._retired, *self.workers))
        return merged_fates(MessageFate(message_id=each, fate=fate) for fates in told for each, fate in fates)

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
        hands = (worker.snapshot()[2] for worker in self.workers)
        return tuple(in_hand for in_hand in hands if in_hand is not None)

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

    def note_stall(self, worker: int, last_heartbeat: float) -> None:
        """Show a worker as stalled until it beats again."""
        self._stalled[worker] = last_heartbeat

    def oldest_heartbeat(self) -> Heartbeat | None:
        """Return the heartbeat of the worker that was silent for longest, or the loop's own."""
        beating = [worker.heartbeat for worker in self.workers if worker.heartbeat is not None]
        return min(beating, key=lambda each: each.last_beat) if beating else self.heartbeat

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Return a picture of each worker."""
        if self._itself is not None:
            last = cast("Heartbeat", self.heartbeat)
            return (
                WorkerStatus(
                    worker=self._itself.worker,
                    last_heartbeat=last.last_beat,
                    silent_for=last.age(),
                    thread_id=self.thread_id,
                ),
            )
        return tuple(worker.status(self.heartbeat, self.thread_id) for worker in self.workers)

    def find(self, worker: int) -> WorkerStatus | None:
        """Return the picture of one worker; None if it is not, or no longer, one of the loop's."""
        return next((status for status in self.statuses() if status.worker == worker), None)

    def __repr__(self) -> str:
        return f"<Vitals, {len(self.workers)} workers, {len(self._retired)} retired>"
