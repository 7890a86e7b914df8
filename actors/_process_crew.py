"""`ProcessCrew`: processes that run functions, for work that keeps the interpreter busy."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any, final

from loopwarden._blocking import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from multiprocessing.process import BaseProcess

    from loopwarden.actors._offload_crew import Done

__all__ = ["ProcessCrew"]


@final
class ProcessCrew:
    """The standard library's pool of processes, made anew when one of them dies.

    Processes are spawned, not forked: a fork would carry our locks along, in whatever state they are.

    Args:
        name: For the text of errors.
        most: How many there may be.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = SYSTEM.lock()  # guards _pool against two who make it anew
        self._pool = self._make()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        """Hand it to the pool; what is in a process that dies fails with ``BrokenProcessPool``."""
        pool = self._pool
        try:
            future = pool.submit(function, *args)
        except BrokenProcessPool:
            with self._lock:
                if self._pool is pool:
                    self._pool = self._make()
            future = self._pool.submit(function, *args)
        future.add_done_callback(lambda each: _report(each, done))

    def close(self) -> None:
        """Kill what is still busy, and let the others end."""
        found: dict[int, BaseProcess] = getattr(self._pool, "_processes", None) or {}  # there is no public way to them
        processes = tuple(found.values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()  # nothing is waited for any more

    def _make(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._most, mp_context=context, initializer=_prepare)


def _prepare() -> None:
    """Make a process ready: a signal to the whole group, as Ctrl-C is one, is the parent's to act on, not its own."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        SYSTEM.start_thread(partial(_end_with, parent), "loopwarden-parent")


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent is gone, however that was: nobody else would."""
    parent.join()
    os._exit(1)


def _report(future: Future[Any], done: Done) -> None:
    if future.cancelled():
        done(None, RuntimeError("the pool was closed before it was begun"))
        return
    error = future.exception()
    done(None if error is not None else future.result(), error)
