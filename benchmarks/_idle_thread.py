"""The least that can wait and be told to stop, for `shutdown.py`: a bare thread, a queue, a sentinel."""

from __future__ import annotations

import queue
import signal
import threading
from typing import TYPE_CHECKING

import pykka
from pydantic import BaseModel

if TYPE_CHECKING:
    from types import FrameType

#: What a process of ours imports at least: most of the time is the interpreter's, which takes all that down again.
#: ``import pydantic`` alone would import next to nothing.
IMPORTED = (pykka.ThreadingActor, BaseModel)

if __name__ == "__main__":
    jobs: queue.SimpleQueue[None] = queue.SimpleQueue()

    def stop(_number: int, _frame: FrameType | None) -> None:
        """Put the sentinel."""
        jobs.put(None)

    signal.signal(signal.SIGTERM, stop)
    loop = threading.Thread(target=jobs.get)  # noqa: TID251  the bare thing, to compare with
    loop.start()
    print("ready", flush=True)
    loop.join()
