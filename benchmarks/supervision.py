"""Supervisors, against bare threads in the same run, and what loops cost that have nothing to do.

Exits with 1 if a limit is missed. Figures move with the machine; ratios in one run hold.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time

from _harness import Report, interleaved, median_time, pin_to_one_core

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor, open_mailbox
from loopwarden.supervision import Backoff, EventKind
from loopwarden.testing import ProbeLoop

LOOPS = 1_000
#: Starting and stopping a thousand loops takes a second, so there are fewer rounds than elsewhere.
ROUNDS = 7
IDLE_LOOPS = 100
IDLE_SECONDS = 10.0


def supervised_loops() -> None:
    """Start and stop a thousand loops under one supervisor."""
    children = tuple(ChildSpec(id=f"loop-{number}", start=ProbeLoop) for number in range(LOOPS))
    with Supervisor.open("many", children=children):
        pass


def bare_threads() -> None:
    """Start and stop the two threads that each of them has, and nothing else."""
    gate = threading.Event()  # noqa: TID251  the bare thing, to compare with
    threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(2 * LOOPS)]  # noqa: TID251  as above
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()


def idle_cost(report: Report) -> None:
    """Print how much processor time loops take that wait for messages."""
    jobs = open_mailbox("memory://idle", body=str)
    with Supervisor.open("idle") as idle:
        for number in range(IDLE_LOOPS):
            idle.spawn(ChildSpec(id=f"loop-{number}", start=lambda: MailboxLoop(jobs, lambda _: None)))
        start = time.process_time()
        time.sleep(IDLE_SECONDS)  # noqa: TID251  to wait and do nothing is what is measured
        used = time.process_time() - start
    report.limit(f"{IDLE_LOOPS} idle loops: processor seconds in {IDLE_SECONDS:g} s", used, at_most=0.1)


def restart_time(report: Report) -> None:
    """Print how long it takes from a crash until the child runs again, without a back-off."""
    times: list[float] = []
    logging.getLogger("loopwarden").setLevel(logging.CRITICAL)  # a trace for each crash would be measured too
    with Supervisor.open("crashes", intensity=None, backoff=Backoff(minimum=0.0)) as crashes:
        events = crashes.subscribe()
        child = crashes.spawn(ChildSpec(id="loop", start=ProbeLoop))
        for _ in range(200):
            start = time.perf_counter()
            child.post(_crash)
            events.wait_for(EventKind.EXITED)
            events.wait_for(EventKind.STARTED)
            times.append(time.perf_counter() - start)
    report.figure("from a crash until it runs again", f"{statistics.median(times) * 1e6:.0f} µs")


def _crash() -> None:
    raise SystemExit


def supervisor_health(report: Report) -> None:
    """Print how long a supervisor of a thousand loops takes to answer."""
    children = tuple(ChildSpec(id=f"loop-{number}", start=ProbeLoop) for number in range(LOOPS))
    with Supervisor.open("many", children=children) as many:
        report.figure(
            f"health of a supervisor of {LOOPS} loops", median_time(lambda: many.send(HealthCheckRequest()).wait())
        )


def main() -> None:
    """Print everything."""
    report = Report()
    print(f"supervision, {pin_to_one_core()}")
    ours, bare = interleaved(supervised_loops, bare_threads, ROUNDS)
    report.limit(f"{LOOPS} supervised loops: start + stop, in {2 * LOOPS} bare threads", ours / bare, at_most=3)
    report.figure(f"{LOOPS} supervised loops: start + stop", f"{ours * 1e3:.0f} ms")
    supervisor_health(report)
    restart_time(report)
    idle_cost(report)
    report.exit()


if __name__ == "__main__":
    main()
