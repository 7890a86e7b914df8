"""`HookedBlocking`: a seam whose locks call back while they are held."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

from loopwarden._blocking import SYSTEM
from loopwarden.clock import use_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from loopwarden._blocking import Blocking, Gate, Lock, Slot, ThreadHandle, WorkQueue
    from loopwarden.clock import Clock

__all__ = ["HookedBlocking"]


@final
class _HookedLock:
    def __init__(self, inner: Lock, maker: str, on_acquired: Callable[[str], object]) -> None:
        self._inner = inner
        self._maker = maker
        self._on_acquired = on_acquired

    def __enter__(self) -> bool:
        entered = self._inner.__enter__()
        try:
            self._on_acquired(self._maker)
        except BaseException:
            self._inner.__exit__(None, None, None)
            raise
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._inner.__exit__(kind, error, trace)


@final
class HookedBlocking:
    """A `Blocking` that tells a test each time one of its locks was acquired, on the thread that holds it.

    There a test can do what hardly ever happens at such a moment: send a signal, for instance.

    >>> from loopwarden.clock import SystemClock
    >>> made_by = set()
    >>> SystemClock(HookedBlocking(on_acquired=made_by.add)).call_later(60.0, lambda: None).cancel()
    True
    >>> "loopwarden.clock.TimerQueue.__init__" in made_by
    True

    Args:
        on_acquired: Called with the function that has made the lock, as ``module.qualified_name``, on the thread that
            holds it; must take no lock of ours.
        inner: Where locks and everything else really come from.
    """

    def __init__(self, *, on_acquired: Callable[[str], object], inner: Blocking = SYSTEM) -> None:
        self._inner = inner
        self._on_acquired = on_acquired
        self._clock: Clock | None = None
        self.is_virtual = inner.is_virtual
        self.outside = inner.outside
        self.dice = inner.dice

    def lock(self) -> Lock:
        """Make a lock that calls back."""
        maker = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to the caller
        name = f"{maker.f_globals.get('__name__')}.{maker.f_code.co_qualname}"
        return _HookedLock(self._inner.lock(), name, self._on_acquired)

    def gate(self) -> Gate:
        """Make a gate."""
        return self._inner.gate()

    def queue(self) -> WorkQueue[Any]:
        """Make a queue."""
        return self._inner.queue()

    def slot(self) -> Slot[Any]:
        """Make a slot."""
        return self._inner.slot()

    def belong_to(self, clock: Clock) -> None:
        """Hand that clock on to the threads that are started, for whatever is made there without one."""
        self._clock = clock

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        """Start a thread."""

        def run() -> None:
            with nullcontext() if self._clock is None else use_clock(self._clock):
                target()

        return self._inner.start_thread(run, name)
