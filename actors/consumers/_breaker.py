"""`Breaker`: stops a loop for which nothing succeeds any more, before it has buried its whole mailbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from loopwarden._backoff import Backoff
    from loopwarden._blocking import Blocking

__all__ = ["Breaker"]


@final
class Breaker:
    """Opens after so many failures in a row without one success; a single success closes it.

    While it is open one worker at a time may try one message, after a back-off that doubles with each failure.

    Args:
        limit: How many failures open it; None means that nothing does.
        backoff: How long to wait between two tries.
        blocking: The seam.
    """

    def __init__(self, limit: int | None, backoff: Backoff, blocking: Blocking) -> None:
        self._limit = limit
        self._backoff = backoff
        self._lock = blocking.lock()  # guards all of the following against two workers at once
        self._tries = 0
        self._retry_at = 0.0
        self._trier: object = None
        #: How many failures there were since the last success.
        self.failures = 0
        #: True while only one message may be tried now and then; an attribute, because each worker looks at it with
        #: each message.
        self.is_open = False
        #: Why it is open.
        self.reason = ""
        #: True while it is open, but nothing is left to fail: the mailbox was empty when a message was to be tried.
        self.is_idle = False

    def failed(self, why: str, now: float, roll: float) -> bool:
        """Count a failure; true if this one opens the breaker."""
        with self._lock:
            self.failures += 1
            if self._limit is None or self.failures < self._limit:
                return False
            self.reason = f"{self.failures} failures in a row and no success, the last one: {why}"
            self._tries += 1
            self.is_idle = False
            self._retry_at = now + self._backoff.delay(self._tries, roll)
            self.is_open = True
            return self.failures == self._limit

    def succeeded(self) -> bool:
        """Count a success; true if it closes the breaker."""
        if not self.failures:  # nearly always
            return False
        with self._lock:
            self._trier = None
            was_open, self.is_open = self.is_open, False
            self.failures = self._tries = 0
            self.reason, self.is_idle = "", False
            return was_open

    def found_nothing(self, failures: int) -> None:
        """Note that there was nothing to try; unless more than so many have failed meanwhile."""
        with self._lock:
            self.is_idle = self.is_open and self.failures == failures

    def wait(self, worker: object, now: float, roll: float) -> float:
        """Return how many seconds a worker is to wait before it asks again; with 0 it may try a message."""
        with self._lock:
            if not self.is_open:
                return 0.0
            if now < self._retry_at:
                return self._retry_at - now
            if self._trier not in {None, worker}:
                return self._backoff.delay(self._tries, roll)
            self._trier = worker
            return 0.0

    def has_tried(self, worker: object) -> None:
        """Let another worker have the next try."""
        if self._trier is worker:
            self._trier = None

    def __repr__(self) -> str:
        return f"<Breaker, {'open' if self.is_open else 'closed'}, {self.failures} failures>"
