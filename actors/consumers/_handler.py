"""What a handler must be: a plain function, which has done its work when it returns."""

from __future__ import annotations

import inspect
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, cast

from loopwarden._log import describe

__all__ = ["check_handler", "refuse_unfinished"]


def check_handler(handler: object) -> None:
    """Refuse what cannot be a handler.

    Raises:
        TypeError: if it cannot be called, or is a coroutine function or a generator.
    """
    if not callable(handler):
        raise TypeError(f"handler must be something to call, got {describe(handler)}")
    if inspect.iscoroutinefunction(handler) or inspect.isgeneratorfunction(handler):
        raise TypeError(f"handler must be a plain function, but {handler!r} is a coroutine function or a generator")


def refuse_unfinished(result: object) -> None:
    """Raise if a handler has returned before it has done anything, as a coroutine function or a generator does."""
    if not isinstance(result, CoroutineType | GeneratorType | AsyncGeneratorType):
        return
    unfinished = cast("Any", result)
    if not isinstance(result, AsyncGeneratorType):
        unfinished.close()
    raise TypeError(f"a handler must be a plain function, but this one returned a {type(unfinished).__name__}")
