"""`run_all`: what a handler makes of everything in a mailbox, on the test's own thread."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, final

from loopwarden.actors.consumers._mailbox_worker import check_handler, refuse_unfinished
from loopwarden.errors import ReceiptHandleExpiredError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
    tried again at once, until it is done or a dead letter. What the handler sends to the mailbox is worked off too. One
    that the handler puts back unstarted stays where it is, or it would come for ever.

    >>> from loopwarden import open_mailbox
    >>> jobs = open_mailbox("memory://numbers", max_deliveries=2)
    >>> sent = jobs.send_many([1, 0])
    >>> [(each.body, each.fate, each.calls) for each in run_all(jobs, lambda message: 1 / message.body)]
    [(1, 'done', 1), (0, 'dead', 2)]
    >>> jobs.close()

    Args:
        mailbox: Where they are.
        handler: As for a `MailboxLoop`. An ``async def`` has an event loop of its own for each message, in real time.
        attempts: How often each is tried; as often as the mailbox allows if not given.

    Raises:
        TypeError: if the handler is a generator.
        BaseException: what the handler raises, if it is no ``Exception``: that ends a loop too. The message is given
            back.
    """
    is_coroutine = check_handler(handler) == "asyncio"
    call = partial(_run_in_asyncio, handler) if is_coroutine else handler
    outcomes: dict[str, Outcome] = {}
    deliveries: dict[str, int] = {}
    held: list[Message[T, R]] = []
    try:
        while messages := mailbox.receive():
            for message in messages:
                known = outcomes.get(message.id)
                calls = 0 if known is None else known.calls
                was_put_back = deliveries.get(message.id, 0) >= message.delivery_count
                if was_put_back or (attempts is not None and calls >= attempts):
                    held.append(message)  # given back at the end, or it would be received again and again
                    continue
                deliveries[message.id] = message.delivery_count
                outcomes[message.id] = _try(mailbox, message, call, calls + 1)
    finally:
        for message in held:
            message.put_back()
    return list(outcomes.values())


def _run_in_asyncio(handler: Callable[[Message[T, R]], object], message: Message[T, R]) -> object:
    import asyncio  # noqa: PLC0415  few tests need it

    async def run() -> object:
        return await cast("Awaitable[object]", handler(message))

    return asyncio.run(run())


def _try(
    mailbox: Mailbox[T, R], message: Message[T, R], handler: Callable[[Message[T, R]], object], calls: int
) -> Outcome:
    error: BaseException | None = None
    try:
        refuse_unfinished(handler(message))
        if not message.is_finalized:
            message.acknowledge()
    except ReceiptHandleExpiredError as raised:
        error = raised  # it has lost the message, which comes again
    except BaseException as raised:
        error = raised
        if not message.is_finalized:
            with suppress(ReceiptHandleExpiredError):
                message.nack(error=repr(raised))
        if not isinstance(raised, Exception):
            raise
    if mailbox.dead_letters.get(message.id) is not None:
        fate: Literal["done", "failed", "dead"] = "dead"
    else:
        fate = "failed" if error is not None or message.is_returned else "done"
    return Outcome(message.id, message.body, fate, calls, error)
