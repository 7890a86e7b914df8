"""What runs on this thread: kept down here, so that the log can tell it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._heartbeat import Heartbeat

__all__ = ["CONTEXT", "running"]

#: The attributes that log records get.
CONTEXT = ("loop", "mailbox", "message_id", "delivery")


class _Running(threading.local):
    heartbeat: Heartbeat | None = None
    is_stopped: Callable[[], bool] | None = None
    #: Tells the actor whose loop runs here, and whether this is the only thread that could work for it.
    owner: object = None
    is_alone = False
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


#: Set by what runs user code on this thread, for as long as it does.
running = _Running()
