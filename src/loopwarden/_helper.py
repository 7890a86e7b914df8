"""`Helper`: the thread that makes an actor's blocking calls for it; and `run_apart`, a thread for a single one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from loopwarden._inlet import Inlet
from loopwarden._log import report
from loopwarden._ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking

__all__ = ["Helper", "run_apart"]


@final
class Helper:
    """Runs jobs one after another, in order, on a thread that the first job starts.

    Owned by one actor, which alone submits and closes. If no thread can be started, as while the interpreter
    is exiting, a job runs on the caller's thread: an actor that blocks is better than a loop that is never told
    to stop.
    """

    def __init__(self, name: str, blocking: Blocking) -> None:
        self._name = name
        self._blocking = blocking
        self._jobs: Inlet[Callable[[], object]] = Inlet(blocking)
        self._has_thread = False

    @property
    def is_used(self) -> bool:
        """True once it has had a job for its thread."""
        return self._has_thread

    def submit(self, job: Callable[[], object]) -> None:
        """Run ``job`` soon; what it raises is logged."""
        if not self._has_thread:
            try:
                self._blocking.start_thread(self._run, self._name)
            except RuntimeError:
                self._attempt(job)
                return
            self._has_thread = True
        self._jobs.post(job)

    def close(self) -> None:
        """Let the thread end after the jobs that it has."""
        self._jobs.close()

    def _run(self) -> None:
        while (job := self._jobs.take()) is not None:
            self._attempt(job)

    def _attempt(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  isolates user code: the next job must run too
            report(logging.ERROR, "a job of %s raised", self._name, error=error)


def run_apart(job: Callable[[], object], name: str, blocking: Blocking) -> Ticket[None]:
    """Run a single job, on a thread for it alone; what it raises is logged. The ticket resolves when it has ended."""
    ended: Ticket[None] = Ticket(blocking)

    def work() -> None:
        try:
            job()
        finally:
            ended.complete(None)

    helper = Helper(name, blocking)
    helper.submit(work)
    helper.close()
    return ended
