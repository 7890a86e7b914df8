from __future__ import annotations

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.testing import FakeClock, _fake_clock


def test_advance_runs_what_is_due_in_order_each_at_its_own_time() -> None:
    clock = FakeClock(start=0.0)
    seen: list[tuple[str, float]] = []
    clock.call_later(2, lambda: seen.append(("second", clock.monotonic())))
    clock.call_later(1, lambda: seen.append(("first", clock.monotonic())))
    clock.call_later(9, lambda: seen.append(("never", clock.monotonic())))

    clock.advance(5)

    assert seen == [("first", 1.0), ("second", 2.0)]
    assert clock.monotonic() == 5.0
    assert repr(clock) == "<FakeClock at 5.0, 1 timers>"


def test_a_timer_set_by_a_timer_runs_in_the_same_advance_if_it_is_due() -> None:
    clock = FakeClock()
    seen: list[str] = []
    clock.call_later(1, lambda: clock.call_later(1, lambda: seen.append("chained")))

    clock.advance(2)

    assert seen == ["chained"]


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="-1"):
        FakeClock().advance(-1)


def test_wall_time_and_monotonic_time_move_together() -> None:
    clock = FakeClock()
    wall = clock.wall()

    clock.advance(10)

    assert clock.wall() - wall == 10


def test_a_wait_ends_when_its_gate_opens_and_forgets_its_timer() -> None:
    clock = FakeClock()
    gate = clock.blocking.gate()
    answer: Ticket[bool] = Ticket()
    clock.blocking.start_thread(lambda: answer.complete(clock.wait(gate, 5.0)), "waiter")
    clock.settle()

    gate.open()

    assert answer.wait(timeout=60) is True
    assert "0 timers" in repr(clock)


def test_a_wait_without_a_time_out_sets_no_timer() -> None:
    clock = FakeClock()
    gate = SYSTEM.gate()
    gate.open()

    assert clock.wait(gate, None)


def test_wait_timers_says_that_a_timer_never_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fake_clock, "_REST_TIMEOUT", 0.001)

    with pytest.raises(TimeoutError, match="had not 2 timers"):
        FakeClock().wait_timers(2)


def test_advancing_inside_a_timer_does_not_turn_time_back() -> None:
    clock = FakeClock(start=0.0)
    clock.call_later(1, lambda: clock.advance(10))

    clock.advance(2)

    assert clock.monotonic() == 11.0


def test_a_wait_of_zero_looks_without_blocking() -> None:
    clock = FakeClock()
    gate = SYSTEM.gate()

    assert not clock.wait(gate, 0)
    gate.open()
    assert clock.wait(gate, -1)
