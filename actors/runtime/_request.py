"""`Request`: what every control message is."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from loopwarden._model import Model
from loopwarden._ticket import Ticket, TicketCarrier

__all__ = ["ControlMessage", "Request"]

R = TypeVar("R")


class ControlMessage(Model):
    """A message that tells an actor what to do: frozen, and strict about its fields.

    A bad value or an unknown field raises ``ValueError``, which names the field, where the message is made; the actor
    never sees it.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)


class Request(ControlMessage, TicketCarrier, Generic[R]):
    """A control message that is answered with an ``R``.

    It may carry the ticket that takes the answer, next to the one that ``ask`` makes. The ticket is no part
    of the message's schema nor of its wire form.
    """

    ticket: SkipJsonSchema[Ticket[R] | None] = Field(default=None, exclude=True, repr=False)
