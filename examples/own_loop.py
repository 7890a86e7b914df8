"""A loop of your own with all that `Runnable` asks for, so that it runs alone, in a `LoopGroup`, and as an actor.

`run` and `shutdown` alone are enough for an actor; the README has such a one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Self

from loopwarden import Heartbeat, LoopActor, Runnable, ShutdownRequest, Ticket, Token, check_health
from loopwarden.actors import Progress

if TYPE_CHECKING:
    from types import TracebackType


class CountingLoop:
    """Counts, at a steady pace."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._token = Token()
        self._ended: Ticket[None] | None = None
        self.heartbeat = Heartbeat()
        self.progress = Progress()

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: int = 300,  # noqa: ARG002  it has no leases
        wait_time_seconds: int = 20,  # noqa: ARG002  nor long polls
    ) -> None:
        """Count until the stop, or up to ``max_iterations``."""
        ended = self._ended = Ticket()
        try:
            for number in itertools.count(1) if max_iterations is None else range(1, max_iterations + 1):
                self.progress.polling()
                self.heartbeat.beat()
                if self._token.wait(self._pace):
                    return
                self.progress.working(f"number {number}")
                print(number, flush=True)
                self.progress.processed += 1
        finally:
            self._ended = None
            ended.complete(None)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Wake `run`, and wait until it has returned."""
        ended = self._ended
        self._token.stop()
        return ended is None or ended.wait_ready(timeout)

    @property
    def running(self) -> bool:
        """True while `run` is working."""
        return self._ended is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()


def main() -> None:
    """Run one alone, and another as an actor."""
    alone: Runnable = CountingLoop(pace=0.01)
    alone.run(max_iterations=3)

    counting = LoopActor.start(CountingLoop(pace=60.0), name="counting")
    counting.ready.wait(timeout=15)  # until its worker has entered `run`
    print(check_health([counting])[0].state.value)  # running
    result = counting.send(ShutdownRequest(timeout=10.0)).wait(timeout=15)
    print("stopped cleanly" if result.clean_shutdown else "cut off")  # at once: the stop wakes its wait


if __name__ == "__main__":
    main()
