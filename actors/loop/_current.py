"""The worker that this thread is, for what user code says from inside it."""

from __future__ import annotations

from loopwarden._running import running as current

__all__ = ["beat", "current", "stop_asked"]


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
