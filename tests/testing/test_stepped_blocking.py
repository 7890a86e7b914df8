from __future__ import annotations

import functools
import queue

import pytest

from loopwarden.testing import DeadlockError, SteppedBlocking


def test_threads_run_in_the_order_that_the_schedule_names() -> None:
    steps = SteppedBlocking()
    items = steps.queue()
    for name in ("a", "b"):
        steps.start_thread(functools.partial(items.put, name), name)

    steps.run(["b", "b", "a"])

    assert [items.get_nowait(), items.get_nowait()] == ["b", "a"]
    assert items.empty()


def test_stepped_blocking_without_a_schedule_runs_threads_as_they_were_started() -> None:
    steps = SteppedBlocking()
    order: list[str] = []
    for name in ("a", "b"):
        steps.start_thread(functools.partial(order.append, name), name)

    steps.run()

    assert order == ["a", "b"]


def test_a_lock_excludes_and_is_passed_on() -> None:
    steps = SteppedBlocking()
    lock, gate = steps.lock(), steps.gate()
    inside: list[str] = []

    def enter(name: str) -> None:
        with lock:
            inside.append(name)
            gate.wait(1.0)
            inside.append(name)

    steps.start_thread(lambda: enter("a"), "a")
    steps.start_thread(lambda: enter("b"), "b")

    steps.run(["a", "a", "b"])

    assert inside == ["a", "a", "b", "b"]


def test_a_timed_wait_runs_out_when_no_other_thread_can_go_on() -> None:
    steps = SteppedBlocking()
    gate = steps.gate()
    answers: list[bool] = []
    steps.start_thread(lambda: answers.append(gate.wait(5.0)), "waiter")

    steps.run()

    assert answers == [False]


def test_a_deadlock_is_found_and_says_who_waits_for_what() -> None:
    steps = SteppedBlocking()
    gate, items = steps.gate(), steps.queue()
    steps.start_thread(gate.wait, "at-the-gate")
    steps.start_thread(items.get, "at-the-queue")

    with pytest.raises(DeadlockError, match="at-the-gate at wait at gate, at-the-queue at get"):
        steps.run()


@pytest.mark.parametrize("schedule", [["unknown"], ["waiter", "waiter"]])
def test_a_schedule_that_cannot_be_followed_is_refused(schedule: list[str]) -> None:
    steps = SteppedBlocking()
    gate = steps.gate()
    steps.start_thread(gate.wait, "waiter")

    with pytest.raises(DeadlockError, match=schedule[0]):
        steps.run(schedule)


def test_stepped_blocking_raises_in_the_test_what_a_thread_raises() -> None:
    steps = SteppedBlocking()
    empty = steps.queue()
    steps.start_thread(empty.get_nowait, "impatient")

    with pytest.raises(queue.Empty):
        steps.run()


def test_a_thread_that_the_seam_did_not_start_passes_without_stopping() -> None:
    steps = SteppedBlocking()
    gate = steps.gate()

    gate.open()

    assert gate.wait()
    with steps.lock():
        assert steps.trace == []


def order_of(seed: int) -> list[tuple[str, str]]:
    steps = SteppedBlocking()
    items = steps.queue()
    for name in "abcd":
        steps.start_thread(functools.partial(items.put, name), name)
    steps.run(seed=seed)
    return steps.trace


def test_a_seed_chooses_an_order_and_always_the_same_one() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(20)}) > 10


def test_stepped_blocking_can_run_again_with_new_threads() -> None:
    steps = SteppedBlocking()
    order: list[str] = []
    for name in ("first", "second"):
        steps.start_thread(functools.partial(order.append, name), name)
        steps.run()

    assert order == ["first", "second"]
