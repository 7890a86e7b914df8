"""Saying what went wrong, on threads that must survive saying it, and must not wait for it.

There is no NullHandler: until logging is set up, Python prints warnings and errors, and a loop that dies in silence is
what Loopwarden is there to prevent.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from contextlib import suppress
from typing import cast

from loopwarden._blocking import CURRENT
from loopwarden._forks import at_fork
from loopwarden._log_writer import HANG_SECONDS, LogWriter
from loopwarden._running import CONTEXT, here
from loopwarden._tracebacks import cut, from_user_code, shortened

__all__ = ["describe", "flush_log", "log_in_place", "mute", "printable", "report", "type_name"]


def _prepare(record: logging.LogRecord) -> None:
    """Say what the error is, and cut the text of its traceback if that is very long."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        record.error = describe(error)
        record.exc_text = shortened(error, from_user_code(error.__traceback__))


logger = logging.getLogger("loopwarden")
_writer = LogWriter(logger, _prepare)
at_fork(in_child=_writer.begin)
atexit.register(_writer.exit)
_here = threading.local()  # .is_muted: whether this thread has nothing more to say

#: Characters of a text about an exception that are kept: enough to see what it is, and a thousand of them are not much.
MAX_TEXT = 4_000
_TEXT = "_loopwarden_text"
_name_of = type.__dict__["__name__"].__get__


def report(
    level: int,
    text: str,
    *args: object,
    error: BaseException | str | None = None,
    stack: str | None = None,
    **fields: object,
) -> None:
    """Log, and neither raise nor wait: filters, handlers and the ``repr`` of an exception are other people's code.

    The record is of this moment, thread and context, and is written on a thread for that; in a simulation at once, so
    that it has its place in the order of what happens.

    Args:
        level: How bad it is.
        text: What happened.
        args: What the text has in its ``%s``.
        error: What was raised, whose traceback begins at the first frame of the user's code; or its description, if
            the traceback is told elsewhere.
        stack: Where a thread is, as `stack_of` returns it; formatters write it below the text.
        fields: Attributes of the record, beside the loop and the message that this thread has in hand.
    """
    if hasattr(_here, "is_muted"):
        return
    with suppress(BaseException):  # the caller has tickets to resolve
        # As `Logger.isEnabledFor`, which may wait for the lock of a thread that is setting logging up.
        if logger.manager.disable >= level or level < logger.getEffectiveLevel():
            return
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  as logging itself finds its caller
        code = frame.f_code
        exc_info = None
        if isinstance(error, str):
            fields["error"] = error
        elif error is not None:
            exc_info = (type(error), error, from_user_code(error.__traceback__))
        record = logging.LogRecord(
            logger.name,
            level,
            code.co_filename,
            frame.f_lineno,
            text,
            args,
            exc_info,
            code.co_name,
            stack and cut(stack.removesuffix("\n")),
        )
        context = vars(here())
        vars(record).update({name: context[name] for name in CONTEXT if context.get(name) is not None}, **fields)
        if CURRENT.get().is_virtual:
            _writer.write_now(record)
        else:
            _writer.write(record)


def flush_log(timeout: float, patience: float = HANG_SECONDS) -> bool:
    """Wait until what was reported is written, see `LogWriter.flush`; say whether it is."""
    return _writer.flush(timeout, patience)


def log_in_place(*, on: bool) -> None:
    """Have records written by the thread that reports, before it goes on: for tests that look at them at once."""
    _writer.in_place = on


def mute() -> None:
    """Report nothing from this thread on: a test has left it behind, and it raises in the strangest places."""
    _here.is_muted = True


def describe(thing: object) -> str:
    """Return ``repr(thing)``, or its type if its ``repr`` raises; shortened if it is very long.

    An exception is described once: the code that catches it calls this first, on a thread that user code may keep
    waiting, and every later description is the same text.
    """
    known = _memory_of(thing)
    if known is not None and _TEXT in known:
        return str(known[_TEXT])
    try:
        text = repr(thing)
    except BaseException:  # noqa: BLE001  isolates user code
        text = f"<{type_name(thing)} without a repr>"
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]} and so on, {len(text)} characters in all"
    text = printable(text)
    if known is not None:
        known[_TEXT] = text
    return text


def printable(text: str) -> str:
    """Return ``text`` with line breaks and control characters escaped, so that it cannot pass for more than it is."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def type_name(thing: object) -> str:
    """Return the name of a thing's type, without running any code of its own, such as that of its metaclass."""
    return str(_name_of(type(thing)))


def _memory_of(thing: object) -> dict[str, object] | None:
    """Return where the text of an exception is kept."""
    # By type(): the class of other people's things may be a property that raises.
    if not issubclass(type(thing), BaseException):
        return None
    try:
        known: object = object.__getattribute__(thing, "__dict__")
    except BaseException:  # noqa: BLE001  isolates user code
        return None
    return cast("dict[str, object]", known) if type(known) is dict else None
