"""`run_all`: what a handler makes of everything in a mailbox, on the test's own thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox import Mailbox, Message

__all__ = ["Outcome", "run_all"]

T = TypeVar("T")
R = TypeVar("R")


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message."""

    id: str
    body: Any
    #: ``done``: acknowledged. ``dead``: a dead letter. ``failed``: its handler raised, or gave it back, and it is still
    #: in the mailbox.
    fate: Literal["done", "failed", "dead"]
    #: How often the handler was called with it.
    calls: int
    #: What the handler raised last.
    error: BaseException | None = None


def run_all(
    mailbox: Mailbox[T, R], handler: Callable[[Message[T, R]], object], *, attempts: int | None = None
) -> list[Outcome]:
    """Work off everything that can be received; return what became of each message, in the order of their first try.

    It does what a `MailboxLoop` does with a message, without threads and without waiting: one whose handler raises is
    tried again at once, until it is done or a dead letter. What the handler sends to the mailbox is worked off too.

    >>> from loopwarden import open_mailbox
    >>> jobs = open_mailbox("memory://numbers", max_deliveries=2)
    >>> sent = jobs.send_many([1, 0])
    >>> [(each.body, each.fate, each.calls) for each in run_all(jobs, lambda message: 1 / message.body)]
    [(1, 'done', 1), (0, 'dead', 2)]
    >>> jobs.close()

    Args:
        mailbox: Where they are.
        handler: As for a `MailboxLoop`.
        attempts: How often each is tried; as often as the mailbox allows if not given.
    """
    outcomes: dict[str, Outcome] = {}
    held: list[Message[T, R]] = []
    while messages := mailbox.receive():
        for message in messages:
            known = outcomes.get(message.id)
            calls = 0 if known is None else known.calls
            if attempts is not None and calls >= attempts:
                held.append(message)  # given back at the end, or it would be received again and again
                continue
            outcomes[message.id] = _try(mailbox, message, handler, calls + 1)
    for message in held:
        message.put_back()
    return list(outcomes.values())


def _try(
    mailbox: Mailbox[T, R], message: Message[T, R], handler: Callable[[Message[T, R]], object], calls: int
) -> Outcome:
    error: BaseException | None = None
    try:
        handler(message)
    except Exception as raised:  # noqa: BLE001  as a loop does
        error = raised
        if not message.is_finalized:
            message.nack(error=repr(raised))
    else:
        if not message.is_finalized:
            message.acknowledge()
    if mailbox.dead_letters.get(message.id) is not None:
        fate: Literal["done", "failed", "dead"] = "dead"
    else:
        fate = "failed" if error is not None or message.is_returned else "done"
    return Outcome(message.id, message.body, fate, calls, error)
