"""`Turns`: how many calls a process makes at once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from loopwarden._blocking import Blocking, Gate

__all__ = ["Turns"]


@final
class Turns:
    """Lets so many threads in at once, and the others in the order in which they came.

    Args:
        most: How many.
        blocking: The seam.
    """

    def __init__(self, most: int, blocking: Blocking) -> None:
        self._blocking = blocking
        self._lock = blocking.lock()  # guards all that follows
        self._left = most
        self._waiting: deque[Gate] = deque()

    def take(self, patience: float) -> bool:
        """Wait for a turn, which ends with `give`; false if there was none within ``patience`` seconds."""
        with self._lock:
            if self._left:
                self._left -= 1
                return True
            gate = self._blocking.gate()
            self._waiting.append(gate)
        has_turn = False
        try:
            has_turn = gate.wait(patience)
        finally:
            with self._lock:
                is_out = gate not in self._waiting  # it was handed the turn, if only just now
                if not is_out:
                    self._waiting.remove(gate)
            if is_out and not has_turn:
                self.give()
        return has_turn

    def give(self) -> None:
        """End a turn: who has waited longest has it next."""
        with self._lock:
            if not self._waiting:
                self._left += 1
                return
            gate = self._waiting.popleft()
        gate.open()

    def __repr__(self) -> str:
        return f"<Turns, {self._left} left, {len(self._waiting)} waiting>"
