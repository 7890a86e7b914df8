"""Where threads are."""

from __future__ import annotations

import gc
import sys
import traceback
from typing import TYPE_CHECKING

from loopwarden._tracebacks import is_users

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["current_frames", "stack_of"]


def current_frames() -> dict[int, FrameType]:
    """Return the frame in which each thread is, by the thread's id.

    Pythons before 3.11.9 and 3.12.3 hold a lock meanwhile that every thread needs to begin and to end. If the garbage
    collector comes just then, and runs a user's finaliser, another thread gets its turn, waits for that lock, and the
    whole process stands still. So the collector has to wait.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  there is no other way
    finally:
        if is_collecting:
            gc.enable()


def stack_of(thread_id: int | None) -> str:
    """Return the stack of a thread, from the first frame of the user's code on, if it has one."""
    if thread_id is None:
        return "its thread is not known"
    frame = current_frames().get(thread_id)
    if frame is None:
        return "its thread has ended"
    frames = traceback.extract_stack(frame)
    first = next((index for index, each in enumerate(frames) if is_users(each.filename)), 0)
    return "".join(traceback.StackSummary.from_list(frames[first:]).format())
