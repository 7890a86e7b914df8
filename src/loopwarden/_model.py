"""`Model`: data that is checked where it is made, with one line that says what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from loopwarden._log import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

__all__ = ["Model", "fault_of", "must_be"]

#: How pydantic begins to say what a value should be; here the name of its field stands in that place.
_SUBJECTS = ("Input should ", "String should ")


if TYPE_CHECKING:  # checkers know the fields only as long as pydantic makes the constructor
    from pydantic._internal._model_construction import ModelMetaclass as _OneLine
else:

    class _OneLine(type(BaseModel)):
        """Makes models, and says in one line why one cannot be made."""

        def __call__(cls, *by_position: object, **fields: object) -> object:
            if by_position:
                raise TypeError(_by_name(cls))
            try:
                return super().__call__(**fields)
            except ValidationError as error:
                raise ValueError(fault_of(error, cls)) from None


class Model(BaseModel, metaclass=_OneLine):
    """Frozen, strict, and with errors that name the field and what it should be.

    Its constructor raises ``ValueError`` with one line, where that of pydantic raises a ``ValidationError`` with three
    for each fault; ``model_validate`` raises pydantic's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _by_name(model: type[BaseModel]) -> str:
    names = ", ".join(f"{name}=…" for name in _names(model))
    return f"{model.__name__} takes its fields by name: {model.__name__}({names})"


def _names(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.repr]


def fault_of(error: ValidationError, model: type[BaseModel]) -> str:
    """Return what is wrong with the fields of a model, in one line.

    >>> class Job(Model):
    ...     pages: int
    >>> Job(page=1)
    Traceback (most recent call last):
        ...
    ValueError: pages is missing; there is no page: did you mean pages?
    """
    known = _names(model)
    return "; ".join(_sentence(fault, known) for fault in error.errors(include_context=False))


def _sentence(fault: ErrorDetails, known: Sequence[str]) -> str:
    field = ".".join(map(str, fault["loc"]))
    if fault["type"] == "missing":
        return f"{field} is missing"
    if fault["type"] == "extra_forbidden" and field in known:
        return f"{field} is given twice, under two names"
    if fault["type"] == "extra_forbidden":
        near = [name for name in known if field in name] or _nearest(field, known)
        return f"there is no {field}" + (
            f": did you mean {near[0]}?" if near else f", but {', '.join(known)}" * bool(known)
        )
    if fault["type"] == "value_error":  # ours, which says itself what was given
        text = fault["msg"].removeprefix("Value error, ")
        return f"{field} {text}" if text.startswith("must ") else ": ".join(filter(None, (field, text)))
    for subject in _SUBJECTS:
        if fault["msg"].startswith(subject):
            return f"{field} must {fault['msg'].removeprefix(subject)}, got {describe(fault['input'])}"
    return f"{field}: {fault['msg']}, got {describe(fault['input'])}"


def _nearest(field: str, known: Sequence[str]) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415  only who mistypes a field needs it

    return get_close_matches(field, known, n=1, cutoff=0.75)


def must_be(what: str) -> WrapValidator:
    """Return a validator that says in our words what a field must be, in place of pydantic's for each thing it may be.

    A field that is ``Annotated[int | None, must_be("a number of pages, or None")]`` and gets ``"some"`` is told that it
    ``must be a number of pages, or None, got 'some'``.
    """

    def check(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"must be {what}, got {describe(value)}") from None

    return WrapValidator(check)
