"""Where in a test something was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["OURS", "place_of"]

#: Said of what no line of others has made.
OURS = "by a thread of ours"


def place_of(frame: FrameType | None) -> str:
    """Return the innermost line that is not ours, as text."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in {"loopwarden", "pykka", "threading", "contextlib"}:
            return f"at {frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_qualname}"
        frame = frame.f_back
    return OURS
