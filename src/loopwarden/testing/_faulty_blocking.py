"""`FaultyBlocking`: the real seam, with faults and delays where a thread is born."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from loopwarden._blocking import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Gate, Lock, Slot, ThreadHandle, WorkQueue

__all__ = ["FaultyBlocking"]


def _nothing(_name: str) -> None: ...


@final
class FaultyBlocking:
    """A `Blocking` that asks a test before it starts a thread, and before that thread does anything.

    Args:
        before_start: Called with the thread's name by whoever starts it; may raise ``RuntimeError``, as a
            machine without threads to give does.
        on_entry: Called with the thread's name on the new thread, before its target; may block on a `Hold`.
    """

    def __init__(
        self, *, before_start: Callable[[str], object] = _nothing, on_entry: Callable[[str], object] = _nothing
    ) -> None:
        self._before_start = before_start
        self._on_entry = on_entry

    def lock(self) -> Lock:
        """Make a real lock."""
        return SYSTEM.lock()

    def gate(self) -> Gate:
        """Make a real gate."""
        return SYSTEM.gate()

    def queue(self) -> WorkQueue[Any]:
        """Make a real queue."""
        return SYSTEM.queue()

    def slot(self) -> Slot[Any]:
        """Make a real slot."""
        return SYSTEM.slot()

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        """Start a real thread, if the test lets it."""
        self._before_start(name)

        def entered() -> None:
            self._on_entry(name)
            target()

        return SYSTEM.start_thread(entered, name)
