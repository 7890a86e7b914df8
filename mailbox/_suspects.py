"""`Suspects`: which of the processes that share a mailbox are dead, by their signs of life."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

__all__ = ["BEAT_SECONDS", "DEAD_SECONDS", "LEAST_BEAT_SECONDS", "Suspects"]

#: Seconds between two signs of life.
BEAT_SECONDS = 5.0
#: The same if a process is watched that may be dead.
LEAST_BEAT_SECONDS = 0.5
#: Seconds without one after which a process is dead.
DEAD_SECONDS = 15.0


@final
class Suspects:
    """Processes that may be dead.

    By a server's time alone all would seem dead if that was set forward. So a process is dead if it has been silent for
    long enough by that time, and this one has seen no sign of life for half as long again as one takes to come.
    """

    def __init__(self) -> None:
        # By mailbox and process: the last sign of life that was seen, and since when it is the last.
        self._known: dict[tuple[Hashable, str], tuple[int, float]] = {}

    def judge(
        self, mailbox: Hashable, silent: Iterable[tuple[str, int]], now: int, mine: float
    ) -> tuple[list[str], float | None]:
        """Return the processes that are dead, and the seconds after which to look at the others again.

        Args:
            mailbox: Any key of it.
            silent: Processes that are overdue with a sign of life, each with the time of its last.
            now: The server's time, in milliseconds as those are.
            mine: This process's own, in seconds.
        """
        dead: list[str] = []
        again: float | None = None
        for process, seen in silent:
            known = self._known.get((mailbox, process))
            if known is None or known[0] != seen:
                known = self._known[mailbox, process] = seen, mine
            wait = max((seen - now) / 1000 + DEAD_SECONDS, known[1] - mine + 1.5 * BEAT_SECONDS)
            if wait <= 0:
                dead.append(process)
            else:
                again = wait if again is None else min(again, wait)
        return dead, again

    def forget(self, mailbox: Hashable, process: str) -> None:
        """Note that a process is gone."""
        self._known.pop((mailbox, process), None)
