"""`WorkerGroup`: one run of a loop with workers: who is at work, and what ended them."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, final

from loopwarden._ticket import Ticket, write
from loopwarden.actors.loop._current import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking
    from loopwarden.actors.consumers._mailbox_worker import MailboxWorker

__all__ = ["WorkerGroup"]


@final
class WorkerGroup:
    """Knows which workers are at work; it is over when the last of them has left.

    A worker that was replaced is no longer one of them: when and how it ends no longer matters.

    Args:
        job: What a worker does, on its thread.
        failed: Called when a worker has raised, on its thread.
        name: What the threads are called.
        blocking: The seam.
    """

    def __init__(
        self,
        job: Callable[[MailboxWorker], None],
        failed: Callable[[], None],
        *,
        name: str,
        blocking: Blocking,
    ) -> None:
        self._job = job
        self._failed = failed
        self._name = name
        self._blocking = blocking
        self._lock = blocking.lock()  # guards _at_work together with failures
        self._at_work: set[MailboxWorker] = set()
        self._loop: str | None = None  # the name of the loop, if an actor runs it
        self._owner: object = None  # that actor
        #: What the workers raised, in the order in which they did.
        self.failures: list[BaseException] = []
        #: Resolves when the last worker has left.
        self.over: Ticket[None] = Ticket(blocking)
        #: The threads of those at work.
        self.threads: set[int] = set()

    def begin(self, workers: list[MailboxWorker]) -> None:
        """Let them work, and return when all have left: a single one on this thread, several on their own.

        Raises:
            RuntimeError: if there is no thread for one of them; those that were started are still at work.
        """
        self._at_work = set(workers)
        self._loop, self._owner = current.loop, current.owner
        if len(workers) == 1:
            self.work(workers[0])
            return
        # This thread is none of them, so that each of them can be replaced.
        for index, worker in enumerate(workers):
            try:
                self._start(worker)
            except BaseException:
                for never_started in workers[index:]:
                    self._leave(never_started, None)
                raise
        self.over.wait()  # resolved by the last worker to leave

    def work(self, worker: MailboxWorker) -> None:
        """Do a worker's job; on its thread."""
        self.threads.add(threading.get_ident())
        current.loop, current.owner = self._loop, self._owner
        error: BaseException | None = None
        try:
            self._job(worker)
        except BaseException as raised:  # noqa: BLE001  isolates user code: `run` raises it when all have left
            error = raised
        finally:
            self.threads.discard(threading.get_ident())
            self._leave(worker, error)
            write(worker.ended)

    def fail(self, error: BaseException) -> None:
        """Take note of what ends the loop, although it was raised elsewhere than by a worker's job."""
        with self._lock:
            self.failures.append(error)
        self._failed()

    def is_at_work(self, worker: MailboxWorker) -> bool:
        """Say whether a worker has not left."""
        return worker in self._at_work

    def replace(self, old: MailboxWorker, new: MailboxWorker) -> None:
        """Let ``new`` work in the place of ``old``, if that is at work.

        If there is no thread for it the others go on without it.
        """
        with self._lock:
            if old not in self._at_work:
                return
            self._at_work.discard(old)
            self._at_work.add(new)
        try:
            self._start(new)
        except RuntimeError:
            self._leave(new, None)

    def _start(self, worker: MailboxWorker) -> None:
        self._blocking.start_thread(partial(self.work, worker), f"{self._name}-worker-{worker.progress.worker}")

    def _leave(self, worker: MailboxWorker, error: BaseException | None) -> None:
        with self._lock:
            if worker not in self._at_work:
                return
            self._at_work.discard(worker)
            if error is not None:
                self.failures.append(error)
            is_last = not self._at_work
        if error is not None:
            self._failed()
        if is_last:
            write(self.over)

    def __repr__(self) -> str:
        return f"<WorkerGroup, {len(self._at_work)} at work, {len(self.failures)} failed>"
