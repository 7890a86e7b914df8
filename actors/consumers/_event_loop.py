"""`EventLoopThread`: what loops are given that share an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from loopwarden.actors.consumers._event_loop_host import EventLoopHost

__all__ = ["EventLoopThread", "host_of"]


@final
class EventLoopThread:
    """An asyncio event loop for the coroutines of several loops, in one thread, which is there while one of them runs.

    A loop has an event loop of its own, unless it is given one that it shares: ``MailboxLoop(…, event_loop=…)``. A
    handler that blocks it keeps all of them waiting. It is uvloop's, where that is installed.

    >>> shared = EventLoopThread("models")
    >>> shared
    <EventLoopThread 'models'>

    Args:
        name: What its thread is called.
        clock: The time that its coroutines live by: under a `FakeClock` and in a `Simulation`, ``asyncio.sleep`` waits
            for their time.
    """

    def __init__(self, name: str = "loopwarden-asyncio", *, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = resolve_clock(clock)
        self._lock = self._clock.blocking.lock()  # guards _host against two loops at once
        self._host: EventLoopHost | None = None

    def _made(self) -> EventLoopHost:
        from loopwarden.actors.consumers._event_loop_host import EventLoopHost  # noqa: PLC0415  it imports asyncio

        with self._lock:
            if self._host is None:
                self._host = EventLoopHost(self._name, self._clock)
            return self._host

    def __repr__(self) -> str:
        return f"<EventLoopThread {self._name!r}>"


def host_of(thread: EventLoopThread) -> EventLoopHost:
    """Return what starts the thread."""
    return thread._made()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  its own module
