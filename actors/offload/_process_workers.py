"""`ProcessCrew`: threads with a process each, for work that keeps the interpreter busy."""

from __future__ import annotations

import atexit
import logging
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any, final

from loopwarden._log import report
from loopwarden.actors.offload._thread_workers import ThreadCrew, name_of
from loopwarden.actors.offload._work_process import WorkProcess, pack, unpack
from loopwarden.actors.runtime._exit_hook import stop_forgotten
from loopwarden.errors import ActorDeadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking
    from loopwarden.actors.offload._thread_workers import Done

__all__ = ["ProcessCrew"]

#: Seconds that an idle process has to end by itself, so that what its functions have left for its exit is done.
GRACE = 1.0


@final
class ProcessCrew:
    """A `ThreadCrew` whose threads hand each function to a process of their own.

    A process is made when the first function needs it, and anew after it died. Its death concerns nobody but the one
    function that it ran.

    Args:
        name: What threads and processes are called.
        most: How many there may be.
        blocking: The seam.
    """

    def __init__(self, name: str, most: int, blocking: Blocking) -> None:
        self._name = name
        self._lock = blocking.lock()  # guards _is_given_up together with who is busy, and the count
        self._is_given_up = False
        self._busy: set[WorkProcess] = set()
        #: How many functions were lost with a process that died.
        self.lost = 0
        self._threads = ThreadCrew(name, most, blocking, partial(_ProcessHand, self, name))

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        """Hand it to a thread, which hands it to its process."""
        self._threads.run(function, args, done)

    def close(self) -> list[Done]:
        """Let the threads end, and with each its process."""
        return self._threads.close()

    def give_up(self) -> None:
        """Kill what is still busy: its threads see that, and end."""
        with self._lock:
            self._is_given_up = True
            for process in self._busy:
                process.kill()

    def drop(self) -> None:
        """Let the threads end, and with each its process."""
        self._threads.drop()

    def ask(self, process: WorkProcess, request: bytes) -> bytes | None:
        """Have a process answer, or be killed."""
        with self._lock:
            if self._is_given_up:
                raise ActorDeadError(f"OffloadPool {self._name!r}")
            self._busy.add(process)
        try:
            return process.ask(request)
        finally:
            with self._lock:
                self._busy.discard(process)

    def lose(self, function: Callable[..., Any], exit_code: int | None) -> BrokenProcessPool:
        """Count a function that was lost, and tell of it unless we have killed its process ourselves."""
        text = f"a process of OffloadPool {self._name!r} died with exit code {exit_code} in {name_of(function)}"
        with self._lock:
            self.lost += 1
            is_news = not self._is_given_up
        if is_news:
            report(logging.ERROR, "%s", text)
        return BrokenProcessPool(text)


@final
class _ProcessHand:
    """One process at a time."""

    def __init__(self, crew: ProcessCrew, name: str) -> None:
        self._crew = crew
        self._name = name
        self._process: WorkProcess | None = None  # None also while it is asked: only one that answered is asked again

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> object:
        """Run a function in the process.

        Raises:
            BrokenProcessPool: if the process dies meanwhile, so that nobody knows what was done.
        """
        request = pack(function, args)
        process, self._process = self._ready(), None
        answer: bytes | None = None
        try:
            answer = self._crew.ask(process, request)
        finally:
            exit_code = process.end(0) if answer is None else None
        if answer is None:
            raise self._crew.lose(function, exit_code)
        self._process = process
        return unpack(answer)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end(GRACE)

    def _ready(self) -> WorkProcess:
        if self._process is not None and self._process.has_ended:
            exit_code = self._process.end(0)
            report(logging.ERROR, "an idle process of OffloadPool %r died with exit code %s", self._name, exit_code)
            self._process = None
        return self._process or WorkProcess(f"{self._name}-offload")


# Once more: what is registered last is called first, and by now `multiprocessing` has registered that it waits for all
# processes, which it would do for ever if a forgotten pool has one that hangs.
atexit.register(stop_forgotten)
