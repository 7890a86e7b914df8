"""`LogWriter`: writes log records on a thread of its own, because the handlers of others may block for ever."""

from __future__ import annotations

import io
import itertools
import logging
import os
import select
import sys
from collections import deque
from contextlib import suppress
from contextvars import Context, copy_context
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, final

from loopwarden._blocking import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Gate, ThreadHandle, WorkQueue

__all__ = ["HANG_SECONDS", "LOG_THREAD", "MAX_WAITING", "STANDARD", "LogWriter", "fields_of"]

#: The name of the thread, which lives until the process ends.
LOG_THREAD = "loopwarden-log"
#: Records that wait for a log that is slow or hangs; further ones are dropped, and counted. With a traceback each that
#: is a few megabytes.
MAX_WAITING = 1_000
#: Seconds for which one record may be written before the log counts as hung.
HANG_SECONDS = 0.5
#: Seconds that a log which does get on has at exit.
EXIT_SECONDS = 2.0
#: The attributes that every record may have; the others are fields.
STANDARD = frozenset({*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"})
#: What a record knows of the moment and the thread it was made on, and its copy by a user's factory does not.
_ORIGIN = ("created", "msecs", "relativeCreated", "thread", "threadName", "process", "processName", "taskName")


@final
class LogWriter:
    """Hands records to one daemon thread through a bounded queue: `write` never blocks, also in a signal handler.

    A log that blocks, raises or is shut down costs records and nothing else: not even the exit of the interpreter,
    which otherwise waits for the locks of handlers and streams that a hanging thread holds.

    Args:
        logger: Whose handlers write.
        prepare: Completes a record before it is written, with what may run the code of others.
    """

    def __init__(
        self, logger: logging.Logger, prepare: Callable[[logging.LogRecord], object] = lambda _record: None
    ) -> None:
        self._logger = logger
        self._prepare = prepare
        #: Write on the thread that reports: for tests, which look at the records at once.
        self.in_place = False
        self._is_over = False
        self._is_silent = False  # at exit, if the log hangs
        self.begin()

    def begin(self) -> None:
        """Begin with nothing; also in a child process, which has not its parent's thread."""
        self._waiting: deque[tuple[logging.LogRecord, Context] | Gate] = deque()
        self._wake: WorkQueue[None] = SYSTEM.queue()  # one item for each that waits
        self._started = SYSTEM.slot()
        # Drawn from by each drop, and by the thread to see how far it is: one atomic step, so it needs no lock.
        self._drops = itertools.count()
        self._looks = 0  # how often the thread has drawn
        self._told = 0  # drops that it has told
        self._writes_since: float | None = None  # None while it writes nothing
        self._thread: int | None = None
        self._handle: ThreadHandle | None = None

    def write(self, record: logging.LogRecord) -> None:
        """Have a record written soon; or count it, if too many wait."""
        if self.in_place or self._is_over:
            self.write_now(record)
        elif len(self._waiting) >= MAX_WAITING or get_ident() == self._thread:  # a handler that reports would never end
            next(self._drops)
        else:
            self._put((record, copy_context()))

    def flush(self, timeout: float, patience: float = HANG_SECONDS) -> bool:
        """Wait until the records so far are written; say whether they are.

        Args:
            timeout: Seconds for all of them.
            patience: Seconds for the one that is being written: if it takes longer, the log hangs.
        """
        if not self._waiting and self._writes_since is None:
            return True
        gate = SYSTEM.gate()
        if not self._put(gate):
            return False
        deadline = monotonic() + timeout
        while True:
            now, since = monotonic(), self._writes_since
            left = min(deadline - now, patience if since is None else since + patience - now)
            if left <= 0:
                return False
            if gate.wait(left):  # opened by the thread
                return True

    def _put(self, entry: tuple[logging.LogRecord, Context] | Gate) -> bool:
        """Put an entry behind the others; say whether there is a thread to write it."""
        self._waiting.append(entry)
        self._wake.put(None)
        mark = object()
        if self._started.setdefault(0, mark) is mark:
            try:
                self._handle = SYSTEM.start_thread(self._run, LOG_THREAD)
            except BaseException as error:
                self._started = SYSTEM.slot()
                if not isinstance(error, RuntimeError):
                    raise
                return False  # no threads are to be had now: the next record tries again, or the exit writes
            # The processes of multiprocessing end without the exit hooks of others.
            util: Any = sys.modules.get("multiprocessing.util")
            if util is not None:
                util.Finalize(None, self.exit, exitpriority=-100)
        return True

    def _run(self) -> None:
        self._thread = get_ident()
        while True:
            self._wake.get()  # woken by each entry; a Ctrl-C may have cost one its wake-up, so all are looked for
            while self._waiting:
                self._writes_since = monotonic()
                self._write_next()
                if not self._waiting:
                    self._tell_drops()
                self._writes_since = None
            if self._is_over:
                return

    def _write_next(self) -> None:
        entry = self._waiting.popleft()
        if isinstance(entry, tuple):
            record, context = entry
            with suppress(BaseException):  # filters, handlers and formatters are other people's code
                context.run(self.write_now, record)
        else:
            self._tell_drops()  # first: they are part of what a flush waits for
            entry.open()

    def _tell_drops(self) -> None:
        dropped = next(self._drops) - self._looks
        self._looks += 1
        if dropped > self._told:
            text = "%d log records were dropped, because the log did not keep up"
            record = self._logger.makeRecord(
                self._logger.name, logging.WARNING, __file__, 0, text, (dropped - self._told,), None
            )
            self._told = dropped
            with suppress(BaseException):  # as above
                self.write_now(record)

    def write_now(self, record: logging.LogRecord) -> None:
        """Write a record on this thread, whatever that raises and however long it takes."""
        if self._is_silent:
            return
        with suppress(BaseException):  # the text of an exception is other people's code
            self._prepare(record)
        factory: Any = logging.getLogRecordFactory()
        if factory is not logging.LogRecord:  # whose records have more attributes, which formatters rely on
            plain = record
            record = factory(
                plain.name,
                plain.levelno,
                plain.pathname,
                plain.lineno,
                plain.msg,
                plain.args,
                plain.exc_info,
                plain.funcName,
            )
            for name in _ORIGIN:
                if hasattr(plain, name):
                    setattr(record, name, getattr(plain, name))
            vars(record).update(fields_of(plain), exc_text=plain.exc_text, stack_info=plain.stack_info)
        self._logger.handle(record)

    def exit(self) -> None:
        """Write what waits, and keep a log that hangs from hanging the exit."""
        is_written = self.flush(EXIT_SECONDS)
        self._is_over = True
        if not is_written and self._started.get(0) is None:  # there are no threads any more, as in some Pythons at exit
            while self._waiting:
                self._write_next()
            is_written = True
        if is_written and self._handle is not None:
            self._wake.put(None)
            self._handle.join(HANG_SECONDS)  # or the interpreter would look through all that the thread holds
            is_written = not self._handle.is_alive()
            while is_written and self._waiting:  # what came when the thread had looked for the last time
                self._write_next()
        if not is_written:
            _complain(1 + sum(isinstance(each, tuple) for each in tuple(self._waiting)))
        hung = _hung_handlers(0.0 if not is_written else HANG_SECONDS)
        self._is_silent = bool(hung) or not is_written
        _let_go(hung)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the attributes of a record that not every record has."""
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


def _complain(lost: int) -> None:
    """Say on standard error how many records are lost, unless that is what hangs."""
    with suppress(OSError, ValueError):
        descriptor = 2
        if select.select([], [descriptor], [], 0)[1]:  # then it takes a line without blocking
            os.write(descriptor, f"loopwarden: {lost} log records were not written: the log hangs\n".encode())


def _hung_handlers(patience: float) -> list[logging.Handler]:
    """Return the handlers whose locks are not to be had, of all that there are."""
    hung: list[logging.Handler] = []
    for handler in (ref() for ref in list(_all_handlers())):
        lock: Any = None if handler is None else handler.lock
        if handler is None or lock is None:
            continue
        if lock.acquire(timeout=patience) if patience else lock.acquire(blocking=False):
            lock.release()
        else:
            hung.append(handler)
    return hung


def _all_handlers() -> list[Any]:
    """Return weak references to all handlers, the list that ``logging.shutdown`` goes through at exit."""
    return getattr(logging, "_handlerList", [])


def _let_go(hung: list[logging.Handler]) -> None:
    """Have the exit of the interpreter wait neither for handlers nor for the standard streams that they write to."""
    refs = _all_handlers()
    refs[:] = [ref for ref in refs if ref() not in hung]
    streams = [getattr(handler, "stream", None) for handler in hung]
    for name in ("stdout", "__stdout__", "stderr", "__stderr__"):
        if any(stream is getattr(sys, name) for stream in streams):
            setattr(sys, name, io.StringIO())
