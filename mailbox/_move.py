"""`move`: what is queued in one mailbox goes to another, on whichever engine each of them is."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from loopwarden._log import describe
from loopwarden.errors import InvalidParameterError, MailboxError
from loopwarden.mailbox._open import open_mailbox
from loopwarden.mailbox._validation import check_token, hide_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token

__all__ = ["Moved", "move"]

#: Messages that are in hand at once.
_BATCH = 100
#: Seconds for which they are leased: much less than a dedup id is known, so that what comes back after a crash is found
#: to be sent.
_LEASE = 60.0
#: Characters of the bar.
_WIDTH = 40


@final
@dataclass(frozen=True, slots=True)
class Moved:
    """What a move came to."""

    #: Messages that are in the target now, and not in the source any more.
    moved: int
    #: Messages that are still in the source: leased by others, delayed, or sent meanwhile.
    left: int


def move(
    source: str, target: str, *, progress: bool | Callable[[int, int], object] = False, token: Token | None = None
) -> Moved:
    """Move what can be received in one mailbox to another, in its order, with headers and ``reply_to``.

    Nothing is lost if it is interrupted, even by ``kill -9``: each message is sent before it is acknowledged. Calling
    it again goes on, and what was sent but not acknowledged is not sent twice if that is within five minutes.
    Deliveries are counted anew. What is leased by others, or delayed, stays, and so do dead letters: redrive them
    first.

    >>> from loopwarden import open_mailbox
    >>> old, new = open_mailbox("memory://old"), open_mailbox("memory://new")
    >>> _ = old.send_many(["a", "b"])
    >>> move("memory://old", "memory://new")
    Moved(moved=2, left=0)
    >>> old.close(), new.close()
    (None, None)

    Args:
        source: The URL of a mailbox that is there.
        target: That of another; it is made if it is not there.
        progress: True for a bar on the standard error output, or a function that is told how many are moved, and how
            many there are in all.
        token: Ends it early when stopped.

    Raises:
        InvalidParameterError: if a URL names no mailbox, or both name the same one.
        MailboxError: if a mailbox cannot be opened or does not take a message; what is in hand goes back.
    """
    shown = hide_password(source)  # errors are logged
    if source == target:
        raise InvalidParameterError(describe(shown), "target", hide_password(target), "another mailbox")
    check_token(shown, token)
    tell = _draw if progress is True else progress or _say_nothing
    with contextlib.ExitStack() as stack:
        old = _opened(source, stack, create=False)
        new = _opened(target, stack, create=True)
        moved = 0
        while not (token is not None and token.stopped):
            found = list(old.receive(max_messages=_BATCH, visibility_timeout=_LEASE, token=token))
            if not found:
                break
            moved += _pass(found, old, new)
            tell(moved, moved + old.approximate_count())
        if progress is True:
            print(file=sys.stderr)  # noqa: T201  the end of the line of the bar
        return Moved(moved, old.approximate_count())


def _opened(url: str, stack: contextlib.ExitStack, *, create: bool) -> Mailbox[Any, Any]:
    """Open a mailbox that nothing becomes a dead letter of; one in memory is open already, and stays so."""
    is_in_memory = str(url).startswith("memory:")
    options = {} if is_in_memory else {"max_deliveries": None}
    mailbox: Mailbox[Any, Any] = open_mailbox(url, create=create, **options)
    if not is_in_memory:
        stack.callback(mailbox.close)
    return mailbox


def _pass(found: list[Message[Any, Any]], old: Mailbox[Any, Any], new: Mailbox[Any, Any]) -> int:
    """Send what is in hand, and acknowledge what was sent; the rest goes back, whatever comes."""
    sent: list[Message[Any, Any]] = []
    try:
        for message in found:
            new.send(
                message.body,
                reply_to=message.reply_to,
                headers=message.headers or None,
                dedup_id=f"moved:{message.id}",
            )
            sent.append(message)
    finally:
        old.acknowledge_many(sent)
        for message in found[len(sent) :]:
            with contextlib.suppress(MailboxError):  # its lease has ended
                message.put_back()
    return len(sent)


def _say_nothing(_moved: int, _total: int) -> None: ...


def _draw(moved: int, total: int) -> None:
    filled = _WIDTH * moved // max(total, 1)
    bar = "█" * filled + "░" * (_WIDTH - filled)
    print(f"\r{bar} {moved:,} of {total:,}", end="", file=sys.stderr, flush=True)  # noqa: T201  a bar was asked for
