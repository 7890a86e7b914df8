"""`ProcessCrew`: processes that run functions, for work that keeps the interpreter busy."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any, final

from loopwarden._blocking import SYSTEM
from loopwarden._log import report

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from multiprocessing.process import BaseProcess

    from loopwarden.actors._offload_crew import Done

__all__ = ["ProcessCrew"]

#: What a whole group of processes is sent, by Ctrl-C or by systemd: the parent's to act on, not theirs.
GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


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
        self._lock = SYSTEM.lock()  # guards _pool against two who make it anew, and what is known of the broken
        self._pool = self._make()
        self._last_broken: ProcessPoolExecutor | None = None
        self._is_closed = False
        #: How many functions were lost with a process that died.
        self.lost = 0

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        """Hand it to the pool; if one of its processes dies, all that it has fails with ``BrokenProcessPool``."""
        pool = self._pool
        try:
            future = _submit(pool, function, args)
        except BrokenProcessPool:
            with self._lock:
                if self._pool is pool:
                    self._pool = self._make()
                pool = self._pool
            future = _submit(pool, function, args)
        future.add_done_callback(lambda each: self._report(pool, each, done))

    def _report(self, pool: ProcessPoolExecutor, future: Future[Any], done: Done) -> None:
        if future.cancelled():
            done(None, RuntimeError("the pool was closed before it was begun"))
            return
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            error = self._lose(pool)
        done(None if error is not None else future.result(), error)

    def _lose(self, pool: ProcessPoolExecutor) -> BrokenProcessPool:
        """Count a function that was lost, and tell of it once for all that are lost together."""
        text = f"a process of OffloadPool {self._name!r} died, and what the pool had in hand is lost"
        with self._lock:
            is_news = self._last_broken is not pool and not self._is_closed
            self._last_broken = pool
            self.lost += 1
        if is_news:
            report(logging.ERROR, "%s", text)
        return BrokenProcessPool(text)

    def close(self) -> None:
        """Kill what is still busy, and let the others end."""
        with self._lock:
            self._is_closed = True
        found: dict[int, BaseProcess] = getattr(self._pool, "_processes", None) or {}  # there is no public way to them
        processes = tuple(found.values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()  # nothing is waited for any more

    def _make(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._most, mp_context=context, initializer=_prepare)


def _submit(pool: ProcessPoolExecutor, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
    """Submit; a process that is spawned for it inherits what is blocked here, until `_prepare` ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        return pool.submit(function, *args)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    """Make a process ready: from its first moment on, signals to the whole group are not for it."""
    for each in GROUP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        SYSTEM.start_thread(partial(_end_with, parent), "loopwarden-parent")


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent is gone, however that was: nobody else would."""
    parent.join()
    os._exit(1)
