"""Simulation: steps a second, and how much faster than real time a whole supervised system is taken through hours.

The limits are no promises to users, but to our own tests. Exits with 1 if one is missed.
"""

from __future__ import annotations

import logging
import time

from _harness import Report, pin_to_one_core

from loopwarden import (
    Backoff,
    ChildSpec,
    MailboxLoop,
    Message,
    ReaperActor,
    Supervisor,
    WatchdogActor,
    daemon_scope,
    open_mailbox,
)
from loopwarden.testing import Hold, Simulation

#: Simulated seconds: two hours.
HOURS = 7_200.0
#: Seconds between two messages.
PAUSE = 10.0
LOOPS = 20


class TwoHours:
    """Twenty loops with crashes, failures and hangs, a watchdog and a reaper: what two hours make of it."""

    def __init__(self, seed: int) -> None:
        self.handled: list[int] = []
        self.steps = 0
        self.digest = 0
        self._hung = Hold()
        with Simulation(seed) as simulation:
            self._dice = simulation.dice()
            self.sent = self._run(simulation)
            self.steps, self.digest = simulation.steps, simulation.scheduler.digest

    def _run(self, simulation: Simulation) -> int:
        jobs = open_mailbox("memory://jobs", body=int, max_deliveries=5)
        specs = [ChildSpec(id=f"loop-{n}", start=lambda: MailboxLoop(jobs, self._handle)) for n in range(LOOPS)]
        sent = 0
        with (
            Supervisor.open(
                "root", children=specs, intensity=5, period=300.0, backoff=Backoff(minimum=1.0, maximum=60.0)
            ) as root,
            daemon_scope() as scope,
        ):
            scope.spawn(WatchdogActor([root], stall_threshold=720, max_zombies=1_000))
            scope.spawn(ReaperActor([jobs]))
            began = simulation.now
            while simulation.now - began < HOURS:
                jobs.send(sent)
                sent += 1
                simulation.advance(PAUSE)
            self._hung.release()
            simulation.advance(600.0)
        return sent

    def _handle(self, message: Message[int, None]) -> None:
        roll = self._dice.random()
        if roll < 0.005:
            raise SystemExit("crash")
        if roll < 0.03:
            raise ValueError("fails")
        if roll < 0.035:
            self._hung()
        self.handled.append(message.body)


def main() -> None:
    """Measure."""
    logging.disable(logging.CRITICAL)
    report = Report()
    print(f"simulation ({pin_to_one_core()})")
    start = time.perf_counter()
    runs = [TwoHours(seed) for seed in range(3)]
    took = time.perf_counter() - start
    assert all(run.sent <= len(run.handled) + 20 for run in runs), "all but a few are handled"
    assert TwoHours(0).digest == runs[0].digest, "the same seed is the same run"
    steps = sum(run.steps for run in runs)
    report.figure("two hours of 20 loops, a watchdog and a reaper", f"{took / len(runs):.1f} s, {steps // 3} steps")
    report.figure("times as fast as real time", f"{HOURS * len(runs) / took:,.0f}")
    report.limit("5,000 steps a second, against what it does", 5_000 * took / steps, at_most=1.0)
    report.figure("steps a second", f"{steps / took:,.0f}")
    report.exit()


if __name__ == "__main__":
    main()
