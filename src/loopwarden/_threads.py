"""Threads that work for others: one job after another, side by side, or a single one; and where work enters."""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar, final

from loopwarden._blocking import CURRENT, Blocking
from loopwarden._log import report
from loopwarden._ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import WorkQueue

__all__ = ["Inlet", "SerialExecutor", "ThreadCache", "run_in_thread"]

W = TypeVar("W")


class _End(Enum):
    """Comes after the last thing that was accepted."""

    END = "end"


@final
class Inlet(Generic[W]):
    """A queue for one worker that is closed once, with an exact border between before and after.

    What `post` accepted comes out of `take`, in order; what it refused never does. The border needs a lock, so
    neither `post` nor `close` is for signal handlers.

    >>> inlet: Inlet[str] = Inlet()
    >>> inlet.post("accepted")
    True
    >>> inlet.close()
    >>> inlet.post("refused")
    False
    >>> inlet.take(), inlet.take()
    ('accepted', None)
    """

    __slots__ = ("_accepted", "_closed", "_lock")

    def __init__(self, blocking: Blocking | None = None) -> None:
        if blocking is None:
            blocking = CURRENT.get()
        self._lock = blocking.lock()  # guards _closed together with the order of _accepted: END comes last
        self._accepted: WorkQueue[W | _End] = blocking.queue()
        self._closed = False

    def post(self, work: W) -> bool:
        """Accept ``work``, unless the inlet is closed; wakes the worker."""
        with self._lock:
            if self._closed:
                return False
            self._accepted.put(work)
            return True

    def close(self) -> None:
        """Refuse from now on; wakes the worker. Closing again changes nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._accepted.put(_End.END)

    @property
    def closed(self) -> bool:
        """True from the first `close` on."""
        return self._closed

    def take(self) -> W | None:
        """Block until there is work; None once the inlet is closed and all that it accepted was taken."""
        work = self._accepted.get()  # woken by post and close
        if isinstance(work, _End):
            self._accepted.put(work)  # for the next call, which must not block either
            return None
        return work

    def __repr__(self) -> str:
        return f"<Inlet, {'closed' if self._closed else 'open'}>"


@final
class SerialExecutor:
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


def run_in_thread(job: Callable[[], object], name: str, blocking: Blocking) -> Ticket[None]:
    """Run a single job, on a thread for it alone; what it raises is logged. The ticket resolves when it has ended."""
    ended: Ticket[None] = Ticket(blocking)

    def work() -> None:
        try:
            job()
        finally:
            ended.complete(None)

    helper = SerialExecutor(name, blocking)
    helper.submit(work)
    helper.close()
    return ended


@final
class ThreadCache:
    """Runs each job at once: on the thread that waits for one, or on a new one.

    One job that hangs keeps none of the others waiting. One thread is kept for the next job, until the cache is closed.
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
        return f"<ThreadCache {self._name!r}, {'closed' if self._closed else 'open'}>"
