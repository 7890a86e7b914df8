from __future__ import annotations

import functools

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.testing import wait_no_threads


def test_wait_no_threads_waits_for_threads_that_are_started_meanwhile_too() -> None:
    ran: list[int] = []

    def start_next(number: int) -> None:
        ran.append(number)
        if number < 100:
            SYSTEM.start_thread(functools.partial(start_next, number + 1), f"thread-{number}")

    start_next(0)

    assert wait_no_threads() == []
    assert ran == list(range(101))


def test_wait_no_threads_names_a_thread_that_does_not_end_in_time() -> None:
    end: Ticket[None] = Ticket()
    SYSTEM.start_thread(end.wait_ready, "endless")

    left = wait_no_threads(timeout=0.05)

    end.complete(None)
    assert [thread.name for thread in left] == ["endless"]
