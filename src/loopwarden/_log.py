"""Saying what went wrong, on threads that must survive saying it.

There is no NullHandler: until logging is set up, Python prints warnings and errors, and a loop that dies in silence is
what Loopwarden is there to prevent.
"""

from __future__ import annotations

import logging
from contextlib import suppress

__all__ = ["describe", "report"]

logger = logging.getLogger("loopwarden")


def report(level: int, text: str, *args: object, error: BaseException | None = None) -> None:
    """Log, and never raise: filters, handlers and the ``repr`` of an exception are other people's code."""
    with suppress(BaseException):  # whoever reports here has tickets to resolve
        logger.log(level, text, *args, exc_info=error)


def describe(thing: object) -> str:
    """Return ``repr(thing)``, or its type if its ``repr`` raises."""
    try:
        return repr(thing)
    except BaseException:  # noqa: BLE001  isolates user code
        return f"<{type(thing).__name__} without a repr>"
