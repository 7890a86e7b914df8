"""`WorkerRecovery`: gives workers up, and sees to it that what they had in hand is back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from loopwarden._threads import run_in_thread
from loopwarden._ticket import Ticket, in_time, write
from loopwarden.actors.loop._messages import AbandonResult
from loopwarden.actors.loop._protocols import can_recover
from loopwarden.actors.runtime._zombies import ZOMBIES
from loopwarden.errors import LoopAbandonedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors.loop._health import LoopHealth
    from loopwarden.actors.loop._messages import AbandonRequest
    from loopwarden.actors.loop._protocols import SupportsRun
    from loopwarden.clock import Clock

__all__ = ["FENCE_AFTER", "GivenBack", "WorkerRecovery"]

#: Seconds that a store has to take a message back before the worker that was given up is fenced nevertheless.
FENCE_AFTER = 1.0


@final
@dataclass(frozen=True, slots=True)
class GivenBack:
    """What an abandoned worker had in hand is back, or had its time."""


@final
class WorkerRecovery:
    """Belongs to one loop's actor; nothing here blocks it.

    Args:
        loop: The loop.
        name: What it is called.
        health: Who its workers are.
        ended: Resolves when the thread that runs the loop has ended.
        clock: The time.
        put: Takes `GivenBack`, on any thread, for the actor.
    """

    def __init__(
        self,
        loop: SupportsRun,
        name: str,
        health: LoopHealth,
        ended: Ticket[BaseException | None],
        *,
        clock: Clock,
        put: Callable[[object], None],
    ) -> None:
        self._loop = loop if can_recover(loop) else None
        self._name = name
        self._health = health
        self._ended = ended
        self._clock = clock
        self._put = put
        #: What the loop ends with, once all of it was given up.
        self.cause: LoopAbandonedError | None = None
        #: How many are being given back; the loop does not end before that.
        self.pending = 0

    def recall(self, worker: int) -> bool:
        """Tell one worker to let go; false if the loop cannot do that, or has no such worker."""
        return self._loop is not None and self._loop.recall(worker)

    def abandon(self, request: AbandonRequest) -> Ticket[AbandonResult]:
        """Give one worker up, or the loop; the ticket resolves when what it had is back, or has had its time."""
        answer: Ticket[AbandonResult] = Ticket(self._clock.blocking)
        in_hand = self._health.in_hand()
        if request.worker is not None:
            status = self._health.find(request.worker)
            if status is None or request.last_heartbeat not in {None, status.last_heartbeat}:
                answer.complete(AbandonResult(abandoned=False))
                return answer
            in_hand = () if status.in_hand is None else (status.in_hand,)
        if self.cause is not None:  # abandoned by another request, just before
            answer.complete(AbandonResult(abandoned=True, in_hand=in_hand))
            return answer
        loop, worker = self._loop, request.worker
        zombie = None if loop is None or worker is None else loop.replace(worker)
        if zombie is None:
            worker = None
            self.cause = LoopAbandonedError(self._name, request.reason)
        else:
            self._health.renew()
        ZOMBIES.add(f"{self._name}-worker", self._ended if zombie is None else zombie)
        self.pending += 1

        def give_back() -> None:
            if loop is not None:
                loop.give_back(worker, f"abandoned: {request.reason}" if request.reason else "abandoned")

        def finish() -> None:
            # First the answer: after the next line the actor may end.
            write(answer, AbandonResult(abandoned=True, replaced=zombie is not None, in_hand=in_hand))
            self._put(GivenBack())

        # On a thread of its own, because the helper may be the one that hangs; a store that hangs is not waited for.
        name = f"{self._name}-returns"
        given_back = run_in_thread(give_back, name, self._clock.blocking)
        in_time(given_back, FENCE_AFTER, lambda: None, self._clock, name).on_ready(lambda _: finish())
        return answer
