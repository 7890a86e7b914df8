"""`FaultyBlocking`: the real seam, with faults and delays where a thread is born."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from loopwarden.testing._counted_blocking import CountedBlocking

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Gate, Lock, Slot, ThreadHandle, WorkQueue

__all__ = ["FaultyBlocking"]


def _nothing(_name: str) -> None: ...


@final
class FaultyBlocking:
    """A `Blocking` that asks a test before it starts a thread, and before that thread does anything.

    Args:
        before_start: Called with the thread's name, on the thread that starts it; may raise ``RuntimeError``, as a
            machine without threads to give does.
        on_entry: Called with the thread's name on the new thread, before its target; may block on a `Hold`.
        inner: Where threads and everything else really come from.
    """

    def __init__(
        self,
        *,
        before_start: Callable[[str], object] = _nothing,
        on_entry: Callable[[str], object] = _nothing,
        inner: CountedBlocking | None = None,
    ) -> None:
        self._before_start = before_start
        self._on_entry = on_entry
        self._inner = CountedBlocking() if inner is None else inner
        self.is_virtual = False
        self.outside = self._inner.outside
        self.dice = self._inner.dice
        self.wait_rest = self._inner.wait_rest
        self.belong_to = self._inner.belong_to

    def lock(self) -> Lock:
        """Make a real lock."""
        return self._inner.lock()

    def gate(self) -> Gate:
        """Make a real gate."""
        return self._inner.gate()

    def queue(self) -> WorkQueue[Any]:
        """Make a real queue."""
        return self._inner.queue()

    def slot(self) -> Slot[Any]:
        """Make a real slot."""
        return self._inner.slot()

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        """Start a real thread, if the test lets it."""
        self._before_start(name)

        def entered() -> None:
            self._on_entry(name)
            target()

        return self._inner.start_thread(entered, name)
