"""`Envelope`: a message on its way, and the tickets that wait for its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from loopwarden._ticket import Ticket, write
from loopwarden.actors._messages import Request, TicketCarrier

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Envelope", "refuse", "tickets_of"]

#: A message, and the ticket that takes the answer.
Envelope: TypeAlias = "tuple[Any, Ticket[Any] | None]"


def tickets_of(envelope: Envelope) -> list[Ticket[Any]]:
    """Return the tickets of an envelope: its own, and the one that its message carries."""
    message, ticket = envelope
    tickets = [] if ticket is None else [ticket]
    if issubclass(type(message), TicketCarrier):
        carried = cast("Request[Any]", message).ticket
        if carried is not None and carried is not ticket:
            tickets.append(carried)
    return tickets


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
