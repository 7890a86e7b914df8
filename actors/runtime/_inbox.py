"""`Inbox`: what an actor reads from, closed for good at its end; and what is in it."""

from __future__ import annotations

import logging
import queue
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

from loopwarden._log import report, type_name
from loopwarden._ticket import Ticket, TicketCarrier, orphan, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking, WorkQueue
    from loopwarden.actors.runtime._request import Request

__all__ = ["Envelope", "Inbox", "refuse", "tickets_of"]

#: A message, and the ticket that takes the answer.
Envelope: TypeAlias = "tuple[Any, Ticket[Any] | None]"


def tickets_of(envelope: Envelope) -> list[Ticket[Any]]:
    """Return the tickets of an envelope: its own, and the one that its message carries."""
    message, ticket = envelope
    tickets = [] if ticket is None else [ticket]
    # By type(): the class of other people's objects may be a property that raises.
    if issubclass(type(message), TicketCarrier):
        carried = _carried_by(cast("Request[Any]", message))
        if carried is not ticket and issubclass(type(carried), Ticket):
            tickets.append(cast("Ticket[Any]", carried))
    return tickets


def _carried_by(message: Request[Any]) -> object:
    for _ in range(2):  # twice, because the first time it may have been an interrupt
        try:
            return message.ticket
        except BaseException as error:  # noqa: BLE001  user code, and the sender still gets its answer
            report(logging.WARNING, "could not read the ticket of a %s", type_name(message), error=error)
    return None


def refuse(envelope: Envelope, answer: Callable[[object], object]) -> None:
    """Answer an envelope that came after the end; on whichever thread put it there."""
    tickets = tickets_of(envelope)
    if not tickets:
        return
    result, error = None, None
    try:
        result = answer(envelope[0])
    except BaseException as refusal:  # noqa: BLE001  the refusal is the answer
        error = refusal
    for ticket in tickets:
        write(ticket, result, error)


@final
class Inbox:
    """A queue of envelopes that is closed once, for good.

    No ticket is left behind: `put` puts first and then looks whether the inbox is closed, `close` closes first
    and then flushes, so whichever comes second sees the other's step. Nothing here takes a lock, so it
    is safe in a signal handler.
    """

    __slots__ = ("_refuse", "_wake", "closed", "enqueue", "get", "get_nowait", "is_empty")

    def __init__(self, blocking: Blocking) -> None:
        envelopes: WorkQueue[Envelope] = blocking.queue()
        # Bound once: they are called with every message.
        self.enqueue = envelopes.put
        self.get = envelopes.get
        self.get_nowait = envelopes.get_nowait
        self.is_empty = envelopes.empty
        self.closed = False
        self._refuse: Callable[[Envelope], None] | None = None
        self._wake: Envelope = (None, None)

    def put(self, envelope: Envelope, /) -> None:
        """Put an envelope; if the inbox is closed, it is answered at once, on this thread."""
        self.enqueue(envelope)
        if self.closed:
            self.flush()

    def empty(self) -> bool:
        """Say whether nothing is waiting, as Pykka asks it."""
        return self.is_empty()

    def close(self, refuse: Callable[[Envelope], None]) -> None:
        """Close for good; ``refuse`` answers what is still there and whatever comes from now on."""
        self._refuse = refuse
        self.closed = True
        self.flush()

    def wake(self, envelope: Envelope) -> None:
        """Wake the reader of a closed inbox, which may be waiting: this one stays there until the reader takes it."""
        self._wake = envelope
        self.enqueue(envelope)

    def leave_to_parent(self, refuse: Callable[[Envelope], None], error: BaseException) -> None:
        """Close in a child process, without a callback: what is there has the error as its answer."""
        self._refuse = refuse
        self.closed = True
        while not self.is_empty():
            _, ticket = self.get_nowait()
            if ticket is not None:
                orphan(ticket, error)

    def flush(self) -> None:
        """Answer what is waiting in a closed inbox; safe for any number of threads at once."""
        assert self._refuse is not None, "only a closed inbox is flushed"
        has_seen_wake = False
        while True:
            try:
                envelope = self.get_nowait()
            except queue.Empty:
                if has_seen_wake:
                    self.enqueue(self._wake)
                return
            if envelope is self._wake:
                has_seen_wake = True  # it is for the reader, and put back
                continue
            try:
                self._refuse(envelope)
            except BaseException as error:  # noqa: BLE001  the envelopes behind this one must be answered too
                report(logging.ERROR, "could not reject a message to an actor that has ended", error=error)
