"""`Stopper`: makes the calls of a loop that may block, and sees to it that a stop is heard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from loopwarden._log import describe, report
from loopwarden._threads import SerialExecutor
from loopwarden._ticket import Ticket
from loopwarden.actors.loop._protocols import can_process, shutdown_nowait_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors.loop._protocols import SupportsRun
    from loopwarden.clock import Clock

__all__ = ["Stopper"]

#: Seconds before a loop that may not have heard is asked to stop again, and the most that this doubles to.
#: A foreign `run` may have cleared the stop that came just before it, and then nothing else would ever end it.
FIRST_REMINDER = 0.05
LAST_REMINDER = 5.0


@final
class Stopper:
    """Owned by one actor, which alone calls it; nothing here blocks that actor.

    Args:
        loop: The loop.
        name: What it is called.
        ended: Resolves when its worker has ended.
        clock: The time.
    """

    def __init__(self, loop: SupportsRun, name: str, ended: Ticket[BaseException | None], clock: Clock) -> None:
        self._loop = loop
        self._name = name
        self._ended = ended
        self._clock = clock
        self._helper = SerialExecutor(f"{name}-helper", clock.blocking)
        self._second = SerialExecutor(f"{name}-stopper", clock.blocking)
        self._begun = 0  # calls of the helper; written by it alone, as is the next
        self._is_calling = False
        #: What ``shutdown`` raised last.
        self.error: BaseException | None = None

    def offer(self, job: Callable[[], object]) -> None:
        """Run ``job`` on the helper; jobs keep their order, so what was offered before a stop comes before it."""

        def call() -> None:
            self._begun += 1
            self._is_calling = True
            try:
                job()
            finally:
                self._is_calling = False

        self._helper.submit(call)

    def stop(self, timeout: float) -> None:
        """Tell the loop to stop; call it once."""
        if not self._helper.is_used:
            if not self._stop_nowait(timeout):
                self._helper.submit(lambda: self._stop(timeout))
            return
        # What was asked before the stop is offered before it, unless the loop's own `post` blocks.
        offered: Ticket[None] = Ticket(self._clock.blocking)
        self._helper.submit(lambda: offered.complete(None))
        self._second.submit(lambda: self._let_pass(offered))
        self._second.submit(lambda: self._stop(timeout))

    def _let_pass(self, offered: Ticket[None]) -> None:
        """Wait until everything is offered, or one call has not returned for as long as a reminder takes."""
        while True:
            begun = self._begun
            if offered.wait_ready(FIRST_REMINDER, self._clock) or (self._is_calling and self._begun == begun):
                return

    def close(self) -> None:
        """Let the helpers end after the jobs that they have."""
        self._helper.close()
        self._second.close()

    def _stop_nowait(self, timeout: float) -> bool:
        """Stop the loop here and now, if it can be done without blocking; most of ours can, and need no thread."""
        try:
            stop = shutdown_nowait_of(self._loop)
            return stop is not None and stop(timeout) is True
        except BaseException as error:  # noqa: BLE001  isolates user code: it is told by `shutdown` instead
            report(logging.ERROR, "shutdown_nowait() of loop %r raised", self._name, error=error, loop=self._name)
            return False

    def _stop(self, timeout: float) -> None:
        """Tell the loop to stop, and again until it has ended if it may not have heard; runs on a helper."""
        reminder = FIRST_REMINDER
        while True:
            heard = False
            try:
                # A loop that says it is running has its entrance behind it, and will not clear the stop.
                is_running = getattr(self._loop, "running", False) is True
                self._loop.shutdown(timeout=timeout if is_running else min(timeout, reminder))
                heard = can_process(self._loop)  # which promises to remember it
            except BaseException as error:  # noqa: BLE001  isolates user code
                describe(error)  # here, where other people's code may take its time
                self.error = error
                report(logging.ERROR, "shutdown() of loop %r raised", self._name, error=error, loop=self._name)
            if heard or self._ended.wait_ready(reminder, self._clock):
                return
            timeout = 0.0
            reminder = min(2 * reminder, LAST_REMINDER)
