"""`Token`: what tells one worker's receives to stop, and fences what it has received."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, final

from loopwarden._arguments import is_wait
from loopwarden._log import describe
from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from loopwarden._blocking import Gate

__all__ = ["Token", "wait_with"]


@final
class Token:
    """Belongs to one worker, which gives it to each of its receives; any thread may stop or fence it.

    It takes no lock, so it may be used in a signal handler. No wake-up is lost: a receive attaches its gate and
    then looks at the token, `stop` marks the token and then opens the gates.
    """

    __slots__ = ("_fenced", "_gates", "_nudged", "_stopped", "tries_one")

    def __init__(self) -> None:
        #: True if a receive is to look at one message only, even if it cannot be read: a try, because nothing succeeds.
        self.tries_one = False
        self._stopped = False
        self._fenced = False
        self._nudged = False
        self._gates: list[Gate] = []

    @property
    def stopped(self) -> bool:
        """True from the first `stop` or `fence` on: receives with this token return nothing."""
        return self._stopped

    @property
    def fenced(self) -> bool:
        """True from the first `fence` on: receipts taken with this token are refused."""
        return self._fenced

    def stop(self) -> None:
        """Wake the receives that hold this token, and no others; from now on they receive nothing."""
        self._stopped = True
        self._open()

    def fence(self) -> None:
        """Stop, and refuse from now on whatever is acknowledged, extended or replied with this token.

        What was not begun can still be put back.
        """
        self._fenced = True
        self.stop()

    def nudge(self) -> None:
        """Let one receive return early, now or the next time it would wait."""
        self._nudged = True
        self._open()

    def wait(self, timeout: float | None = None, clock: Clock | None = None) -> bool:
        """Block until the stop, or until ``timeout`` seconds of the clock have passed; say which."""
        if timeout is not None and not is_wait(timeout):
            raise TypeError(f"timeout must be a number of seconds or None, got {describe(timeout)}")
        clock = resolve_clock(clock)
        deadline = None if timeout is None else clock.monotonic() + timeout
        in_time = True
        while in_time and not self._stopped:  # a nudge opens the gate too, and is meant for a receive
            gate = clock.blocking.gate()
            try:
                self._gates.append(gate)  # first the gate, then the look: a stop does it in the other order
                if not self._stopped:
                    in_time = clock.wait(gate, None if deadline is None else deadline - clock.monotonic())
            finally:
                self.detach(gate)
        return self._stopped

    def attach(self, gate: Gate) -> None:
        """Have ``gate`` opened by the next stop or nudge; called by a receive before it waits."""
        self._gates.append(gate)
        if self._stopped or self._nudged:
            gate.open()

    def detach(self, gate: Gate) -> None:
        """Forget ``gate``; called by a receive after it has waited."""
        with suppress(ValueError):
            self._gates.remove(gate)

    def take_nudge(self) -> bool:
        """Say whether there was a nudge, and forget it."""
        if not self._nudged:
            return False
        self._nudged = False
        return True

    def _open(self) -> None:
        for gate in tuple(self._gates):
            gate.open()

    def __repr__(self) -> str:
        return f"<Token, {'fenced' if self._fenced else 'stopped' if self._stopped else 'good'}>"


def wait_with(clock: Clock, gate: Gate, seconds: float | None, token: Token | None) -> None:
    """Wait at a gate that the token opens too, if there is one."""
    if token is None:
        clock.wait(gate, seconds)
        return
    try:
        token.attach(gate)
        clock.wait(gate, seconds)
    finally:
        token.detach(gate)
