"""`Budget`: the one deadline of a shutdown, and the share of it that a priority has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

__all__ = ["SHARES", "Budget", "Priority"]

Priority: TypeAlias = Literal["background", "normal", "critical"]

#: The share of the budget that a loop may use to complete what it has in hand. All begin together, so none starves.
SHARES: dict[Priority, float] = {"background": 0.5, "normal": 0.8, "critical": 1.0}


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """Every deadline of a shutdown is derived from this one, so nothing adds up to more than it.

    >>> Budget(began=100.0, seconds=30.0).left(110.0, "background")
    5.0
    """

    #: In monotonic seconds.
    began: float
    seconds: float

    @property
    def end(self) -> float:
        """When it is over, in monotonic seconds."""
        return self.began + self.seconds

    def end_for(self, priority: Priority) -> float:
        """When it is over for loops of that priority, in monotonic seconds."""
        return self.began + SHARES[priority] * self.seconds

    def left(self, now: float, priority: Priority = "critical") -> float:
        """Return the seconds that are left for loops of that priority."""
        return max(0.0, self.end_for(priority) - now)
