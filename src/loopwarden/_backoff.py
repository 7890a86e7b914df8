"""`Backoff`: how long to wait before the next try, as a pure function of how many there were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from loopwarden._arguments import is_number
from loopwarden._log import describe

__all__ = ["Backoff"]


@final
@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from ``minimum`` to ``maximum``, each spread by ``jitter`` so that many do not come at once.

    >>> [Backoff(jitter=0).delay(attempt, roll=0.5) for attempt in (1, 2, 3, 20)]
    [0.5, 1.0, 2.0, 60.0]
    """

    minimum: float = 0.5
    maximum: float = 60.0
    #: The share of a delay that chance may add or take away.
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum", "jitter"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise ValueError(f"{name} of a back-off must be a number from 0 on, got {describe(value)}")
        if self.minimum > self.maximum:
            raise ValueError(f"minimum of a back-off must not be more than maximum, got {describe(self)}")
        if self.jitter > 1:
            raise ValueError(f"jitter of a back-off is a share from 0 to 1, got {describe(self.jitter)}")

    def delay(self, attempt: int, roll: float) -> float:
        """Return the seconds to wait after the ``attempt``-th failure.

        Args:
            attempt: 1 after the first failure.
            roll: A number from 0 to 1, drawn by the caller.
        """
        # The exponent is bounded, because a float is not, and an attempt may be the ten-thousandth.
        plain = min(self.maximum, self.minimum * 2.0 ** min(max(attempt - 1, 0), 60))
        return plain * (1 + self.jitter * (2 * roll - 1))
