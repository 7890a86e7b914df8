"""`SignalRelay`: hears signals at once, whatever the main thread is doing."""

from __future__ import annotations

import logging
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, final

from loopwarden._log import report
from loopwarden.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType, TracebackType

    from loopwarden._blocking import ThreadHandle

__all__ = ["SignalRelay"]

#: The signal that ends the process at once, because two before it did not help.
LAST = 3
_CLOSE = b"\0"  # no signal has this number


@final
class SignalRelay:
    """Calls back on a thread of its own for each signal, in order.

    A Python handler runs on the main thread between two bytecodes, so not while that is in a C call. The interpreter's
    wake-up descriptor is written when the signal arrives, and a thread that reads it is not kept waiting by anybody.
    The handlers and the descriptor that were there before are put back by `close`; until then the descriptor of
    somebody else is still written. The third signal ends the process at once, with the shell's code for it.

    Off the main thread no handler can be installed: then it warns, and hears nothing.

    Args:
        callback: Called with the number of each signal, on the relay's thread; what it raises is logged.
        signals: Which signals.
        clock: Whose seam the thread is started through.
        leave: Ends the process.
    """

    def __init__(
        self,
        callback: Callable[[int], object],
        signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
        *,
        clock: Clock = SYSTEM_CLOCK,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._callback = callback
        self._signals = tuple(signals)
        self._clock = clock
        self._leave = leave
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1
        self._seen = 0  # by the handler
        self._heard = 0  # by the relay; each counts for itself, so that neither waits for the other
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
        near, far = socket.socketpair()
        far.settimeout(0)  # the interpreter writes to it, and must not wait
        try:
            self._fd_before = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
        except ValueError:
            report(logging.WARNING, "signals can be handled only if the main thread asks for it: none are")
            near.close()
            far.close()
            return self
        self._near, self._far = near, far
        try:
            self._thread = self._clock.blocking.start_thread(self._relay, "loopwarden-signals")
            for each in self._signals:
                self._before[each] = signal.signal(each, self._handle)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Put everything back as it was, and end the thread; closing again changes nothing. On the main thread only."""
        near, far, self._near, self._far = self._near, self._far, None, None
        if near is None or far is None:
            return
        for each, handler in self._before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
        if signal.set_wakeup_fd(self._fd_before, warn_on_full_buffer=False) != far.fileno():
            report(logging.WARNING, "somebody else has replaced the wake-up descriptor of signals meanwhile")
        with suppress(OSError):
            far.send(_CLOSE)
        if self._thread is not None:
            self._thread.join(5.0)
        far.close()
        near.close()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Do nothing: the relay does. Only a process that does not end otherwise ends here, if the relay is slow."""
        self._seen += 1
        if self._seen >= LAST:
            self._leave(128 + number)

    def _relay(self) -> None:
        near = self._near
        assert near is not None, "the thread is started when there is something to read"
        while numbers := near.recv(64):  # woken by a signal, or by close
            for number in numbers:
                if number == _CLOSE[0]:
                    return
                self._hear(number)

    def _hear(self, number: int) -> None:
        if self._fd_before != -1:
            with suppress(OSError):  # it is full, or closed: somebody else's business
                os.write(self._fd_before, bytes((number,)))
        if number not in self._signals:
            return
        self._heard += 1
        if self._heard >= LAST:
            self._leave(128 + number)
        try:
            self._callback(number)
        except BaseException as error:  # noqa: BLE001  isolates user code: the next signal must be heard
            report(logging.ERROR, "what was to be done about signal %d raised", number, error=error)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SignalRelay, {'open' if self.is_open else 'closed'}, {self._heard} heard>"
