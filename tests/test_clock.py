from __future__ import annotations

import functools
import logging
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden import Heartbeat, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.clock import SystemClock, TimerQueue, TimerThread
from loopwarden.testing import FakeClock, FaultyBlocking, Simulation, interleavings, our_threads, wait_no_threads


def test_a_timer_calls_back_on_a_thread_of_the_clock() -> None:
    clock = SystemClock()
    called: Ticket[str] = Ticket()

    clock.call_later(0.001, lambda: called.complete(threading.current_thread().name))

    assert called.wait(timeout=60) == "loopwarden-timers"


def test_timers_share_one_thread_which_ends_with_the_last_of_them() -> None:
    clock = SystemClock()

    timers = [clock.call_later(3600, lambda: None) for _ in range(10)]
    threads = our_threads()
    cancelled = [timer.cancel() for timer in timers]

    assert [thread.name for thread in threads] == ["loopwarden-timers"]
    assert all(cancelled)
    assert wait_no_threads() == []


def test_a_timer_that_is_due_earlier_than_the_one_slept_for_is_not_late() -> None:
    clock = SystemClock()
    late = clock.call_later(3600, lambda: None)
    called: Ticket[None] = Ticket()

    clock.call_later(0, lambda: called.complete(None))

    called.wait(timeout=60)
    late.cancel()


@interleavings(20)
def test_timers_run_in_the_order_of_their_deadlines_each_in_time(simulation: Simulation) -> None:
    timers = TimerThread(simulation, simulation.monotonic)  # as a SystemClock has one, with its own time
    start, order = simulation.now, list[tuple[str, float]]()
    done: Ticket[None] = Ticket()

    def note(name: str) -> None:
        order.append((name, round(simulation.now - start, 3)))

    timers.call_later(0.03, lambda: note("last"))
    timers.call_later(0.04, lambda: done.complete(None))
    timers.call_later(0.01, lambda: note("first"))
    timers.call_later(0.02, lambda: note("second"))
    done.wait()

    assert order == [("first", 0.01), ("second", 0.02), ("last", 0.03)]


def test_timer_that_raises_is_logged_and_the_next_timer_comes(caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    called: Ticket[None] = Ticket()

    def broken() -> None:
        raise SystemExit("timer")

    with caplog.at_level(logging.ERROR, logger="loopwarden"):
        clock.call_later(0, broken)
        clock.call_later(0.001, lambda: called.complete(None))
        called.wait(timeout=60)

    assert "timer" in caplog.text


def test_a_cancelled_timer_never_calls_and_cancels_only_once() -> None:
    clock = FakeClock()
    timer = clock.call_later(1, lambda: pytest.fail("called"))

    assert timer.cancel()
    assert not timer.cancel()
    clock.advance(2)


def test_cancelled_time_outs_do_not_pile_up() -> None:
    queue = TimerQueue(SYSTEM)
    kept = [queue.add(deadline, lambda: None) for deadline in range(10)]

    for deadline in range(10_000):
        queue.add(deadline, lambda: None).cancel()

    assert len(queue) == len(kept)
    assert len(queue._heap) <= 2 * len(kept) + 1


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())))
def test_a_timer_queue_gives_out_exactly_what_is_due_and_not_cancelled_in_order(
    timers: list[tuple[int, bool]],
) -> None:
    queue = TimerQueue(SYSTEM)
    called: list[int] = []
    for deadline, cancelled in timers:
        timer = queue.add(deadline, functools.partial(called.append, deadline))
        if cancelled:
            timer.cancel()

    while (due := queue.pop_due(25)) is not None:
        due[1]()

    assert called == sorted(deadline for deadline, cancelled in timers if not cancelled and deadline <= 25)
    later = [deadline for deadline, cancelled in timers if not cancelled and deadline > 25]
    assert queue.next_deadline() == min(later, default=None)


def no_thread(_name: str) -> None:
    raise RuntimeError("can't start new thread")


def test_a_timer_whose_thread_cannot_be_started_is_refused_and_leaves_nothing_behind() -> None:
    blocking = FaultyBlocking(before_start=no_thread)
    clock = SystemClock(blocking)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start"):
            clock.call_later(1, lambda: None)

    assert repr(clock) == "<SystemClock, 0 timers>"
    assert clock.blocking is blocking


def test_the_system_clock_waits_at_a_gate_for_real_seconds() -> None:
    clock = SystemClock()
    gate = SYSTEM.gate()

    timed_out = clock.wait(gate, 0.001)
    gate.open()
    gate.open()

    assert not timed_out
    assert clock.wait(gate, None)
    assert clock.wall() > 1_700_000_000


def test_a_heartbeat_tells_its_age_and_a_new_one_has_just_beaten() -> None:
    clock = FakeClock(start=100.0)
    heartbeat = Heartbeat(clock)

    clock.advance(7.5)
    before = heartbeat.age()
    heartbeat.beat()

    assert before == 7.5
    assert heartbeat.age() == 0
    assert heartbeat.last_beat == 107.5
    assert repr(heartbeat) == "<Heartbeat, 0.000 s ago>"


def test_a_timer_without_a_time_is_refused_and_the_others_come() -> None:
    clock = SystemClock()
    called: Ticket[None] = Ticket()

    with pytest.raises(ValueError, match="nan"):
        clock.call_later(float("nan"), lambda: None)
    clock.call_later(0, lambda: called.complete(None))

    called.wait(timeout=60)


def test_a_callback_whose_end_uses_the_clock_does_not_deadlock_when_it_is_cancelled() -> None:
    clock = FakeClock()

    class Clinging:
        def __call__(self) -> None: ...

        def __del__(self) -> None:
            clock.call_later(1, lambda: None)

    assert clock.call_later(1, Clinging()).cancel()
    assert "1 timers" in repr(clock)


FORK_WITH_A_TIMER = """
import os, sys
from loopwarden import Ticket
from loopwarden.clock import SYSTEM_CLOCK

SYSTEM_CLOCK.call_later(3600, print)
if os.fork() == 0:
    called = Ticket()
    SYSTEM_CLOCK.call_later(0, lambda: called.complete("called"))
    print(called.wait(60), flush=True)
    os._exit(0)
sys.exit(os.wait()[1])
"""


def test_a_child_process_has_its_own_timers() -> None:
    command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", FORK_WITH_A_TIMER]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout) == (0, "called\n")
