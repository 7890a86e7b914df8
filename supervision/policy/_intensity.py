"""How many restarts are too many, as a pure function."""

from __future__ import annotations

__all__ = ["admit"]


def admit(restarts: tuple[float, ...], now: float, intensity: int | None, period: float) -> tuple[float, ...] | None:
    """Return the restarts that count, with this one; None if it is one too many.

    ``intensity`` restarts are allowed in any ``period`` seconds; one that is exactly ``period`` old still counts.

    >>> admit((0.0, 1.0, 2.0), 3.0, intensity=3, period=5.0) is None
    True
    >>> admit((0.0, 1.0, 2.0), 6.0, intensity=3, period=5.0)
    (1.0, 2.0, 6.0)
    """
    if intensity is None:
        return ()
    kept = tuple(each for each in restarts if each >= now - period)
    return None if len(kept) >= intensity else (*kept, now)
