"""`Worker`: the thread that runs a loop, and tells how it ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from loopwarden._log import describe
from loopwarden._ticket import Ticket
from loopwarden.actors.loop._current import current
from loopwarden.actors.loop._protocols import can_process
from loopwarden.actors.loop._state import Lifecycle, LifeEvent, LoopState

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking
    from loopwarden._heartbeat import Heartbeat
    from loopwarden.actors.loop._protocols import SupportsRun

__all__ = ["Worker"]


@final
class Worker:
    """Runs one loop once, on one thread.

    Nothing that the loop raises leaves this thread: it is reported, ``SystemExit`` and ``KeyboardInterrupt`` too.
    """

    def __init__(
        self,
        loop: SupportsRun,
        lifecycle: Lifecycle,
        entered: Callable[[], None],
        report: Callable[[BaseException | None], None],
        *,
        run: Callable[[], object] | None,
        name: str,
        loop_name: str,
        blocking: Blocking,
        own_threads: set[int],
    ) -> None:
        self._loop = loop
        self._run = run
        self._lifecycle = lifecycle
        self._entered = entered
        self._heartbeat: Heartbeat | None = getattr(loop, "heartbeat", None)
        self._report = report
        self._name = name
        self._loop_name = loop_name
        self._blocking = blocking
        self._own_threads = own_threads
        #: True once `start` was called.
        self.is_started = False
        #: Resolves when the loop has ended: with what it raised, or None.
        self.ended: Ticket[BaseException | None] = Ticket(blocking)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: if it cannot be started.
        """
        self.is_started = True
        try:
            self._blocking.start_thread(self._work, self._name)
        except BaseException as error:
            self.ended.complete(error)  # what has not begun need not be waited for
            raise

    def _work(self) -> None:
        self._own_threads.add(threading.get_ident())
        current.loop = self._loop_name
        current.owner, current.is_alone = self._own_threads, True
        cause: BaseException | None = None
        try:
            _, state = self._lifecycle.move(LifeEvent.ENTER)
            # A loop that was stopped before it ran is run only if it is known to remember that: other people's
            # `run` may begin by clearing the very flag that `shutdown` has set.
            loop: object = self._loop
            if state is LoopState.RUNNING or can_process(loop):
                self._entered()
                current.heartbeat = self._heartbeat
                (self._run or self._loop.run)()
        except BaseException as error:  # noqa: BLE001  isolates user code
            cause = error
        if cause is not None:
            describe(cause)  # here, where other people's code may take its time
        # First the state, so that from here on `post` refuses.
        self._lifecycle.move(LifeEvent.RETURN if cause is None else LifeEvent.CRASH)
        self.ended.complete(cause)
        self._report(cause)
