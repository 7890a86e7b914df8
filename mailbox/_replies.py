"""Where a reply goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopwarden.errors import ReplyNotAvailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._message import Message

__all__ = ["reply_target"]


def reply_target(
    mailbox: str, message: Message[Any, Any], resolver: Callable[[str], Mailbox[Any, Any] | None] | None
) -> Mailbox[Any, Any]:
    """Return the mailbox that takes the replies to ``message``.

    Raises:
        ReplyNotAvailableError: if its sender named none, or one that cannot be found.
    """
    target: Mailbox[Any, Any] | str | None = message.record.reply_to
    if target is None:
        raise ReplyNotAvailableError(mailbox, message.id, "its sender wants no reply")
    if not isinstance(target, str):
        return target
    found = None if resolver is None else resolver(target)
    if found is None:
        raise ReplyNotAvailableError(mailbox, message.id, f"there is no mailbox {target!r}")
    return found
