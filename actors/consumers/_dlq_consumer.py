"""`DLQConsumer`: a loop over the dead letters of a mailbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loopwarden._log import describe
from loopwarden.actors.consumers._mailbox_loop import MailboxLoop
from loopwarden.actors.consumers._mailbox_worker import check_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox import DeadLetter, Mailbox

__all__ = ["DLQConsumer"]

T = TypeVar("T")


class DLQConsumer(MailboxLoop["DeadLetter[T]"], Generic[T]):
    """Calls a handler with each dead letter of a mailbox, and acknowledges those that it returns from.

    A letter whose handler raises stays a letter and comes again, for ever: there is nowhere else for it to go.

    Args:
        mailbox: The mailbox that gave the letters up.
        handler: Called with each letter.
        options: Those of `MailboxLoop`.
    """

    def __init__(self, mailbox: Mailbox[T, Any], handler: Callable[[DeadLetter[T]], object], **options: Any) -> None:
        if not callable(getattr(getattr(mailbox, "dead_letters", None), "receive", None)):
            raise TypeError(f"mailbox must be the mailbox whose dead letters are wanted, got {describe(mailbox)}")
        options["runs_in"] = check_handler(handler, "letter", runs_in=options.get("runs_in"))
        super().__init__(mailbox.dead_letters, lambda message: handler(message.body), **options)
