"""A thousand children are not told to stop in the same instant, but none of them waits for one that is slow."""

from __future__ import annotations

from children import ChildFactory, supervising

from loopwarden import ShutdownRequest, wait_all
from loopwarden.clock import SystemClock
from loopwarden.supervision.tree._executor import AT_ONCE, STOP_MORE_TIMEOUT
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, ProbeLoop

MORE = AT_ONCE + 8
NAMES = tuple(f"loop-{number}" for number in range(MORE))


def told(factory: ChildFactory) -> list[ProbeLoop]:
    loops = [factory.loops[name][0] for name in NAMES]
    return [loop for loop in loops if loop.stop_asked.is_ready()]


def test_children_that_are_slow_to_stop_do_not_delay_the_others(clock: FakeClock) -> None:
    factory, hold = ChildFactory(), Hold()
    children = tuple(factory.spec(name, hold, shutdown=100.0) for name in NAMES)
    with supervising(clock=clock, children=children) as supervisor, hold:
        for name in NAMES:
            factory.loops[name][0].feed("held")
        clock.advance(0)  # each of them is held
        supervisor.send(ShutdownRequest(timeout=1_000.0))
        clock.advance(0)
        at_first = told(factory)

        clock.advance(STOP_MORE_TIMEOUT)

        assert at_first == [factory.loops[name][0] for name in NAMES[-AT_ONCE:]]
        assert len(told(factory)) == MORE


def test_children_are_all_told_to_stop_after_a_few_moments_however_many_end_meanwhile(clock: FakeClock) -> None:
    factory, hold = ChildFactory(), Hold()
    children = tuple(factory.spec(name, hold, shutdown=100.0) for name in NAMES)
    with supervising(clock=clock, children=children) as supervisor, hold:
        for name in NAMES[:-1]:
            factory.loops[name][0].feed("held")
        clock.advance(0)  # each of them is held, but for the last, which is quick
        supervisor.send(ShutdownRequest(timeout=1_000.0))
        clock.advance(0)  # the quick one is told and ends, and one more is told
        at_first = len(told(factory))

        clock.advance(STOP_MORE_TIMEOUT)

        assert at_first == AT_ONCE + 1
        assert len(told(factory)) == MORE


def test_children_that_are_quick_to_stop_make_room_for_the_next_without_a_timer(clock: FakeClock) -> None:
    factory = ChildFactory()

    with supervising(clock=clock, children=factory.specs(*NAMES)):
        pass

    assert len(told(factory)) == MORE
    assert "0 timers" in repr(clock)


def test_child_that_ends_by_itself_before_it_is_told_to_stop_is_no_longer_waited_for(clock: FakeClock) -> None:
    factory, hold = ChildFactory(), Hold()
    children = tuple(factory.spec(name, hold, shutdown=100.0) for name in NAMES)
    with supervising(clock=clock, children=children) as supervisor, hold:
        for name in NAMES[1:]:
            factory.loops[name][0].feed("held")
        clock.advance(0)  # each of them is held
        stopped = supervisor.send(ShutdownRequest(timeout=1_000.0))
        clock.advance(0)
        assert len(told(factory)) == AT_ONCE

        factory.loops[NAMES[0]][0].shutdown(timeout=0)  # by its own means; it is the last to be told
        hold.release()

        assert stopped.wait(timeout=60).clean_shutdown


def test_children_are_all_told_to_stop_at_once_without_a_thread_for_timers() -> None:
    def refuse(name: str) -> None:
        if name == "loopwarden-timers":
            raise RuntimeError("can't start new thread")

    factory, hold = ChildFactory(), Hold()
    clock = SystemClock(FaultyBlocking(before_start=refuse))
    with supervising(clock=clock, children=tuple(factory.spec(name, hold) for name in NAMES)) as supervisor, hold:
        for name in NAMES:
            factory.loops[name][0].feed("held")

        supervisor.stop(block=False)

        wait_all([factory.loops[name][0].stop_asked for name in NAMES], timeout=60)
