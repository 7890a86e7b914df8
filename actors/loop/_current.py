"""The worker that this thread is, for what user code says from inside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._heartbeat import Heartbeat

__all__ = ["beat", "current", "stop_asked"]


class _Current(threading.local):
    heartbeat: Heartbeat | None = None
    is_stopped: Callable[[], bool] | None = None


#: Set by what runs user code on this thread, for as long as it does.
current = _Current()


def beat() -> None:
    """Say, from inside a handler or a loop, that the work goes on: it is not stalled, and its lease is extended.

    Elsewhere, and in a loop without a heartbeat, it does nothing.
    """
    if current.heartbeat is not None:
        current.heartbeat.beat()


def stop_asked() -> bool:
    """Say, inside a handler, whether its worker was told to stop: a long one may then raise, and is tried again.

    Elsewhere it is false.
    """
    return current.is_stopped is not None and current.is_stopped()
