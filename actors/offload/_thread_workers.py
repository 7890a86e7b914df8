"""`ThreadWorkers`: threads that run functions, one after another."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

from loopwarden._ticket import Ticket, write
from loopwarden.actors.runtime._zombies import ZOMBIES
from loopwarden.errors import ActorDeadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking, WorkQueue

    Done: TypeAlias = Callable[[Any, BaseException | None], None]

__all__ = ["OwnHand", "Runner", "ThreadWorkers", "Workers", "name_of"]


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called, for the text of errors."""
    return str(getattr(function, "__qualname__", type(function).__name__))


class Workers(Protocol):
    """Runs functions somewhere else."""

    #: How many functions were begun, perhaps, and will never return.
    lost: int

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        """Run it once, and then call ``done`` with what it returned or raised, on any thread; does not block.

        Raises:
            ActorDeadError: if the workers are closed; as with any other error, ``done`` is not called then.
            RuntimeError: if there is no thread for it.
        """
        ...

    def close(self) -> list[Done]:
        """Begin nothing more, and end idle workers; return the ``done`` of what will not be begun."""
        ...

    def give_up(self) -> None:
        """Wait no more for what was begun before the close."""
        ...

    def drop(self) -> None:
        """End, because the pool is gone; takes no lock, because the garbage collector calls it."""
        ...


class Runner(Protocol):
    """With what one thread of the workers runs functions; used by that thread alone."""

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> object:
        """Return what the function returns, or raise what it raises."""
        ...

    def end(self) -> None:
        """End with the thread."""
        ...


@final
class OwnHand:
    """Runs functions on the thread itself."""

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> object:
        """Call the function."""
        return function(*args)

    def end(self) -> None:
        """Leave nothing behind: there is nothing."""


@final
class ThreadWorkers:
    """Threads, as many as are needed, which stay until the close.

    Args:
        name: What they are called.
        most: How many there may be.
        blocking: The seam.
        make_runner: Makes the runner of each thread.
    """

    def __init__(self, name: str, most: int, blocking: Blocking, make_runner: Callable[[], Runner] = OwnHand) -> None:
        self._name = name
        self._most = most
        self._blocking = blocking
        self._hire = make_runner
        self.lost = 0  # a thread cannot die
        # None says that it is over; the thread that takes it puts it back for the next, so one is enough for all.
        self._jobs: WorkQueue[tuple[Callable[..., Any], tuple[Any, ...], Done] | None] = blocking.queue()
        # Guards _is_closed together with what is put and begun, the counts, and who is busy.
        self._lock = blocking.lock()
        self._is_closed = False
        self._free = 0  # threads that wait, and that no job counts on
        self._threads = 0
        self._busy: set[Ticket[None]] = set()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        """Hand it to a thread that is free, or to a new one, or to the first that will be."""
        with self._lock:
            self._refuse_if_closed()
            needs_thread = not self._free and self._threads < self._most
            if self._free:
                self._free -= 1
            elif needs_thread:
                self._threads += 1
            number = self._threads
        if needs_thread:
            try:
                self._blocking.start_thread(self._work, f"{self._name}-offload-{number}")
            except RuntimeError:
                with self._lock:
                    self._threads -= 1
                    is_alone = not self._threads
                if is_alone:
                    raise
        with self._lock:
            self._refuse_if_closed()  # again: a job behind the last word would never be taken
            self._jobs.put((function, args, done))

    def close(self) -> list[Done]:
        """Let the threads end; what none of them has begun will not be."""
        with self._lock:
            self._is_closed = True
        dropped: list[Done] = []
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    dropped.append(job[2])
        self._jobs.put(None)
        return dropped

    def give_up(self) -> None:
        """Count those that are busy as zombies: a thread cannot be killed."""
        with self._lock:
            busy = tuple(self._busy)
        for each in busy:
            ZOMBIES.add(f"{self._name}-offload", each)

    def drop(self) -> None:
        """Let the threads end; there is no job, because each would keep its caller alive."""
        self._jobs.put(None)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise self._refusal()

    def _refusal(self) -> ActorDeadError:
        return ActorDeadError(f"OffloadPool {self._name!r}")

    def _work(self) -> None:
        ended: Ticket[None] = Ticket(self._blocking)
        hand = self._hire()
        try:
            while (job := self._jobs.get()) is not None:
                function, args, done = job
                result: object = None
                error: BaseException | None = None
                try:
                    self._begin(ended)
                    result = hand.call(function, args)
                except BaseException as raised:  # noqa: BLE001  isolates user code: it is the answer
                    error = raised
                with self._lock:
                    self._busy.discard(ended)
                    self._free += 1
                done(result, error)
                del job, function, args, done, result, error  # nothing is kept alive while it waits
            self._jobs.put(None)
        finally:
            hand.end()
            write(ended)

    def _begin(self, ended: Ticket[None]) -> None:
        with self._lock:
            self._refuse_if_closed()  # it was taken just before the close
            self._busy.add(ended)
