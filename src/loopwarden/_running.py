"""What runs here, on this thread or in this coroutine: kept down here, so that the log can tell it."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._heartbeat import Heartbeat

__all__ = ["CONTEXT", "TASK", "Running", "here", "running"]

#: The attributes that log records get.
CONTEXT = ("loop", "mailbox", "message_id", "delivery")


class Running:
    """What user code is called for."""

    heartbeat: Heartbeat | None = None
    is_stopped: Callable[[], bool] | None = None
    #: Tells the actor whose loop runs here, and whether this is the only thread that could work for it.
    owner: object = None
    is_alone = False
    #: Tells the run of the loop that a coroutine is part of, on whatever thread its work is done.
    group: object = None
    #: The name of the loop.
    loop: str | None = None
    #: The name of the mailbox that it receives from.
    mailbox: str | None = None
    #: The message that is in hand, and how often it was delivered.
    message_id: str | None = None
    delivery: int | None = None

    def leave_message(self) -> None:
        """Have no message in hand any more."""
        self.message_id = self.delivery = None


@final
class _OfThread(threading.local, Running):
    """Set by what runs user code on a thread, for as long as it does."""


running = _OfThread()
#: Set for a coroutine, because many share a thread; and so for what it starts, in tasks and in other threads.
TASK: ContextVar[Running | None] = ContextVar("loopwarden_task", default=None)


def here() -> Running:
    """Return what runs here."""
    return TASK.get() or running
