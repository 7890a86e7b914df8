"""`SignalRelay`: hears signals at once, even while the main thread is in a C call."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, final

from loopwarden._forks import at_fork
from loopwarden._log import describe, report
from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType, TracebackType

    from loopwarden._blocking import ThreadHandle

__all__ = ["SignalRelay", "signal_name"]

#: Which signal ends the process at once, because those before it did not help.
LAST = 3
_CLOSE = b"\0"  # no signal has this number


@final
class SignalRelay:
    """Calls back on a thread of its own for each signal, in order.

    A Python handler runs on the main thread between two bytecodes, so not while that is in a C call. The interpreter
    writes to the wake-up descriptor when the signal arrives, and the relay's thread, which reads it, is not delayed.
    `close` puts back the handlers and the descriptor that were there before. Until then the relay writes to that
    descriptor too. The third signal ends the process at once, with the shell's code for it.

    Off the main thread no handler can be installed: then it warns, and hears nothing. In a forked process the handlers
    are as they were before the relay: the parent does not hear the signals of its child.

    Args:
        callback: Called with the number of each signal, on the relay's thread; what it raises is logged.
        signals: The signals to hear.
        clock: The clock whose seam starts the thread.
        leave: Ends the process.
        others: Called for each other signal, which another handler handles, on the relay's thread.
        until_exit: Whether the process exits after the relay. Then a signal that follows one which was heard does not
            kill the process while it ends, even after `close`, and no signal kills the interpreter while it exits.
            Even so a handler that was there before is put back.

    Raises:
        ValueError: if one of ``signals`` is not a signal, or one that no process can handle; it is named.
    """

    def __init__(
        self,
        callback: Callable[[int], object],
        signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT),
        *,
        clock: Clock | None = None,
        leave: Callable[[int], object] = os._exit,
        others: Callable[[], object] = lambda: None,
        until_exit: bool = False,
    ) -> None:
        clock = resolve_clock(clock)
        self._callback = callback
        #: The signals that it hears.
        self.signals = tuple(_checked(each) for each in signals)
        self._clock = clock
        self._leave = leave
        self._others = others
        self._until_exit = until_exit
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._seen = 0  # by the handler
        self._heard = 0  # by the relay; each has its own count, so that neither waits for the other
        self._near: socket.socket | None = None
        self._far: socket.socket | None = None
        self._thread: ThreadHandle | None = None

    @property
    def is_open(self) -> bool:
        """True while it hears signals."""
        return self._near is not None

    def open(self) -> Self:
        """Install the handlers and start the thread; opening again changes nothing."""
        if self._near is not None:
            return self
        self._seen = self._heard = 0
        near, far = socket.socketpair()
        far.settimeout(0)  # the interpreter writes to it, and must not wait
        try:
            self._fd_before = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
        except ValueError:
            report(
                logging.WARNING,
                "signals are not heard, because %r is not the main thread: run a Service and end it by its shut_down()",
                threading.current_thread().name,
            )
            near.close()
            far.close()
            return self
        self._near, self._far = near, far
        _open_relays.add(self)
        try:
            self._thread = self._clock.blocking.start_thread(partial(self._relay, near), "loopwarden-signals")
            for each in self.signals:
                self._before[each] = signal.signal(each, self._handle)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Put everything back as it was, and end the thread; closing again changes nothing.

        A handler or a descriptor that other code has installed meanwhile stays.

        Raises:
            RuntimeError: off the main thread, where no handler can be put back; then the relay stays open.
        """
        near, far = self._near, self._far
        if near is None or far is None:
            return
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a SignalRelay can be closed only on the main thread, which alone may set handlers")
        self._near = self._far = None
        _open_relays.discard(self)
        try:
            self._put_handlers_back()
            self._put_descriptor_back(far.fileno())
        finally:
            with suppress(OSError):
                far.send(_CLOSE)
            if self._thread is not None:
                self._thread.join(5.0)
            far.close()
            near.close()

    def _put_handlers_back(self, *, in_child: bool = False) -> None:
        is_kept = self._until_exit and self._heard > 0 and not in_child
        for each, handler in self._before.items():
            if self._until_exit and handler in _DEFAULTS:
                _last[each] = handler
            if signal.getsignal(each) == self._handle and not (is_kept and handler in _DEFAULTS):
                signal.signal(each, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _put_descriptor_back(self, ours: int) -> None:
        try:
            found = signal.set_wakeup_fd(self._fd_before)  # with the warning on a full buffer, which is the default
        except (OSError, ValueError):  # its owner has closed it
            found = signal.set_wakeup_fd(-1)
        if found != ours:
            report(logging.WARNING, "other code has replaced the wake-up descriptor of signals, which stays replaced")
            signal.set_wakeup_fd(found)

    def forget_parent(self) -> None:
        """Stop hearing in a forked process, which shares the descriptor, but not the thread."""
        near, far, self._near, self._far = self._near, self._far, None, None
        self._put_handlers_back(in_child=True)
        signal.set_wakeup_fd(-1)
        for each in (near, far):
            if each is not None:
                each.close()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Do nothing, as the relay hears the signal; only the third one ends the process here, if the relay is slow."""
        self._seen += 1
        if self._seen >= LAST:
            self._leave(128 + number)

    def _relay(self, near: socket.socket) -> None:
        while True:
            with self._clock.blocking.outside():
                numbers = near.recv(64)  # woken by a signal, or by close
            if not numbers:
                return
            for number in numbers:
                if number == _CLOSE[0]:
                    return
                self._hear(number)

    def _hear(self, number: int) -> None:
        if self._fd_before != -1:
            with suppress(OSError):  # it is full, or its owner has closed it
                os.write(self._fd_before, bytes((number,)))
        if number not in self.signals:
            self._others()
            return
        self._heard += 1
        if self._heard >= LAST:
            self._leave(128 + number)
        try:
            self._callback(number)
        except BaseException as error:  # noqa: BLE001  isolates user code: the next signal must be heard
            report(logging.ERROR, "the callback for signal %d raised", number, error=error)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SignalRelay, {'open' if self.is_open else 'closed'}, {self._heard} heard>"


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals, which stop some containers, have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _checked(number: int) -> int:
    if number not in signal.valid_signals() or number in {signal.SIGKILL, signal.SIGSTOP}:
        raise ValueError(
            "signals must be signals that a process can handle, such as signal.SIGTERM,"
            f" got {describe(number)} among them"
        )
    return number


#: The handlers of a signal that no code has set one for.
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
_last: dict[int, Any] = {}  # the signals of relays whose process exits after them, and the handlers before those
_open_relays: weakref.WeakSet[SignalRelay] = weakref.WeakSet()
_masks = threading.local()  # .before: what this thread has blocked, while it forks


def _block() -> None:
    """Let no signal reach a forked process before its handlers are back: it would be lost."""
    heard = {number for relay in tuple(_open_relays) for number in relay.signals}
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, heard) if heard else None


def _unblock() -> None:
    before: set[int] | None = getattr(_masks, "before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forget_parents() -> None:
    for relay in tuple(_open_relays):
        relay.forget_parent()
    _open_relays.clear()
    for number, handler in _last.items():
        signal.signal(number, handler)
    _last.clear()
    _unblock()


def _ignore_at_exit() -> None:
    """Ignore signals while the interpreter exits, which would put back their default action: to kill."""
    for number in _last:
        if signal.getsignal(number) in _DEFAULTS or isinstance(_owner(signal.getsignal(number)), SignalRelay):
            signal.signal(number, signal.SIG_IGN)


def _owner(handler: object) -> object:
    return getattr(handler, "__self__", None)


at_fork(before=_block, in_parent=_unblock, in_child=_forget_parents)
atexit.register(_ignore_at_exit)  # at import, so that it is called after later hooks, which may hang
