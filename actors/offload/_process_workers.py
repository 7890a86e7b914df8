"""`ProcessWorkers`: threads with a process each, for work that keeps the interpreter busy."""

from __future__ import annotations

import atexit
import fcntl
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, final

from loopwarden._blocking import SYSTEM
from loopwarden._log import describe, report
from loopwarden.actors.offload._thread_workers import ThreadWorkers, name_of
from loopwarden.actors.runtime._exit_hook import stop_forgotten
from loopwarden.errors import ActorDeadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from typing_extensions import Buffer

    from loopwarden._blocking import Blocking
    from loopwarden.actors.offload._thread_workers import Done

__all__ = ["ProcessWorkers", "WorkProcess", "pack", "unpack"]

#: What a whole group of processes is sent, by Ctrl-C or by systemd: the parent's to act on, not theirs.
GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})

# From the class's own dictionary, because type checkers take the built-in function in it for a method.
_loads: Callable[[Buffer], Any] = vars(ForkingPickler)["loads"]


@final
class WorkProcess:
    """A process of ours, seen from its parent; one thread owns it, and others may only kill it.

    It is spawned, not forked: a fork would carry our locks along, in whatever state they are.

    Args:
        name: What it is called.

    Raises:
        OSError: if the system allows no more processes.
    """

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        # No daemon: those may have no children of their own, and a function may want some.
        self._process = context.Process(target=_serve, args=(there,), name=name, daemon=False)
        try:
            _start(self._process)
            self._end = _end_of(self._process)
        except BaseException:
            self._connection.close()
            raise
        finally:
            there.close()  # or there would be no end of file when the process is gone

    @property
    def has_ended(self) -> bool:
        """True from its end on, for whatever reason."""
        return bool(connection.wait([self._end], 0))

    def ask(self, request: bytes) -> bytes | None:
        """Hand it a job, and block until it answers; None if it has died, or is killed."""
        with suppress(EOFError, OSError):
            self._connection.send_bytes(request)
            connection.wait([self._connection, self._end])
            if self._connection.poll():  # also if it has ended: it may have answered before
                return self._connection.recv_bytes()
        return None

    def kill(self) -> None:
        """End it at once; only before `end`, which gives its number back to the system."""
        self._process.kill()

    def end(self, patience: float) -> int | None:
        """Let it end within ``patience`` seconds, kill it otherwise, and reap it; return its exit code."""
        self._connection.close()
        connection.wait([self._end], patience)
        self._process.kill()
        self._process.join()
        os.close(self._end)
        return self._process.exitcode


def pack(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return a request; raises what pickling raises."""
    # No view of a buffer: the frames of an error may keep it until the interpreter ends, which complains about a view.
    return bytes(ForkingPickler.dumps((function, args)))


def unpack(answer: bytes) -> object:
    """Return the result in an answer, or raise the error in it, with a note of where it was raised."""
    result, error, trace = _loads(answer)
    if error is None:
        return result
    with suppress(Exception):  # its notes are other people's
        BaseException.add_note(error, f"in another process:\n{trace}")
    raise error


def _start(process: BaseProcess) -> None:
    """Start a process; it inherits what is blocked here, until `_serve` ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # every process needs it, and starting it unblocks the same signals
        signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_of(process: BaseProcess) -> int:
    """Return what can be read once a process has ended.

    Its pipes tell it too, but not as long as a child of its own lives on and has inherited them: elsewhere than on
    Linux, such a child has to be waited for.
    """
    if sys.platform == "linux" and process.pid is not None:
        with suppress(OSError):  # an old kernel; or it has ended already, and so have its pipes
            return os.pidfd_open(process.pid)
    return os.dup(process.sentinel)


# In that process


def _serve(asked: Connection) -> None:
    """Answer one request after another, until the parent closes the connection or is gone."""
    for each in GROUP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        SYSTEM.start_thread(partial(_end_with, parent), "loopwarden-parent")
        _be_killed_with(parent)
    with suppress(EOFError, OSError):
        while True:
            asked.send_bytes(_answer(asked.recv_bytes()))


def _answer(request: bytes) -> Buffer:
    """Run what was asked for; whatever comes of it is an answer that can be read."""
    try:
        function, args = _loads(request)
        return ForkingPickler.dumps((function(*args), None, ""))
    except BaseException as error:  # noqa: BLE001  isolates user code
        trace = "".join(traceback.format_exception(error))
        try:
            answer = ForkingPickler.dumps((None, error, trace))
            if isinstance(_loads(answer)[1], BaseException):
                return answer
        except BaseException:  # noqa: BLE001, S110  as above; what it is told as instead comes next
            pass
        return ForkingPickler.dumps((None, RuntimeError(describe(error)), trace))


def _be_killed_with(parent: BaseProcess) -> None:
    """Have the system kill this process when its parent is gone, also in the middle of code that holds the GIL.

    Nothing is written to the pipe that multiprocessing keeps to a child, so the only signal that comes from it is that
    of its end. ``PR_SET_PDEATHSIG`` would not do: it counts the end of the thread that made the process, and a pool's
    threads end before the parent does.
    """
    if sys.platform != "linux":
        return  # a signal of the system's choice can be had from a pipe only there
    with suppress(OSError):
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent is gone, however that was: nothing else would."""
    parent.join()
    os._exit(1)


#: Seconds that an idle process has to end by itself, so that what its functions have left for its exit is done.
GRACE = 1.0


@final
class ProcessWorkers:
    """A `ThreadWorkers` whose threads hand each function to a process of their own.

    A process is made when the first function needs it, and anew after it died. Its death concerns only the one
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
        self._threads = ThreadWorkers(name, most, blocking, partial(_ProcessHand, self, name))

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
            report(logging.ERROR, "%s", text, pool=self._name, exit_code=exit_code)
        return BrokenProcessPool(text)


@final
class _ProcessHand:
    """One process at a time."""

    def __init__(self, workers: ProcessWorkers, name: str) -> None:
        self._workers = workers
        self._name = name
        self._process: WorkProcess | None = None  # None also while it is asked: only one that answered is asked again

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> object:
        """Run a function in the process.

        Raises:
            BrokenProcessPool: if the process dies meanwhile, so that it is not known what was done.
        """
        request = pack(function, args)
        process, self._process = self._ready(), None
        answer: bytes | None = None
        try:
            answer = self._workers.ask(process, request)
        finally:
            exit_code = process.end(0) if answer is None else None
        if answer is None:
            raise self._workers.lose(function, exit_code)
        self._process = process
        return unpack(answer)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end(GRACE)

    def _ready(self) -> WorkProcess:
        if self._process is not None and self._process.has_ended:
            exit_code = self._process.end(0)
            text = "an idle process of OffloadPool %r died with exit code %s"
            report(logging.ERROR, text, self._name, exit_code, pool=self._name, exit_code=exit_code)
            self._process = None
        return self._process or WorkProcess(f"{self._name}-offload")


# Once more: what is registered last is called first, and by now `multiprocessing` has registered that it waits for all
# processes, which it would do for ever if a forgotten pool has one that hangs.
atexit.register(stop_forgotten)
