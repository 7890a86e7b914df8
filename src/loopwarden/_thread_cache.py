"""`Crew`: helper threads that make a supervisor's blocking calls for it, side by side."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from loopwarden._log import report
from loopwarden._ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking, WorkQueue

__all__ = ["Crew"]


@final
class Crew:
    """Runs each job at once: on the thread that waits for one, or on a new one.

    One job that hangs keeps none of the others waiting. One thread is kept for the next job, until the crew is closed.
    """

    def __init__(self, name: str, blocking: Blocking) -> None:
        self._name = name
        self._blocking = blocking
        self._lock = blocking.lock()  # guards _idle and _closed together with what is in _handed
        self._handed: WorkQueue[Callable[[], None] | None] = blocking.queue()
        self._idle = False
        self._closed = False

    def submit(self, job: Callable[[], object]) -> Ticket[None]:
        """Run ``job``; the ticket resolves when it has ended, whatever it raised.

        Raises:
            RuntimeError: if there is no thread for it.
        """
        done: Ticket[None] = Ticket(self._blocking)

        def work() -> None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001  isolates user code: the thread goes on to the next job
                report(logging.ERROR, "a job of %s raised", self._name, error=error)
            finally:
                done.complete(None)

        with self._lock:
            is_taken = self._idle
            if is_taken:
                self._idle = False
                self._handed.put(work)
        if not is_taken:
            self._blocking.start_thread(lambda: self._run(work), self._name)
        return done

    def close(self) -> None:
        """Let each thread end when it has done its job; wakes the one that waits."""
        with self._lock:
            self._closed = True
            if self._idle:
                self._idle = False
                self._handed.put(None)

    def _run(self, job: Callable[[], None] | None) -> None:
        while job is not None:
            job()
            with self._lock:
                if self._closed or self._idle:
                    return
                self._idle = True
            job = None  # an idle thread keeps no job alive
            job = self._handed.get()  # woken by submit and close

    def __repr__(self) -> str:
        return f"<Crew {self._name!r}, {'closed' if self._closed else 'open'}>"
