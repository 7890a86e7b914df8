"""`Notifier`: waits in the server for all that waits in this process, and gives the server its signs of life."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, final

from loopwarden._log import report
from loopwarden.mailbox._suspects import BEAT_SECONDS
from loopwarden.mailbox.redis._link import FAULTS, is_lost

if TYPE_CHECKING:
    from loopwarden._blocking import Gate
    from loopwarden.clock import Clock
    from loopwarden.mailbox.redis._link import Line
    from loopwarden.mailbox.redis._store import RedisStore

__all__ = ["Notifier"]

#: Seconds after which a server that says nothing is lost: it is asked to answer within those of a beat.
PATIENCE = BEAT_SECONDS + 5.0
#: Seconds for which it stays out of the server when no call waits; a pause for all processes is heard later by as much.
LINGER_SECONDS = 0.25
#: Seconds between two tries to reach a server, at the most; the first are sooner.
LONGEST_PAUSE = 5.0
FIRST_PAUSE = 0.05


@final
class Notifier:
    """One thread and one connection for all mailboxes of a server; in a cluster, for each mailbox.

    Receives wait at gates, which their tokens open without a question to the server. The notifier waits for the bells
    of the mailboxes that have waiters here, and wakes one for each ring. A bell is a list with at most one token: what
    is rung without a waiter is found by the next. What the notifier has taken, but no call here wants any more, it
    rings again.

    Args:
        store: What it belongs to.
        group: The key of the mailbox in a cluster; otherwise the same for all mailboxes.
        clock: The time.
    """

    def __init__(self, store: RedisStore, group: str, clock: Clock) -> None:
        self._store = store
        self._group = group
        self._clock = clock
        self._dice = clock.blocking.dice()
        #: Has a token if the notifier is to look up.
        self.wake_key = f"{group}:wake:{store.holder}"
        # Under the store's lock: what the thread is at.
        self._gate: Gate | None = None
        self._bells: frozenset[str] | None = None
        self._is_closed = False
        self._is_started = False
        self._line: Line | None = None
        self._next_beat = -math.inf
        self._failures = 0
        self._not_before = -math.inf
        self._unwanted_since: float | None = None
        self._unsure: set[str] = set()  # bells whose token may have been lost with a connection

    # Under the store's lock.

    def start(self) -> None:
        """Have a thread for it; starting again changes nothing.

        Raises:
            RuntimeError: if there is none to be had.
        """
        if not self._is_started:
            self._clock.blocking.start_thread(self._run, "loopwarden-redis-notifier")
            self._is_started = True

    def look_up(self, bell: str | None = None) -> bool:
        """Have it begin to wait for a bell, or see what else is new; true if `wake` must be called for that."""
        if self._gate is not None:
            self._gate.open()
            return False
        return self._bells is not None and bell not in self._bells

    def end(self) -> bool:
        """Have the thread end; true if `wake` must be called for that."""
        self._is_closed = True
        return self._is_started and self.look_up()

    # Without it.

    def wake(self) -> bool:
        """Have it look up though it waits in the server; false if that cannot be asked, and the line had to be cut."""
        try:
            self._store.run_script("wake", self.wake_key, ())
        except FAULTS:
            line = self._line
            if line is not None:
                line.close()
            return False
        return True

    # Its own thread.

    def _run(self) -> None:
        try:
            while self._step():
                pass
        finally:
            line, self._line = self._line, None
            if line is not None:  # its key is left to expire: another notifier of this process may have it by now
                line.close()

    def _step(self) -> bool:
        """Wait for a bell, or for something to do; false if the store is closed."""
        with self._store.lock:
            if self._is_closed:
                return False
            now = self._clock.monotonic()
            bells = self._store.awaited(self._group)
            rests_until = self._rests_until(now, bool(bells))
            gate = None
            if rests_until > now:
                gate = self._gate = self._clock.blocking.gate()
            else:
                self._bells = bells
        if gate is not None:
            self._clock.wait(gate, rests_until - now)  # woken by who begins to wait, by the close, or by time
            with self._store.lock:
                self._gate = None
            return True
        try:
            self._work(bells)
        except Exception as error:  # noqa: BLE001  whatever it is: who waits here must look, and hears of it there
            self._fail(error)
        return True

    def _rests_until(self, now: float, is_awaited: bool) -> float:
        """Return until when to leave the server alone: after a failure; and for a moment when no call waits.

        Who has just been woken often waits again soon. It costs a call to have a notifier look up that waits in the
        server, and nothing if it does not.
        """
        if is_awaited:
            self._unwanted_since = None
            return self._not_before
        if self._unwanted_since is None:
            self._unwanted_since = now
        return max(self._not_before, min(self._unwanted_since + LINGER_SECONDS, self._next_beat))

    def _work(self, bells: frozenset[str]) -> None:
        try:
            line = self._line
            if line is None:
                line = self._line = self._store.link.line(self._group, PATIENCE)
                self._next_beat = -math.inf
            if self._clock.monotonic() >= self._next_beat:
                pause = self._store.beat(line, self._group)
                self._next_beat = self._clock.monotonic() + pause
                self._failures = 0
            if self._unsure:
                self._store.ring_again(line, self._unsure)
                self._unsure.clear()
            left = max(0.001, self._next_beat - self._clock.monotonic())
            self._unsure.update(bells)
            with self._clock.blocking.outside():
                [rung] = line.run([("BLPOP", *bells, self.wake_key, f"{left:.3f}")])
            self._unsure.clear()
        finally:
            with self._store.lock:
                self._bells = None
        if rung is None:
            return
        bell, token = rung[0].decode(), rung[1]
        if bell == self.wake_key:
            if token == b"state":  # the answers to signs of life tell what a mailbox is for now
                self._next_beat = -math.inf
        elif not self._store.rung(bell, token):
            self._unsure.add(bell)
            self._store.ring_again(line, {bell})
            self._unsure.clear()

    def _fail(self, error: Exception) -> None:
        """Connect anew after a pause, which chance spreads; who waits looks, and is told if the server is away."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
        self._failures += 1
        if self._failures == 1 and not is_lost(error):  # the receives hear nothing of it
            text = "%s: cannot wait for messages in the server, so receives look every few seconds"
            report(logging.WARNING, text, self._store.shown, error=error)
        longest = (
            LONGEST_PAUSE if not is_lost(error) else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 20))
        )
        self._not_before = self._clock.monotonic() + self._dice.random() * longest
        self._store.wake_all(self._group)
