"""Tickets, messages and loops, against Pykka in the same run.

Exits with 1 if a ratio is missed. Figures move with the machine; ratios in one run hold.
"""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from importlib.metadata import version
from typing import Any

import pykka
from _harness import Report, median_time, pin_to_one_core

from loopwarden import HealthCheckRequest, LoopActor, ShutdownRequest, Ticket, check_health, wait_all
from loopwarden.actors import ControlActor, ControlRef
from loopwarden.testing import Hold, ProbeLoop

TICKETS = 20_000
TELLS = 20_000
PIPELINED = 10_000
ASKS = 3_000


class OurEcho(ControlActor):
    """Answers with what it is asked."""

    def on_receive(self, message: Any) -> Any:
        """Return the message."""
        return message


class TheirEcho(pykka.ThreadingActor):
    """The same on Pykka alone."""

    use_daemon_thread = True

    def on_receive(self, message: Any) -> Any:
        """Return the message."""
        return message


Echo = ControlRef | pykka.ActorRef[TheirEcho]


def our_tickets() -> None:
    """Create, complete and read."""
    for number in range(TICKETS):
        ticket: Ticket[int] = Ticket()
        ticket.complete(number)
        ticket.wait()


def their_futures() -> None:
    """Create, set and get."""
    for number in range(TICKETS):
        future: pykka.ThreadingFuture[int] = pykka.ThreadingFuture()
        future.set(number)
        future.get()


def tells(ref: Echo) -> None:
    """One-way messages, until the last one is handled."""
    for number in range(TELLS):
        ref.tell(number)
    ref.ask("the last one")


def pipelined(ref: Echo) -> None:
    """Ask without waiting, then take all answers."""
    for answer in [ref.ask(number, block=False) for number in range(PIPELINED)]:
        answer.get()


def round_trips(ref: Echo) -> None:
    """Ask and wait, one after another."""
    for number in range(ASKS):
        ref.ask(number)


def against_pykka(report: Report) -> None:
    """Print the ratios that the design promises."""
    ours, theirs = OurEcho.start(), TheirEcho.start()
    report.faster("ticket: create + complete + wait", our_tickets, their_futures, at_least=4)
    report.faster("tell", lambda: tells(ours), lambda: tells(theirs), at_least=2.5)
    report.faster("10,000 pipelined asks", lambda: pipelined(ours), lambda: pipelined(theirs), at_least=3)
    report.share("one ask", lambda: round_trips(ours), lambda: round_trips(theirs), at_most=0.7)
    ours.stop()
    theirs.stop()


def health_under_load(report: Report) -> None:
    """Print how long a health check takes while the loop is busy with something else."""
    hold = Hold()
    loop = ProbeLoop(hold)
    ref = LoopActor.start(loop, name="busy")
    report.figure("health in a long poll", median_time(lambda: ref.send(HealthCheckRequest()).wait()))
    loop.feed("a body")
    hold.wait_reached()
    report.figure("health while a handler is held", median_time(lambda: ref.send(HealthCheckRequest()).wait()))
    stopped = ref.send(ShutdownRequest(timeout=30.0))
    report.figure("health while stopping", median_time(lambda: ref.send(HealthCheckRequest()).wait()))
    hold.release()
    stopped.wait()


def many_loops(report: Report, count: int) -> None:
    """Print what starting, asking and stopping many loops costs, beside two bare threads for each."""
    start = time.perf_counter()
    refs = [LoopActor.start(ProbeLoop(), name=f"loop-{number}") for number in range(count)]
    started = time.perf_counter()
    check_health(refs)
    asked = time.perf_counter()
    wait_all([ref.send(ShutdownRequest()) for ref in refs])
    for ref in refs:
        ref.ended.wait()
    stopped = time.perf_counter()
    bare = _bare_threads(2 * count)
    report.figure(f"{count} loops: start", f"{(started - start) * 1e3:.0f} ms")
    report.figure(f"{count} loops: health of all", f"{(asked - started) * 1e3:.1f} ms")
    report.figure(f"{count} loops: stop", f"{(stopped - asked) * 1e3:.0f} ms")
    report.figure(
        f"{count} loops: start + stop, in {2 * count} bare threads", f"{(stopped - asked + started - start) / bare:.1f}"
    )
    report.figure(f"{count} loops: Python memory per loop", f"{_memory_per_loop(count) / 1024:.1f} kB")


def _bare_threads(count: int) -> float:
    """Return the seconds that starting and stopping bare threads takes."""
    start = time.perf_counter()
    gate = threading.Event()  # noqa: TID251  the bare thing, to compare with
    threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(count)]  # noqa: TID251  as above
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def _memory_per_loop(count: int) -> float:
    gc.collect()
    tracemalloc.start()
    refs = [LoopActor.start(ProbeLoop(), name=f"loop-{number}") for number in range(count)]
    check_health(refs)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wait_all([ref.send(ShutdownRequest()) for ref in refs])
    return size / count


def main() -> None:
    """Print everything."""
    report = Report()
    print(f"control plane, {pin_to_one_core()}, Pykka {version('pykka')}")
    against_pykka(report)
    health_under_load(report)
    many_loops(report, 100)
    many_loops(report, 1_000)
    report.exit()


if __name__ == "__main__":
    main()
