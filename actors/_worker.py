"""`Worker`: the thread that runs a loop, and tells how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden._ticket import Ticket
from loopwarden.actors._runnable import SupportsProcess
from loopwarden.actors._state import Lifecycle, LifeEvent, LoopState

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking
    from loopwarden.actors._runnable import Runnable

__all__ = ["Worker"]


@final
class Worker:
    """Runs one loop once, on one thread.

    Nothing that the loop raises leaves this thread: it is reported, ``SystemExit`` and ``KeyboardInterrupt`` too.
    """

    def __init__(
        self,
        loop: Runnable,
        lifecycle: Lifecycle,
        report: Callable[[BaseException | None], None],
        *,
        name: str,
        blocking: Blocking,
    ) -> None:
        self._loop = loop
        self._lifecycle = lifecycle
        self._report = report
        self._name = name
        self._blocking = blocking
        #: Resolves when the loop has ended: with what it raised, or None.
        self.ended: Ticket[BaseException | None] = Ticket(blocking)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: if it cannot be started.
        """
        self._blocking.start_thread(self._work, self._name)

    def _work(self) -> None:
        cause: BaseException | None = None
        try:
            _, state = self._lifecycle.move(LifeEvent.ENTER)
            # A loop that was stopped before it ran is run only if it is known to remember that: other people's
            # `run` may begin by clearing the very flag that `shutdown` has set.
            if state is LoopState.RUNNING or isinstance(self._loop, SupportsProcess):
                self._loop.run()
        except BaseException as error:  # noqa: BLE001  isolates user code
            cause = error
        self.ended.complete(cause)
        self._report(cause)
