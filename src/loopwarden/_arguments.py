"""What an argument may be, in one place.

Types are asked by ``type()``, because the class of other people's objects may be a property that raises.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable, Mapping
from typing import TypeGuard, TypeVar, cast

from loopwarden._log import describe

__all__ = [
    "MAX_VISIBILITY",
    "as_tuple",
    "check_callable",
    "check_plain",
    "is_coroutine_function",
    "is_number",
    "is_wait",
    "is_whole",
]

T = TypeVar("T")

#: Seconds that a lease may last, and a message stay away, as in SQS.
MAX_VISIBILITY = 43_200
#: A larger whole number cannot be made a float.
_LARGEST = sys.float_info.max


def is_whole(value: object) -> TypeGuard[int]:
    """Say whether it is a whole number; True is none."""
    return issubclass(type(value), int) and type(value) is not bool


def is_number(value: object) -> TypeGuard[float]:
    """Say whether it is a finite number: an int or a float, or one that is derived from them, as NumPy's are."""
    return (is_whole(value) or issubclass(type(value), float)) and -_LARGEST <= cast("float", value) <= _LARGEST


def is_wait(value: object) -> TypeGuard[float]:
    """Say whether it is a number of seconds that one can wait for, for ever included."""
    return is_number(value) or (issubclass(type(value), float) and math.isinf(cast("float", value)))


def as_tuple(parameter: str, values: Iterable[T], what: str) -> tuple[T, ...]:
    """Return several things as a tuple; a text is one thing, and a mapping none of them.

    Raises:
        TypeError: if it is no list of things.
    """
    given: object = values  # a caller may have no types
    if isinstance(given, str | bytes | bytearray | Mapping | type) or not hasattr(given, "__iter__"):
        raise TypeError(f"{parameter} must be a list of {what}, got {describe(values)}")
    return tuple(values)


def check_callable(parameter: str, value: object) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: if it cannot.
    """
    if not callable(value):
        raise TypeError(f"{parameter} must be callable, got {describe(value)}")


def is_coroutine_function(function: object) -> bool:
    """Say whether it is a coroutine function, or an object with one as its ``__call__``."""
    call: object = getattr(type(function), "__call__", None)  # noqa: B004  it is looked into
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_plain(parameter: str, function: object) -> None:
    """Refuse a function, or an object with one as its ``__call__``, whose call does nothing yet.

    Raises:
        TypeError: if it is a coroutine function or a generator.
    """
    if _is_unfinished(function) or _is_unfinished(getattr(type(function), "__call__", None)):  # noqa: B004  it is looked into
        raise TypeError(
            f"{parameter} must be a plain function, but {describe(function)} is a coroutine or generator function: let"
            " a plain one run it, as asyncio.run(…) does"
        )


def _is_unfinished(function: object) -> bool:
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )
