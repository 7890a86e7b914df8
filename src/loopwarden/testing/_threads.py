"""Which threads of ours are alive: what a leak check looks at."""

from __future__ import annotations

import threading

from loopwarden._blocking import SystemThread
from loopwarden.clock import SYSTEM_CLOCK

__all__ = ["our_threads", "wait_no_threads"]


def our_threads() -> list[SystemThread]:
    """Return the threads that Loopwarden started and that are alive."""
    return [thread for thread in threading.enumerate() if isinstance(thread, SystemThread)]


def wait_no_threads(timeout: float = 60.0) -> list[SystemThread]:
    """Wait until no thread of ours is alive, for real ``timeout`` seconds in all; return those that still are."""
    deadline = SYSTEM_CLOCK.monotonic() + timeout
    while alive := our_threads():  # again: one that ends may have started another
        left = deadline - SYSTEM_CLOCK.monotonic()
        if left <= 0:
            return alive
        for thread in alive:
            thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))
    return []
