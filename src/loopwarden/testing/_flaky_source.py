"""`FlakySource`: a mailbox whose broker goes away and comes back when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from loopwarden._ticket import Ticket, write
from loopwarden.errors import MailboxConnectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwarden.mailbox import Mailbox, Message, Token

__all__ = ["FlakySource"]


@final
class FlakySource:
    """Receives from a real mailbox, except while it is broken: then each receive raises `MailboxConnectionError`.

    Args:
        mailbox: Where messages really come from.
    """

    def __init__(self, mailbox: Mailbox[Any, Any]) -> None:
        self._mailbox = mailbox
        self._broken = False
        #: Resolves when a receive was refused for the first time.
        self.refused: Ticket[None] = Ticket()
        #: How many receives were refused.
        self.refusals = 0

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self._mailbox.name

    @property
    def closed(self) -> bool:
        """True once the mailbox is closed."""
        return self._mailbox.closed

    def break_down(self) -> None:
        """Refuse every receive from now on."""
        self._broken = True

    def repair(self) -> None:
        """Receive again."""
        self._broken = False

    def receive(
        self, *, max_messages: int, visibility_timeout: float, wait_time_seconds: float, token: Token
    ) -> Sequence[Message[Any, Any]]:
        """Receive from the mailbox.

        Raises:
            MailboxConnectionError: while it is broken.
        """
        if self._broken:
            self.refusals += 1
            write(self.refused)
            raise MailboxConnectionError(self.name, "it is unavailable, for a test")
        return self._mailbox.receive(
            max_messages=max_messages,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
            token=token,
        )
