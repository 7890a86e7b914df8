from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loopwarden import Ticket
from loopwarden.testing import FakeClock, HookedBlocking, Simulation, interleavings

if TYPE_CHECKING:
    from loopwarden._blocking import Lock


@interleavings(20)
def test_hooked_lock_calls_back_while_it_is_held_and_says_who_made_it(simulation: Simulation) -> None:
    made_by: list[str] = []
    was_free: Ticket[None] = Ticket()
    locks: list[Lock] = []

    def try_to_acquire() -> None:
        with locks[0]:
            was_free.complete(None)

    def note(maker: str) -> None:
        if not made_by:
            made_by.append(maker)
            simulation.start_thread(try_to_acquire, "second")
            assert not was_free.wait_ready(1.0)  # the other waits

    locks.append(HookedBlocking(on_acquired=note, inner=simulation).lock())
    with locks[0]:
        pass

    assert was_free.wait_ready(60)
    [maker] = made_by
    assert maker == f"{__name__}.test_hooked_lock_calls_back_while_it_is_held_and_says_who_made_it"


def test_a_lock_whose_callback_raises_is_not_held() -> None:
    answers = iter([ValueError("told to"), None])

    def fail_once(_maker: str) -> None:
        error = next(answers)
        if error is not None:
            raise error

    lock = HookedBlocking(on_acquired=fail_once).lock()

    with pytest.raises(ValueError, match="told to"), lock:
        pass
    with lock:  # it is free
        pass


def test_hooked_blocking_is_the_real_one_but_for_locks() -> None:
    made_by: list[str] = []
    blocking = HookedBlocking(on_acquired=made_by.append)
    gate, queue, slot = blocking.gate(), blocking.queue(), blocking.slot()

    thread = blocking.start_thread(gate.open, "opener")
    queue.put("an item")

    assert gate.wait(60)
    assert queue.get() == "an item"
    assert slot.setdefault(0, "first") == slot.setdefault(0, "second") == "first"
    thread.join(60)
    assert made_by == []


def test_hooked_blocking_is_a_seam_for_a_clock_like_any_other() -> None:
    made_by: list[str] = []
    clock = FakeClock(blocking=HookedBlocking(on_acquired=made_by.append))
    called: Ticket[None] = Ticket()

    clock.call_later(1.0, lambda: called.complete(None))
    clock.advance(1.0)

    assert called.wait_ready(60)
    assert "loopwarden.clock.TimerQueue.__init__" in made_by
