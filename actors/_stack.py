"""What a thread is doing, as text."""

from __future__ import annotations

import sys
import traceback

__all__ = ["stack_of"]


def stack_of(thread_id: int | None) -> str:
    """Return the stack of a thread."""
    if thread_id is None:
        return "its thread is not known"
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  there is no other way
    return "its thread has ended" if frame is None else "".join(traceback.format_stack(frame))
