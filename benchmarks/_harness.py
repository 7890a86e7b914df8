"""What every benchmark shares: interleaved rounds, medians, ratios, one core."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Rounds of each comparison; the two sides take turns, so that a slow moment of the machine hits both.
ROUNDS = 11


def pin_to_one_core() -> str:
    """Keep this process on one core, where the system can: unpinned, a thread's wake-up costs 6 or 65 µs by chance."""
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned: this system cannot"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return f"pinned to core {core}"


def seconds(job: Callable[[], object]) -> float:
    """Return how long ``job`` takes, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        job()
        return time.perf_counter() - start
    finally:
        gc.enable()


@dataclass
class Report:
    """Prints figures and remembers which limits were missed."""

    missed: list[str] = field(default_factory=list[str])

    def figure(self, what: str, value: str) -> None:
        """Print a figure that no limit is set for."""
        print(f"  {what:<58} {value:>24}")

    def limit(self, what: str, value: float, at_most: float) -> None:
        """Print a figure that must not be more than ``at_most``."""
        self._verdict(what, value, f"≤ {at_most:g}", ok=value <= at_most)

    def faster(
        self, what: str, ours: Callable[[], object], theirs: Callable[[], object], at_least: float
    ) -> tuple[float, float]:
        """Compare two jobs; ours must be at least that many times as fast. Return their medians."""
        ours_took, theirs_took = interleaved(ours, theirs)
        self._verdict(what, theirs_took / ours_took, f"≥ {at_least:g}x", ok=theirs_took / ours_took >= at_least)
        return ours_took, theirs_took

    def share(self, what: str, ours: Callable[[], object], theirs: Callable[[], object], at_most: float) -> None:
        """Compare two jobs; ours must take at most that share of their time."""
        ours_took, theirs_took = interleaved(ours, theirs)
        self._verdict(what, ours_took / theirs_took, f"≤ {at_most:g}", ok=ours_took / theirs_took <= at_most)

    def _verdict(self, what: str, ratio: float, limit: str, *, ok: bool) -> None:
        print(f"  {what:<58} {ratio:>8.2f}  {limit:>8}  {'ok' if ok else 'MISSED'}")
        if not ok:
            self.missed.append(what)

    def exit(self) -> None:
        """End the process, with 1 if a limit was missed."""
        if self.missed:
            print("missed: " + "; ".join(self.missed))
        sys.exit(bool(self.missed))


def interleaved(
    ours: Callable[[], object], theirs: Callable[[], object], rounds_of_each: int = ROUNDS
) -> tuple[float, float]:
    """Return the medians of both jobs, run in turns after one round to warm up."""
    ours()
    theirs()
    rounds = [(seconds(ours), seconds(theirs)) for _ in range(rounds_of_each)]
    return statistics.median(mine for mine, _ in rounds), statistics.median(other for _, other in rounds)


def median_time(job: Callable[[], object], times: int = 500) -> str:
    """Return how long a short job takes: the median, and the worst."""
    took: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        job()
        took.append(time.perf_counter() - start)
    return f"{statistics.median(took) * 1e6:.0f} µs, worst {max(took) * 1e6:.0f} µs"
