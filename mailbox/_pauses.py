"""`PauseWatch`: who in this process is told that a mailbox was paused for all that share it, or resumed."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, final

from loopwarden._log import report
from loopwarden._threads import SerialExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking

__all__ = ["PauseWatch"]

K = TypeVar("K")


@final
class PauseWatch(Generic[K]):
    """What may be done with the mailboxes of a server, as far as it is known here, and who is told when that changes.

    Listeners are called one after the other on a thread of their own: on that of the notifier a slow one would keep
    signs of life from the server, and so cost this process its leases.

    Args:
        shown: What the server is called in the log.
        blocking: How threads are started.
    """

    def __init__(self, shown: str, blocking: Blocking) -> None:
        self._shown = shown
        self._lock = blocking.lock()  # guards what follows
        self._states: dict[K, str] = {}
        self._listeners: dict[K, tuple[Callable[[bool], object], ...]] = {}
        self._teller = SerialExecutor("loopwarden-mailbox-pauses", blocking)

    def watch(self, mailbox: K, listener: Callable[[bool], object]) -> Callable[[], None]:
        """Have a listener told; return what ends that."""
        with self._lock:
            self._listeners[mailbox] = (*self._listeners.get(mailbox, ()), listener)

        def unwatch() -> None:
            with self._lock:
                others = tuple(each for each in self._listeners.get(mailbox, ()) if each is not listener)
                self._listeners[mailbox] = others

        return unwatch

    def heard(self, mailbox: K, state: str) -> bool:
        """Note what may be done with a mailbox, and have those told who asked for it; say whether that is new."""
        with self._lock:
            if self._states.get(mailbox, "") == state:
                return False
            self._states[mailbox] = state
            for listener in self._listeners.get(mailbox, ()):
                self._teller.submit(partial(self._tell, listener, state == "paused"))
            return True

    def _tell(self, listener: Callable[[bool], object], is_paused: bool) -> None:
        try:
            listener(is_paused)
        except Exception as error:  # noqa: BLE001  the others must hear it too
            report(logging.ERROR, "%s: a listener for pauses raised", self._shown, error=error)

    def close(self) -> None:
        """End the thread, when all are told."""
        self._teller.close()
