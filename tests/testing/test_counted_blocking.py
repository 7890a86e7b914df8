from __future__ import annotations

import queue
import random
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM, SystemThread
from loopwarden.clock import current_clock
from loopwarden.testing import CountedBlocking, FakeClock, RestlessError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def seam() -> Iterator[CountedBlocking]:
    seam = CountedBlocking()
    yield seam
    seam.wait_rest(60)


def test_counted_blocking_is_at_rest_when_all_threads_wait(seam: CountedBlocking) -> None:
    gate, items = seam.gate(), seam.queue()
    seen: list[str] = []

    def wait() -> None:
        gate.wait()
        seen.append("gate")

    seam.start_thread(wait, "at the gate")
    seam.start_thread(lambda: seen.append(items.get()), "at the queue")

    seam.wait_rest(60)
    at_rest = list(seen)
    gate.open()
    items.put("queue")
    seam.wait_rest(60)

    assert at_rest == []
    assert sorted(seen) == ["gate", "queue"]
    assert repr(seam) == "<CountedBlocking, 0 of 0 threads at work>"


def test_counted_blocking_counts_what_was_set_off_as_work(seam: CountedBlocking) -> None:
    gates = [seam.gate() for _ in range(50)]
    end: list[bool] = []

    def hand_on(number: int) -> None:
        gates[number].wait()
        if number + 1 < len(gates):
            gates[number + 1].open()
        else:
            end.append(True)

    for number in range(len(gates)):
        seam.start_thread(partial(hand_on, number), f"runner-{number}")
    seam.wait_rest(60)

    gates[0].open()
    seam.wait_rest(60)

    assert end == [True]


def test_counted_blocking_says_who_is_busy_and_where(seam: CountedBlocking) -> None:
    real = threading.Lock()
    real.acquire()

    def keep_busy() -> None:
        real.acquire(timeout=60)

    gate = seam.gate()
    seam.start_thread(keep_busy, "busy")
    seam.start_thread(gate.wait, "resting")

    with pytest.raises(RestlessError) as raised:
        seam.wait_rest(0.05)
    real.release()
    gate.open()

    assert "not at rest after 0.05 real seconds" in str(raised.value)
    assert "busy is at" in str(raised.value)
    assert "keep_busy" in str(raised.value)
    assert "resting" not in str(raised.value)


def test_counted_blocking_is_at_rest_while_its_thread_waits_at_the_gate_of_another() -> None:
    seam, other = CountedBlocking(), CountedBlocking()
    gate = other.gate()
    seen: list[bool] = []
    seam.start_thread(lambda: seen.append(gate.wait()), "waiter")

    seam.wait_rest(60)
    other.start_thread(gate.open, "opener")
    other.wait_rest(60)
    seam.wait_rest(60)

    assert seen == [True]


def test_counted_blocking_takes_a_thread_that_is_outside_for_resting_whatever_it_does_there(
    seam: CountedBlocking,
) -> None:
    real, begun = threading.Lock(), threading.Lock()
    real.acquire()
    begun.acquire()
    gate = seam.gate()
    gate.open()

    def wait_outside() -> None:
        with seam.outside():
            with seam.outside():
                pass
            gate.wait()
            begun.release()
            real.acquire(timeout=60)

    seam.start_thread(wait_outside, "listener")
    begun.acquire(timeout=60)

    seam.wait_rest(60)

    assert repr(seam) == "<CountedBlocking, 0 of 1 threads at work>"
    real.release()


def test_counted_blocking_lets_threads_that_it_does_not_know_go_outside(seam: CountedBlocking) -> None:
    with seam.outside():
        seam.wait_rest(60)


def test_counted_blocking_does_not_count_the_thread_that_waits_for_rest(seam: CountedBlocking) -> None:
    gate = seam.gate()
    done: Ticket[None] = Ticket()
    seam.start_thread(gate.wait, "resting")

    def settle() -> None:
        seam.wait_rest(60)
        gate.open()
        done.complete(None)

    seam.start_thread(settle, "settler")

    done.wait(timeout=60)


def test_counted_blocking_counts_a_waiter_again_whose_time_is_over(seam: CountedBlocking) -> None:
    gate = seam.gate()
    answers: Ticket[bool] = Ticket()
    seam.start_thread(lambda: answers.complete(gate.wait(0.001)), "waiter")

    assert answers.wait(timeout=60) is False
    seam.wait_rest(60)
    gate.open()
    gate.open()
    assert gate.wait(0)
    assert not gate.wait(0)


def test_counted_blocking_has_queues_like_the_real_ones(seam: CountedBlocking) -> None:
    items = seam.queue()
    for number in range(3):
        items.put(number)

    taken = [items.get(), items.get_nowait(), items.get()]

    assert taken == [0, 1, 2]
    assert items.empty()
    with pytest.raises(queue.Empty):
        items.get_nowait()


def test_counted_blocking_forgets_a_thread_that_could_not_be_started(
    seam: CountedBlocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(SystemThread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            seam.start_thread(lambda: None, "refused")

    seam.wait_rest(0)


@pytest.mark.parametrize("seed", range(6))
def test_counted_blocking_loses_no_thread_in_a_storm(seed: int) -> None:
    seam = CountedBlocking()
    dice = random.Random(seed)
    items, done = seam.queue(), seam.queue()
    workers, rounds = 6, 40

    def work() -> None:
        while (item := items.get()) is not None:
            gate = seam.gate()
            seam.start_thread(gate.open, "opener")
            if not gate.wait(0.0001 if item % 3 == 0 else None):
                gate.wait()
            with seam.outside():
                pass
            done.put(item)

    for number in range(workers):
        seam.start_thread(work, f"worker-{number}")
    finished: list[int] = []
    for _ in range(rounds):
        wanted = dice.randrange(1, 12)
        for _ in range(wanted):
            items.put(dice.randrange(1_000))
        seam.wait_rest(60)
        found = 0
        while not done.empty():
            done.get()
            found += 1
        finished.append(found - wanted)
    at_work = repr(seam)
    for _ in range(workers):
        items.put(None)
    seam.wait_rest(60)

    assert finished == [0] * rounds
    assert at_work == f"<CountedBlocking, 0 of {workers} threads at work>"
    assert repr(seam) == "<CountedBlocking, 0 of 0 threads at work>"


# With a clock.


def test_fake_clock_hands_itself_on_to_its_threads() -> None:
    found: list[object] = []

    with FakeClock() as clock:
        clock.blocking.start_thread(lambda: found.append(current_clock()), "looker")
        clock.settle()

        assert found == [clock]
        assert current_clock() is clock
    assert current_clock() is not clock


def test_fake_clock_moves_only_while_all_are_at_rest() -> None:
    clock = FakeClock(start=0.0)
    seen: list[float] = []
    gates = [clock.blocking.gate() for _ in range(20)]

    def hand_on(number: int) -> None:
        gates[number].wait()
        seen.append(clock.monotonic())
        gates[number + 1].open()

    for number in range(19):
        clock.blocking.start_thread(partial(hand_on, number), f"runner-{number}")
    clock.call_later(1, gates[0].open)
    clock.call_later(2, lambda: None)

    clock.advance(5)

    assert seen == [1.0] * 19
    assert clock.monotonic() == 5.0


def test_fake_clock_advances_on_a_worker_of_its_own() -> None:
    clock = FakeClock(start=0.0)
    seen: list[float] = []
    clock.call_later(3, lambda: seen.append(clock.monotonic()))
    clock.blocking.start_thread(lambda: clock.advance(5), "worker")

    clock.settle()

    assert seen == [3.0]
    assert clock.monotonic() == 5.0


def test_fake_clock_advances_in_a_timer_through_what_others_wait_for() -> None:
    clock = FakeClock(start=0.0)
    seen: list[float] = []
    gate = clock.blocking.gate()

    def wait() -> None:
        clock.wait(gate, 4)
        seen.append(clock.monotonic())

    clock.blocking.start_thread(wait, "waiter")
    clock.settle()
    clock.call_later(1, lambda: clock.advance(10))

    clock.advance(2)

    assert seen == [4.0]
    assert clock.monotonic() == 11.0


def test_fake_clock_says_that_a_seam_cannot_tell_rest() -> None:
    clock = FakeClock(blocking=SYSTEM)

    with pytest.raises(TypeError, match="cannot tell whether its threads are at rest"):
        clock.settle()
