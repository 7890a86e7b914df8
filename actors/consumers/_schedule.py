"""When a periodic loop is due: every so many seconds, or at the times of a cron expression."""

from __future__ import annotations

import math
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Protocol, cast, final
from zoneinfo import ZoneInfo

from loopwarden._arguments import is_number
from loopwarden._log import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden.clock import Clock

__all__ = ["LOOK", "SET_BACK", "TOLERANCE", "Schedule", "due_from", "make_schedule", "text_of"]

#: Seconds that a period may have: less would use up a processor, more is what cron is for.
LEAST_PERIOD = 0.001
MAX_PERIOD = 366 * 86_400.0
#: Seconds that count as no time at all, because sums of floats are not exact.
TOLERANCE = 1e-6
#: Seconds after which a wait for a time of the day looks at the wall clock again, which may have been set; as cron.
LOOK = 60.0
#: Seconds that the wall clock may be set back without a due time being computed anew, and so coming twice: as cron.
SET_BACK = 3 * 3_600.0


class Schedule(Protocol):
    """The due times of one run of a loop; used by its worker alone."""

    def begin(self, *, at_once: bool) -> None:
        """Begin anew; the first due time is now, or the next one."""
        ...

    def left(self) -> float:
        """Return the seconds until the due time, 0 if it has come."""
        ...

    def longest_wait(self) -> float:
        """Return the seconds after which `left` is to be asked again."""
        ...

    def advance(self) -> float:
        """Go on to the next due time that has not passed; return for how long the first one had."""
        ...

    def skip(self) -> float:
        """Do so if the due time itself has passed."""
        ...

    def after(self, wall: float) -> float:
        """Return the first due time after that in wall time, infinity if there is none; the same for all processes."""
        ...


@final
class Every:
    """The multiples of a period, from the beginning on, in monotonic seconds."""

    def __init__(self, period: float, clock: Clock) -> None:
        self._period = period
        self._clock = clock
        self._start = 0.0
        self._count = 0

    def begin(self, *, at_once: bool) -> None:
        """Begin anew; the first due time is now, or after one period."""
        self._start = self._clock.monotonic()
        self._count = 0 if at_once else 1

    def left(self) -> float:
        """Return the seconds until the due time, 0 if it has come."""
        left = self._due() - self._clock.monotonic()
        return left if left > TOLERANCE else 0.0

    def longest_wait(self) -> float:
        """Return that nothing can change meanwhile."""
        return math.inf

    def advance(self) -> float:
        """Go on to the next multiple that has not passed; return for how long the first one had."""
        self._count += 1
        return self.skip()

    def skip(self) -> float:
        """Do so if the due time itself has passed."""
        now = self._clock.monotonic()
        late = now - self._due()
        if late <= TOLERANCE:
            return 0.0
        self._count = max(self._count, math.ceil((now - self._start) / self._period))
        return late

    def after(self, wall: float) -> float:
        """Return the next multiple since the epoch, because the processes of a fleet have no other beginning alike."""
        count = math.floor(wall / self._period)
        while count * self._period <= wall + TOLERANCE:
            count += 1
        return count * self._period

    def _due(self) -> float:
        return self._start + self._count * self._period

    def __repr__(self) -> str:
        return f"every {self._period:g} s"


@final
class Cron:
    """The times of a cron expression, by the wall clock; which those are is decided by `cronsim`."""

    def __init__(
        self, expression: str, zone: tzinfo, times: Callable[[datetime], Iterator[datetime]], clock: Clock
    ) -> None:
        self._expression = expression
        self._zone = zone
        self._make_times = times
        self._clock = clock
        self._times: Iterator[datetime] = iter(())
        self._due = 0.0
        self._seen = 0.0  # the latest time since the due times were computed

    def begin(self, *, at_once: bool) -> None:
        """Begin anew; the first due time is now, or the next one."""
        now = self._seen = self._clock.wall()
        self._from(now)
        self._due = now if at_once else self._next()

    def left(self) -> float:
        """Return the seconds until the due time, 0 if it has come."""
        now = self._clock.wall()
        if now < self._seen - SET_BACK:
            self._from(now)
            self._due = self._next()
            self._seen = now
        self._seen = max(self._seen, now)  # it may be set back by a little again and again
        left = self._due - now
        return left if left > TOLERANCE else 0.0

    def longest_wait(self) -> float:
        """Return how soon to look whether the clock was set."""
        return LOOK

    def advance(self) -> float:
        """Go on to the next time that has not passed; return for how long the first one had."""
        self._due = self._next()
        return self.skip()

    def skip(self) -> float:
        """Do so if the due time itself has passed."""
        now = self._clock.wall()
        late = now - self._due
        if late <= TOLERANCE:
            return 0.0
        self._from(now - 1)  # what is due just now is found too
        while self._due < now:
            self._due = self._next()
        return late

    def after(self, wall: float) -> float:
        """Return the next time of the expression."""
        for due in self._make_times(datetime.fromtimestamp(wall, self._zone)):
            # In the hour that comes twice the first one found may lie an hour back.
            if due.timestamp() > wall + TOLERANCE:
                return due.timestamp()
        return math.inf

    def _from(self, wall: float) -> None:
        self._times = self._make_times(datetime.fromtimestamp(wall, self._zone))

    def _next(self) -> float:
        due = next(self._times, None)  # None if there is none within fifty years
        return math.inf if due is None else due.timestamp()

    def __repr__(self) -> str:
        return f"at {self._expression!r} in {self._zone}"


def text_of(due: float) -> str:
    """Return a due time as a text, as it stands in a mailbox."""
    return datetime.fromtimestamp(due, UTC).isoformat()


def due_from(text: object) -> float | None:
    """Return the due time that a text is; None if it is none."""
    try:
        due = datetime.fromisoformat(cast("str", text))
    except (TypeError, ValueError):
        return None
    return None if due.tzinfo is None else due.timestamp()


def make_schedule(every: float | None, cron: str | None, timezone: str | tzinfo | None, clock: Clock) -> Schedule:
    """Return the schedule that was asked for.

    Raises:
        TypeError: if it is not exactly one, or is of the wrong kind.
        ValueError: if a value is out of its range, or is no cron expression or time zone.
        ImportError: if the package for cron expressions is missing.
    """
    if (every is None) == (cron is None):
        raise TypeError(f"give either every= or cron=, got every={describe(every)} and cron={describe(cron)}")
    if every is not None:
        if timezone is not None:
            raise TypeError(f"timezone is for cron=, every= has none, got {describe(timezone)}")
        if not is_number(every) or not LEAST_PERIOD <= every <= MAX_PERIOD:
            expected = f"a number of seconds from {LEAST_PERIOD:g} to {MAX_PERIOD:.0f}"
            raise ValueError(f"every must be {expected}, got {describe(every)}")
        return Every(every, clock)
    return _make_cron(cast("str", cron), _zone(timezone), clock)


def _make_cron(cron: str, zone: tzinfo, clock: Clock) -> Cron:
    if type(cron) is not str:
        raise TypeError(f"cron must be a text such as '*/5 * * * *', got {describe(cron)}")
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415  an extra: only those who use it need it
    except ImportError:
        raise ImportError("cron= needs the package cronsim: pip install 'loopwarden[cron]'") from None
    try:
        first = next(CronSim(cron, datetime.fromtimestamp(clock.wall(), zone)), None)
    except CronSimError as error:
        raise ValueError(f"cron must be an expression such as '*/5 * * * *', got {describe(cron)}: {error}") from None
    if first is None:
        raise ValueError(f"cron must be an expression for a time that comes, got {describe(cron)}")
    return Cron(cron, zone, lambda start: CronSim(cron, start), clock)


def _zone(timezone: str | tzinfo | None) -> tzinfo:
    if timezone is None or timezone == "UTC":
        return UTC
    if isinstance(timezone, tzinfo):
        return timezone
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise ValueError(
            f"timezone must be a name such as 'Europe/Berlin' that this machine or the package tzdata knows, or a"
            f" tzinfo, got {describe(timezone)}"
        ) from None
