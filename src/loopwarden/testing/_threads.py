"""Which threads of ours are alive: what a leak check looks at."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from loopwarden._blocking import SystemThread
from loopwarden._log_writer import LOG_THREAD
from loopwarden.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["join_all", "our_threads", "wait_no_threads"]


def our_threads() -> list[SystemThread]:
    """Return the threads that Loopwarden started and that are alive, but for the one that lasts as long as we do."""
    return [
        thread for thread in threading.enumerate() if isinstance(thread, SystemThread) and thread.name != LOG_THREAD
    ]


def wait_no_threads(timeout: float = 60.0) -> list[SystemThread]:
    """Wait until no thread of ours is alive, for real ``timeout`` seconds in all; return those that still are."""
    deadline = SYSTEM_CLOCK.monotonic() + timeout
    while alive := our_threads():  # again: one that ends may have started another
        if SYSTEM_CLOCK.monotonic() >= deadline:
            return alive
        join_all(alive, deadline)
    return []


def join_all(threads: Iterable[SystemThread], deadline: float) -> None:
    """Wait for the end of threads until ``deadline``, but not for one that is just being started: look again."""
    for thread in threads:
        with suppress(RuntimeError):  # it is known before it has begun, and cannot be joined until then
            thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))
