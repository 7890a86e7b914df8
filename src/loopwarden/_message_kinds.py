"""`MessageKinds`: how an actor tells messages apart."""

from __future__ import annotations

from typing import Any, cast, final

from pydantic import BaseModel

__all__ = ["MessageKinds"]

_mro_of = type.__dict__["__mro__"].__get__  # not kind.__mro__: a metaclass may have its own


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
