"""`ShutdownCoordinator`: hears the signals of the process, and calls the callbacks that were registered."""

from __future__ import annotations

import logging
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, ClassVar, final

from loopwarden._blocking import SYSTEM
from loopwarden._forks import at_fork
from loopwarden._log import describe, report
from loopwarden._threads import run_in_thread
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.supervision.service._signals import SignalRelay, signal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._ticket import Ticket

__all__ = ["ShutdownCoordinator"]

#: Seconds after which the next callback is called although the one before has not returned: callbacks are called in
#: order, but a callback that waits for its loop must not take the time of the others.
TURN = 0.05


@final
class ShutdownCoordinator:
    """Hears SIGTERM and SIGINT, and calls each callback once, in the order of their registration.

    Callbacks are called on threads of their own, never in a signal handler, so they may block and use locks. A callback
    that is registered after the trigger is called at once, by `register` itself.

    >>> coordinator = ShutdownCoordinator.install()
    >>> coordinator.register(lambda: print("stopping"))
    >>> coordinator.trigger()
    stopping
    >>> ShutdownCoordinator.reset()
    """

    _instance: ClassVar[ShutdownCoordinator | None] = None
    # Guards _instance, and of each instance _callbacks and _cuts together with _triggered: a callback must not be
    # registered with the installed coordinator while that is being reset.
    _lock: ClassVar = SYSTEM.lock()

    def __init__(self, signals: tuple[int, ...] = ()) -> None:
        self._callbacks: list[Callable[[], object]] = []
        self._triggered = False
        self._cuts: dict[Callable[[], object], Callable[[], object]] = {}
        self._heard = 0
        self._reason = "ShutdownCoordinator.trigger()"
        #: What hears the signals.
        self.relay = SignalRelay(self._hear, signals)

    @classmethod
    def install(cls, *, signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)) -> ShutdownCoordinator:
        """Return the coordinator, hearing the ``signals`` of the first call; later calls change nothing.

        Off the main thread no signal can be heard: it warns, and only `trigger` triggers, until the main thread calls.
        """
        with cls._lock:
            return cls._installed(signals)

    @classmethod
    def enroll(cls, callback: Callable[[], object], cut_short: Callable[[], object]) -> ShutdownCoordinator:
        """Install it and register with it in one step, so that no reset comes in between."""
        with cls._lock:
            coordinator = cls._installed((signal.SIGTERM, signal.SIGINT))
            is_late = coordinator.add(callback, cut_short)
        if is_late:
            _call(callback)
        return coordinator

    @classmethod
    def _installed(cls, signals: tuple[int, ...]) -> ShutdownCoordinator:
        coordinator = cls(signals) if cls._instance is None else cls._instance
        coordinator.relay.open()
        cls._instance = coordinator
        return coordinator

    @classmethod
    def get(cls) -> ShutdownCoordinator | None:
        """Return the coordinator that is installed, if there is one."""
        return cls._instance

    @classmethod
    def begin_anew(cls) -> None:
        """Forget the coordinator of the parent in a forked process, where its lock may be held for ever."""
        cls._lock = SYSTEM.lock()
        cls._instance = None

    @classmethod
    def reset(cls) -> None:
        """Forget the coordinator, and put the handlers back that were there before it.

        Raises:
            RuntimeError: off the main thread, if it hears signals; then nothing is changed.
        """
        coordinator = cls._instance
        if coordinator is not None:
            coordinator.relay.close()  # first, because it may refuse; and without the lock, which its thread may want
            with cls._lock:
                if cls._instance is coordinator:
                    cls._instance = None

    def reset_if_unused(self) -> None:
        """Reset it if no callback is registered; does nothing off the main thread, where no handler can be put back."""
        if self.relay.is_open and threading.current_thread() is not threading.main_thread():
            return
        with self._lock:
            if self._callbacks or self._cuts or ShutdownCoordinator._instance is not self:
                return
            ShutdownCoordinator._instance = None
        self.relay.close()

    def register(self, callback: Callable[[], object], *, cut_short: Callable[[], object] | None = None) -> None:
        """Have ``callback`` called at the trigger; after the trigger, call it at once.

        Args:
            callback: Called at the first signal, or by `trigger`.
            cut_short: Called at a second signal, if ``callback`` is still registered then; must not block.

        Raises:
            TypeError: if one of them cannot be called.
        """
        for each in (callback, cut_short):
            if each is not None and not callable(each):
                raise TypeError(f"register() takes a callable, got {describe(each)}")
        with self._lock:
            is_late = self.add(callback, cut_short)
        if is_late:
            _call(callback)

    def add(self, callback: Callable[[], object], cut_short: Callable[[], object] | None) -> bool:
        """Register, under the lock; return true after the trigger, when the caller has to call ``callback``."""
        if cut_short is not None:
            self._cuts[callback] = cut_short
        if not self._triggered:
            self._callbacks.append(callback)
        return self._triggered

    def unregister(self, callback: Callable[[], object]) -> None:
        """Forget a callback; does nothing if it is not registered."""
        with self._lock:
            self._cuts.pop(callback, None)
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def trigger(self) -> None:
        """Call the callbacks, and return when all have returned; a second trigger calls none."""
        for returned in self._start():
            returned.wait_ready()

    @property
    def triggered(self) -> bool:
        """True from the first signal or `trigger` on."""
        return self._triggered

    @property
    def reason(self) -> str:
        """What triggered it: the name of the signal, or ``"ShutdownCoordinator.trigger()"``."""
        return self._reason

    def _hear(self, number: int) -> None:
        """Call back on another thread, so that the relay hears the next signal."""
        self._heard += 1
        if self._heard == 1:
            self._reason = signal_name(number)
        else:
            with self._lock:
                cuts = tuple(self._cuts.values())
            for cut in cuts:
                _call(cut)
        run_in_thread(self._start, "loopwarden-shutdown", SYSTEM)

    def _start(self) -> list[Ticket[None]]:
        with self._lock:
            callbacks, self._callbacks, self._triggered = self._callbacks, [], True
        returned: list[Ticket[None]] = []
        for callback in callbacks:
            returned.append(run_in_thread(partial(_call, callback), "loopwarden-shutdown-callback", SYSTEM))
            returned[-1].wait_ready(TURN, SYSTEM_CLOCK)
        return returned

    def __repr__(self) -> str:
        return f"<ShutdownCoordinator, {'triggered' if self._triggered else f'{len(self._callbacks)} callbacks'}>"


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except BaseException as error:  # noqa: BLE001  isolates user code: the others must be called too
        report(logging.ERROR, "shutdown callback %r raised", callback, error=error)


at_fork(in_child=ShutdownCoordinator.begin_anew)
