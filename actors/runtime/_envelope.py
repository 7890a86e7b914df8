"""`Envelope`: a message on its way, and the tickets that wait for its answer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from loopwarden._log import report, type_name
from loopwarden._ticket import Ticket, write
from loopwarden.actors.runtime._request import Request, TicketCarrier

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Envelope", "refuse", "tickets_of"]

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
        except BaseException as error:  # noqa: BLE001  the message may be anybody's, and whoever asked is to be answered
            report(logging.WARNING, "%s does not tell which ticket it carries", type_name(message), error=error)
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
