"""`Request`: what every control message is, and how an actor tells messages apart."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from loopwarden._ticket import Ticket

__all__ = ["ControlMessage", "MessageKinds", "Request", "TicketCarrier"]

R = TypeVar("R")

_mro_of = type.__dict__["__mro__"].__get__  # not kind.__mro__: a metaclass may have its own


class TicketCarrier:
    """Marks the messages that may carry a ticket.

    A plain class, because the actor loop asks for it with each message, and pydantic's models answer
    ``isinstance`` ten times more slowly.
    """

    __slots__ = ()


class ControlMessage(BaseModel):
    """A message that tells an actor what to do: frozen, and strict about its fields.

    A bad value or an unknown field raises pydantic's ``ValidationError``, which names the field, where
    the message is made; the actor never sees it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)


class Request(ControlMessage, TicketCarrier, Generic[R]):
    """A control message that is answered with an ``R``.

    It may carry the ticket that takes the answer, next to the one that ``ask`` makes. The ticket is no part
    of the message's schema nor of its wire form.
    """

    ticket: SkipJsonSchema[Ticket[R] | None] = Field(default=None, exclude=True, repr=False)


@final
class MessageKinds:
    """The classes of the messages that an actor takes.

    ``isinstance`` asks a message for its ``__class__``, and a set asks its class for a hash. Both may be other people's
    code, which may raise whatever it likes, on a thread that has others to answer. So classes are known by their
    identity here, and a message of a subclass is replaced by one of ours that has the same fields.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds: dict[int, type] = {id(kind): kind for kind in kinds}

    def __contains__(self, message: object) -> bool:
        """Say whether a message is of one of these very classes, not of a subclass."""
        return id(type(message)) in self._kinds

    def recognize(self, message: object) -> object | None:
        """Return the message as one of these classes; None if it is of none of them."""
        if id(type(message)) in self._kinds:
            return message
        for base in _mro_of(type(message)):
            kind = self._kinds.get(id(base))
            if kind is not None and issubclass(kind, BaseModel):
                fields = cast("dict[str, Any]", object.__getattribute__(message, "__dict__"))
                return kind.model_construct(**{name: fields[name] for name in kind.model_fields if name in fields})
        return None
