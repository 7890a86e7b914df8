"""The worker that runs here, for what user code says from inside it."""

from __future__ import annotations

from loopwarden._running import here
from loopwarden._running import running as current

__all__ = ["beat", "current", "here", "stop_asked"]


def beat() -> None:
    """Say, from inside a handler or a loop, that the work goes on: it is not stalled, and its lease is extended.

    Elsewhere, and in a loop without a heartbeat, it does nothing.
    """
    heartbeat = here().heartbeat
    if heartbeat is not None:
        heartbeat.beat()


def stop_asked() -> bool:
    """Say, inside a handler, whether its worker was told to stop: a long one may then raise, and is tried again.

    Elsewhere it is false.
    """
    is_stopped = here().is_stopped
    return is_stopped is not None and is_stopped()
