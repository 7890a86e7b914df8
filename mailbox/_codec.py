"""`Codec`: typed bodies, validated by pydantic, JSON on the wire."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Generic, TypeVar, cast, final

from pydantic import Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError

from loopwarden._log import describe
from loopwarden.errors import InvalidParameterError, SerializationError
from loopwarden.mailbox._difference import Difference, difference
from loopwarden.mailbox._shape import shape_of

__all__ = ["Codec"]

T = TypeVar("T")

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


@final
class Codec(Generic[T]):
    """Turns bodies of one type into JSON and back; there is no pickle anywhere.

    What it accepts is read again as it was, and what would not be is refused. Of most bodies the type can tell, once
    and for all (see `shape_of`); any other is written, read again and compared. Fields are written and read by their
    names, not their aliases, and without what is computed.

    Args:
        mailbox: The mailbox that errors name.
        body: The type of the bodies; ``Any`` for whatever JSON can carry.
        noun: What the bodies are: also the parameter that gives their type.
    """

    def __init__(self, mailbox: str, body: Any = Any, noun: str = "body") -> None:
        self._mailbox = mailbox
        self._noun = noun
        self._anything = body is Any or body is object
        try:
            adapter: TypeAdapter[Any] = _ANYTHING if self._anything else TypeAdapter(body)
            # Without the adapter in between, which takes as long as they do.
            self._validator = adapter.validator
            self._serializer = adapter.serializer
            shape = shape_of(adapter.core_schema)
        except Exception as error:  # isolates user code: a type may say itself what its schema is
            raise InvalidParameterError(mailbox, noun, body, "a type that pydantic can validate") from error
        #: Says yes if a body surely comes back as it is; a no means that it must be tried.
        self.is_sure = shape or _never
        self._read = partial(self._validator.validate_json, by_alias=False, by_name=True)

    def check(self, body: T) -> T:
        """Return ``body``: as it is if it is of the type, as the type makes it if it fits, such as a dict for a model.

        Raises:
            SerializationError: if it does not fit, or JSON cannot carry all of it.
        """
        is_sure = self.is_sure
        return body if is_sure(body) else self._tried(body)[0]

    def encode(self, body: T) -> bytes:
        """Return ``body`` as JSON.

        Raises:
            SerializationError: as `check`.
        """
        is_sure = self.is_sure
        if is_sure(body):
            return self._serializer.to_json(body)  # without an option, each of which takes time
        return self._tried(body)[1]

    def decode(self, raw: bytes) -> T:
        """Return the body that ``raw`` holds.

        Raises:
            SerializationError: if it holds none.
        """
        try:
            return cast("T", self._read(raw))
        except Exception as error:  # isolates user code: validators
            raise SerializationError(self._mailbox, f"the body cannot be read: {_reason(error)}") from error

    def _tried(self, body: T) -> tuple[T, bytes]:
        """Return a body as the type has it, and as JSON that was read as the same body."""
        checked = body
        try:
            if not self._anything:
                checked = cast("T", self._validator.validate_python(body, strict=True))
        except Exception as error:
            raise SerializationError(self._mailbox, f"the {self._noun} does not fit: {_reason(error)}") from error
        try:
            raw = self._serializer.to_json(checked, warnings="error", by_alias=False, round_trip=True)
        except Exception as error:
            text = f"the {self._noun} cannot be written as JSON: {_reason(error)}"
            raise SerializationError(self._mailbox, f"{text}; send what its type says, and JSON can carry") from error
        try:
            again = self._read(raw)
        except Exception as error:
            raise SerializationError(self._mailbox, f"the {self._noun} {_unreadable(checked, error)}") from error
        try:
            found = difference(checked, again)
        except Exception as error:
            text = f"the {self._noun} cannot be compared with what would be received: {describe(error)}"
            raise SerializationError(self._mailbox, text) from error
        if found is not None:
            raise SerializationError(self._mailbox, self._changed(checked, found))
        return checked, raw

    def _changed(self, body: T, found: Difference) -> str:
        where = f"{type(body).__name__}{found.where}" if found.where else "it"
        return f"the {self._noun} would not be received as it was sent: {where} {found.text}; {self._remedy(found)}"

    def _remedy(self, found: Difference) -> str:
        sent, read = found.sent, found.read
        if isinstance(sent, SecretStr | SecretBytes | Secret):
            return "a secret is written as asterisks, unless its field has a serializer that writes it"
        if _is_no_number(sent):
            return _NO_NUMBER
        if self._anything:
            return f"open the mailbox with {self._noun}=<their type>: without one they can only be what JSON has"
        if type(read) is type(sent):
            return (
                "what is excluded, private or rewritten does not travel: make it a field that is read as it is written"
            )
        if isinstance(sent, type(read)):
            return f"name {type(sent).__name__} in {self._noun}=, in a union with a discriminator if need be"
        return "name one type for it, or a union whose members differ in JSON"


#: For nan and the infinities.
_NO_NUMBER = "nan and inf need ser_json_inf_nan='constants' in the configuration of their model"


def _is_no_number(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _never(_body: object) -> bool:
    return False


def _unreadable(body: object, error: Exception) -> str:
    """Say that a body could be written, but not read, and what to do."""
    remedy = "let its type read what it writes"
    if _is_no_number(_culprit(body, error)):
        remedy = _NO_NUMBER
    elif isinstance(error, ValidationError) and error.errors()[0]["type"] == "json_invalid":
        remedy = "nest it less than 200 deep, and send numbers of more than 4,300 digits as text"
    return f"would not be received, because its JSON cannot be read: {_reason(error)}; {remedy}"


def _culprit(body: Any, error: Exception) -> object:
    """Return the part of a body that an error is about, if it can be found."""
    if not isinstance(error, ValidationError):
        return None
    try:
        for step in error.errors(include_url=False, include_context=False)[0]["loc"]:
            body = getattr(body, step) if isinstance(step, str) and hasattr(body, step) else body[step]
    except Exception:  # noqa: BLE001  isolates user code; it is about a better text, and no more
        return None
    return body


def _reason(error: Exception) -> str:
    """Return what is wrong, in one line."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split()) or describe(error)
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    where = ".".join(map(str, first["loc"]))
    more = f" (and {len(others)} more)" if others else ""
    return f"{error.title}{'.' if where else ''}{where}: {first['msg']}{more}"
