"""`Notifier`: listens in the server for all that waits in this process, and gives the server its signs of life."""

from __future__ import annotations

import logging
import math
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, final

from loopwarden._log import report
from loopwarden.mailbox.postgres._connection import LostError, RefusedError

if TYPE_CHECKING:
    from loopwarden._blocking import Gate
    from loopwarden.clock import Clock
    from loopwarden.mailbox.postgres._connection import Line
    from loopwarden.mailbox.postgres._store import PostgresStore

__all__ = ["Notifier"]

#: Seconds between two tries to reach a server, at the most; the first are sooner.
LONGEST_PAUSE = 5.0
FIRST_PAUSE = 0.05
#: Seconds between two looks where nothing can be heard: the second named exception to "nobody polls".
LOOK_SECONDS = 1.0
#: Seconds in which a notification of this process itself must come, if something may stand in its way.
ECHO_SECONDS = 2.0


@final
class Notifier:
    """One thread and one connection for all mailboxes of a database.

    Receives wait at gates, which their tokens open without a question to the server. That is told which processes
    wait, and each of these has a channel of its own: so a message wakes one process. Where notifications
    cannot come, because something between gives each call another session, it looks every second.

    Args:
        store: What it belongs to.
        clock: The time.
    """

    def __init__(self, store: PostgresStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._dice = clock.blocking.dice()
        #: True while what is told comes here; under the store's lock.
        self.is_listening = False
        self._gate: Gate | None = None
        self._is_closed = False
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)  # noqa: FBT003  as the socket takes it
        self._ring.setblocking(False)  # noqa: FBT003  as above
        self._line: Line | None = None
        self._is_deaf = False
        self._is_deafness_told = False
        self._next_beat = -math.inf
        self._failures = 0

    # Under the store's lock.

    def start(self) -> None:
        """Have a thread for it.

        Raises:
            RuntimeError: if there is none to be had.
        """
        try:
            self._clock.blocking.start_thread(self._run, "loopwarden-postgres-notifier")
        except BaseException:
            self._close_bell()
            raise

    # Without it.

    def end(self) -> None:
        """Have the thread end."""
        with self._store.lock:
            self._is_closed = True
            if self._gate is not None:
                self._gate.open()
        self.nudge()

    def nudge(self) -> None:
        """Have it see how the database is, or that it is to end."""
        with suppress(OSError):  # it has ended by itself, or has been nudged often enough
            self._ring.send(b".")

    # Its own thread.

    def _run(self) -> None:
        try:
            while not self._is_closed:
                try:
                    self._work()
                except Exception as error:  # noqa: BLE001  whatever it is: who waits here must look, and hears of it there
                    self._fail(error)
        finally:
            self._hang_up()
            self._close_bell()

    def _work(self) -> None:
        line = self._line
        if line is None:
            line = self._connect()
        if self._clock.monotonic() >= self._next_beat:
            pause = self._store.beat(line)
            self._store.look(line)  # a ring may have been for a process that has died
            self._next_beat = self._clock.monotonic() + pause
            self._failures = 0
        left = max(0.0, self._next_beat - self._clock.monotonic())
        with self._clock.blocking.outside():
            told = line.listen(min(left, LOOK_SECONDS) if self._is_deaf else left, self._bell)
        if self._is_closed:
            return
        with suppress(BlockingIOError):
            if self._bell.recv(64):  # many calls were made
                self._store.look_for_ailments(line)
        for each in told:
            self._store.told(line, each)
        if self._is_deaf:
            self._store.look(line)

    def _connect(self) -> Line:
        line = self._line = self._store.connections.line()
        self._is_deaf = not self._listen(line)
        if self._is_deaf and not self._is_deafness_told and not self._is_closed:
            self._is_deafness_told = True
            text = (
                "%s: notifications do not come through what stands before the server, so it is looked at every second"
            )
            report(logging.WARNING, text, self._store.shown)
        self._next_beat = -math.inf
        with self._store.lock:
            self.is_listening = not self._is_deaf
        self._store.wake_all()  # they look again, and then have the server know that they wait
        return line

    def _listen(self, line: Line) -> bool:
        """Listen, unless what others tell this process does not come here; say whether it does."""
        channel = f"loopwarden_{self._store.holder}"
        if line.is_pooled and self._store.connections.is_shared(line):  # or a session of others would listen for ever
            return False
        line.execute(f'LISTEN "{channel}"')
        if not line.is_pooled or self._hears(line, channel):
            return True
        line.execute(f'UNLISTEN "{channel}"')  # most likely in the session that listens
        return False

    def _hears(self, line: Line, channel: str) -> bool:
        """Say whether what others tell this process comes here."""
        self._store.connections.call(b"SELECT pg_notify($1::text, 'echo')", (channel,))
        deadline = self._clock.monotonic() + ECHO_SECONDS
        while (left := deadline - self._clock.monotonic()) > 0 and not self._is_closed:
            if "echo" in line.listen(left, self._bell):  # and not what was told before
                return True
        return False

    def _hang_up(self) -> None:
        with self._store.lock:
            self.is_listening = False
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _fail(self, error: Exception) -> None:
        """Connect anew after a pause, which chance spreads; who waits looks, and is told if the server is away."""
        self._hang_up()
        self._failures += 1
        if self._failures == 1 and not isinstance(error, LostError):  # the receives hear nothing of it
            text = "%s: cannot wait for messages in the server, so receives look every few seconds"
            report(logging.WARNING, text, self._store.shown, error=error)
        longest = LONGEST_PAUSE if isinstance(error, RefusedError) else FIRST_PAUSE * 2.0 ** min(self._failures, 20)
        pause = self._dice.random() * min(LONGEST_PAUSE, longest)
        self._store.wake_all()
        with self._store.lock:
            if self._is_closed:
                return
            gate = self._gate = self._clock.blocking.gate()
        self._clock.wait(gate, pause)  # woken by time, or by the end
        with self._store.lock:
            self._gate = None

    def _close_bell(self) -> None:
        self._bell.close()
        self._ring.close()
