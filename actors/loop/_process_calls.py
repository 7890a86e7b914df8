"""`Processing`: bodies that are put straight through a loop's handler, and who waits for the results."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from loopwarden._ticket import Ticket, write
from loopwarden.actors.loop._current import current
from loopwarden.actors.loop._loop_ref import cannot_process
from loopwarden.actors.loop._protocols import can_process
from loopwarden.actors.loop._state import LoopState
from loopwarden.errors import ActorDeadError, LoopAbandonedError, LoopNotRunningError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors.loop._protocols import SupportsRun
    from loopwarden.actors.loop._state import Lifecycle
    from loopwarden.clock import Clock

__all__ = ["Processing"]


@final
class Processing:
    """Belongs to one loop's actor; nothing here blocks it.

    Args:
        loop: The loop.
        name: What it is called.
        lifecycle: Whether it is running.
        offer: Calls what it is given on a helper, because a loop's own ``post`` may block.
        clock: The time.
    """

    def __init__(
        self,
        loop: SupportsRun,
        name: str,
        lifecycle: Lifecycle,
        offer: Callable[[Callable[[], object]], None],
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._name = name
        self._lifecycle = lifecycle
        self._offer = offer
        self._clock = clock
        self._threads: dict[Ticket[object], int] = {}  # what is being processed, and on which thread

    def begin(self, body: object) -> Ticket[object]:
        """Have a body processed; the ticket resolves to what the handler returns or raises."""
        loop = self._loop
        if not can_process(loop):
            raise cannot_process(self._name, "ProcessRequest", loop)
        state = self._lifecycle.state
        if state not in {LoopState.STARTING, LoopState.RUNNING}:
            raise LoopNotRunningError(self._name, state)
        reply: Ticket[object] = Ticket(self._clock.blocking)

        def work() -> None:
            self._threads[reply] = threading.get_ident()
            current.leave_message()  # the body comes from no mailbox
            try:
                result = loop.process(body)
            except Exception as error:  # noqa: BLE001  isolates user code: the asker gets it, the loop lives on
                write(reply, error=error)
            except BaseException as error:
                write(reply, error=ActorDeadError(f"LoopActor {self._name!r}", error))
                raise
            else:
                write(reply, result)

        def offer() -> None:
            try:
                if not loop.post(work):
                    raise LoopNotRunningError(self._name, self._lifecycle.state)  # noqa: TRY301  one way to refuse
            except BaseException as error:  # noqa: BLE001  isolates user code
                write(reply, error=error)

        reply.on_ready(lambda _: self._threads.pop(reply, None))
        self._offer(offer)
        return reply

    def give_up(self, thread: int | None, reason: str) -> None:
        """Fail what is being processed on a thread that was given up, and will not answer."""
        for reply, worker in tuple(self._threads.items()):
            if worker == thread:
                write(reply, error=LoopAbandonedError(self._name, reason))
