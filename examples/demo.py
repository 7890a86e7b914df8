"""The main job, small: three loops on a toy source, told what to do by messages.

Run it with ``make demo``; Ctrl-C stops it, ``DEMO_SECONDS=8`` ends it by itself.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from loopwarden import Heartbeat, LoopActor, ShutdownRequest, Ticket, check_health, wait_all
from loopwarden.actors import Progress
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.errors import TicketError

if TYPE_CHECKING:
    from types import TracebackType

    from loopwarden.actors import HealthStatus

#: Seconds between two looks at the loops.
ROUND = 2.0


class ToyLoop:
    """A loop of your own needs nothing from us but this shape: `run`, `shutdown`, `running`, `heartbeat`.

    It takes an order from a toy source now and then, and works on it for a moment.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._stop: Ticket[None] = Ticket()
        self._done: Ticket[None] = Ticket()
        self._dice = random.Random()  # noqa: S311  a toy
        self.heartbeat = Heartbeat()
        self.progress = Progress()

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: int = 300,  # noqa: ARG002  a toy source has no leases
        wait_time_seconds: int = 20,  # noqa: ARG002  nor long polls
    ) -> None:
        """Take orders until the stop."""
        try:
            for number in itertools.count(1) if max_iterations is None else range(1, max_iterations + 1):
                self.progress.polling()
                self.heartbeat.beat()
                if self._stopped_within(self._dice.expovariate(1 / self._pace)):
                    return
                self.progress.working(f"order {number}")
                self.heartbeat.beat()
                # Work in hand is completed, also when the stop comes in the middle of it.
                SYSTEM_CLOCK.wait(SYSTEM_CLOCK.blocking.gate(), self._dice.uniform(0, self._pace))
                self.progress.processed += 1
        finally:
            self._done.complete(None)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Wake the poll and wait for the order in hand."""
        with suppress(TicketError):
            self._stop.complete(None)
        return self._done.wait_ready(timeout)

    @property
    def running(self) -> bool:
        """True until the loop has ended."""
        return not self._done.is_ready()

    def _stopped_within(self, seconds: float) -> bool:
        return self._stop.wait_ready(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()


def describe(status: HealthStatus) -> str:
    """Say in words what a loop is doing."""
    doing = f"working on {status.in_hand[0].message_id}" if status.in_hand else "waiting for an order"
    return f"  {status.loop_name:<8} {status.processed:>3} done, {doing}"


def main() -> int:
    """Run the loops until a signal or the end of the demo; return the exit code."""
    logging.basicConfig(level=logging.WARNING)
    ended: Ticket[str] = Ticket()

    def end(signum: int, _frame: object) -> None:
        with suppress(TicketError):  # a second signal changes nothing
            ended.complete(signal.Signals(signum).name)  # takes no lock, so a signal handler may do it

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    seconds = float(os.environ.get("DEMO_SECONDS", "inf"))
    deadline = SYSTEM_CLOCK.monotonic() + seconds

    paces = {"resize": 0.3, "mail": 0.6, "invoice": 1.2}
    loops = [LoopActor.start(ToyLoop(pace), name=name) for name, pace in paces.items()]
    print(f"{len(loops)} loops are running; Ctrl-C stops them.", flush=True)
    while not ended.wait_ready(min(ROUND, max(0.0, deadline - SYSTEM_CLOCK.monotonic()))):
        if SYSTEM_CLOCK.monotonic() >= deadline:
            break
        print("health, asked of all at once:")
        print("\n".join(describe(status) for status in check_health(loops)), flush=True)

    why = ended.wait() if ended.is_ready() else f"{seconds:g} seconds are over"
    print(f"\nstopping: {why}", flush=True)
    results = wait_all([loop.send(ShutdownRequest(timeout=10.0, reason=why)) for loop in loops], timeout=15.0)
    for result, status in zip(results, check_health(loops), strict=True):
        how = "cleanly" if result.clean_shutdown else "NOT cleanly"
        print(f"  {result.loop_name:<8} stopped {how} after {result.duration:.3f} s, {status.processed} orders done")
    print("nothing was cut off." if all(result.clean_shutdown for result in results) else "something was cut off.")
    return 0 if all(result.clean_shutdown for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
