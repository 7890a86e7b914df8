"""`Helper`: the thread that makes an actor's blocking calls for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from loopwarden._blocking import SYSTEM, Blocking
from loopwarden.actors._inlet import Inlet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Helper"]

logger = logging.getLogger("loopwarden")


@final
class Helper:
    """Runs jobs one after another, in order, on a thread that the first job starts.

    Owned by one actor, which alone submits and closes. If no thread can be started, as while the interpreter
    is exiting, a job runs on the caller's thread: an actor that blocks is better than a loop that is never told
    to stop.
    """

    def __init__(self, name: str, blocking: Blocking = SYSTEM) -> None:
        self._name = name
        self._blocking = blocking
        self._jobs: Inlet[Callable[[], None]] = Inlet(blocking)
        self._has_thread = False

    def submit(self, job: Callable[[], None]) -> None:
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

    def _attempt(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException:  # isolates user code: the next job must run too
            logger.exception("a job of %s raised", self._name)
