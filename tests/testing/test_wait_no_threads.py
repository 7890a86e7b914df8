from __future__ import annotations

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.testing import wait_no_threads


def test_a_thread_that_another_starts_meanwhile_is_waited_for_too() -> None:
    go: Ticket[None] = Ticket()
    never: Ticket[None] = Ticket()

    def start_another() -> None:
        go.wait(timeout=60)
        SYSTEM.start_thread(lambda: never.wait_ready(0.2), "second")

    SYSTEM.start_thread(start_another, "first")
    SYSTEM_CLOCK.call_later(0.05, lambda: go.complete(None))

    assert wait_no_threads() == []


def test_a_thread_that_does_not_end_is_waited_for_so_long_and_named() -> None:
    end: Ticket[None] = Ticket()
    SYSTEM.start_thread(end.wait_ready, "endless")

    left = wait_no_threads(timeout=0.05)

    end.complete(None)
    assert [thread.name for thread in left] == ["endless"]
