"""The least that can be done: one thread with a queue, and a sentinel at SIGTERM. What its end takes is the measure."""

from __future__ import annotations

import queue
import signal
import threading

import pydantic
import pykka


def main() -> None:
    jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, lambda _number, _frame: jobs.put(None))
    worker = threading.Thread(target=jobs.get)  # noqa: TID251  without anything of ours
    worker.start()
    print(f"waiting, with {pykka.__name__} and {pydantic.__name__}", flush=True)
    worker.join()


if __name__ == "__main__":
    main()
