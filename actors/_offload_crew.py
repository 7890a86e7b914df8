"""`ThreadCrew`: threads that run functions, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

from loopwarden._ticket import Ticket, write
from loopwarden.actors._zombies import ZOMBIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking, WorkQueue

    Done: TypeAlias = Callable[[Any, BaseException | None], None]

__all__ = ["OffloadCrew", "ThreadCrew"]


class OffloadCrew(Protocol):
    """Runs functions somewhere else."""

    #: How many functions were begun, perhaps, and will never return.
    lost: int

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        """Run it once, and then call ``done`` with what it returned or raised, on any thread; does not block.

        Raises:
            RuntimeError: if it cannot be run; then ``done`` is not called.
        """
        ...

    def close(self) -> None:
        """End; nothing more will be run."""
        ...


@final
class ThreadCrew:
    """Threads, as many as are needed, which stay until the close.

    Args:
        name: What they are called.
        most: How many there may be.
        blocking: The seam.
    """

    def __init__(self, name: str, most: int, blocking: Blocking) -> None:
        self._name = name
        self._most = most
        self._blocking = blocking
        self.lost = 0  # a thread cannot die
        self._jobs: WorkQueue[tuple[Callable[..., Any], tuple[Any, ...], Done] | None] = blocking.queue()
        self._lock = blocking.lock()  # guards the counts against two submits at once
        self._free = 0  # threads that wait, and nobody counts on
        self._ended: list[Ticket[None]] = []
        self._busy: set[Ticket[None]] = set()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        """Hand it to a thread that is free, or to a new one, or to the first that will be."""
        with self._lock:
            is_one_free = self._free > 0
            if is_one_free:
                self._free -= 1
            needs_thread = not is_one_free and len(self._ended) < self._most
            ended: Ticket[None] = Ticket(self._blocking)
            if needs_thread:
                self._ended.append(ended)
        if needs_thread:
            try:
                self._blocking.start_thread(lambda: self._work(ended), f"{self._name}-offload-{len(self._ended)}")
            except RuntimeError:
                with self._lock:
                    self._ended.remove(ended)
                    is_alone = not self._ended
                if is_alone:
                    raise
        self._jobs.put((function, args, done))

    def close(self) -> None:
        """Let the threads end; one that is busy for ever is a zombie."""
        with self._lock:
            ended, self._ended = self._ended, []
            busy, self._free = tuple(self._busy), 0
        for _ in ended:
            self._jobs.put(None)
        for each in busy:
            ZOMBIES.add(f"{self._name}-offload", each)

    def _work(self, ended: Ticket[None]) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                self._busy.add(ended)
                function, args, done = job
                try:
                    result, error = function(*args), None
                except BaseException as raised:  # noqa: BLE001  isolates user code: it is the answer
                    result, error = None, raised
                self._busy.discard(ended)
                with self._lock:
                    self._free += 1
                done(result, error)
                del job, function, args, done, result, error  # nothing is kept alive while it waits
        finally:
            write(ended)
