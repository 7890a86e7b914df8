"""What a thread is doing, as text."""

from __future__ import annotations

import traceback

from loopwarden._frames import current_frames

__all__ = ["stack_of"]


def stack_of(thread_id: int | None) -> str:
    """Return the stack of a thread."""
    if thread_id is None:
        return "its thread is not known"
    frame = current_frames().get(thread_id)
    return "its thread has ended" if frame is None else "".join(traceback.format_stack(frame))
