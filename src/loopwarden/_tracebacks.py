"""Tracebacks as they are logged: from the frame of the user's code on, and not without end."""

from __future__ import annotations

import os
import sysconfig
import traceback
from typing import TYPE_CHECKING

import pydantic
import pykka

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MAX_TRACEBACK", "cut", "from_user_code", "is_users", "shortened", "trim"]

#: Characters of a traceback that are kept, half of them from its end, where the error stands.
MAX_TRACEBACK = 20_000
_OURS = os.path.dirname(__file__) + os.sep  # noqa: PTH120  a string, as in frames; a Path per frame would be slow
#: What may have raised because of us, without any code of the user's.
_BELOW = (
    *(os.path.dirname(str(each.__file__)) + os.sep for each in (pykka, pydantic)),  # noqa: PTH120  as above
    "<frozen ",
)
_trace_of = vars(BaseException)["__traceback__"]
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple(os.path.join(_STANDARD, each) for each in ("site-packages", "dist-packages"))  # noqa: PTH118  as above


def from_user_code(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of ours that lead to the user's code; as it is, if it has none of that."""
    first = trace
    while first is not None and _file_of(first).startswith(_OURS):
        first = first.tb_next
    each = first
    while each is not None:
        if is_users(_file_of(each)):
            return first
        each = each.tb_next
    return trace


def trim(error: BaseException) -> None:
    """Let the traceback of an error begin as `from_user_code` says; runs no code of the error's class."""
    _trace_of.__set__(error, from_user_code(_trace_of.__get__(error)))


def _file_of(trace: TracebackType) -> str:
    return trace.tb_frame.f_code.co_filename


def is_users(path: str) -> bool:
    """Say whether a file is neither ours, nor Python's own, nor of what we are built on."""
    if path.startswith((_OURS, *_BELOW)):
        return False
    return not path.startswith(_STANDARD) or path.startswith(_INSTALLED)


def shortened(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the text of a traceback, cut, if it is too long; else None."""
    text = "".join(traceback.format_exception(type(error), error, trace))
    return cut(text.removesuffix("\n")) if len(text) > MAX_TRACEBACK else None


def cut(text: str) -> str:
    """Return head and tail of a text that is too long."""
    if len(text) <= MAX_TRACEBACK:
        return text
    half = MAX_TRACEBACK // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
