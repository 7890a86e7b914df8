"""`Prober`: answers probes about a living tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden.clock import Clock, resolve_clock
from loopwarden.supervision.health._census import CENSUS_TIMEOUT, take_census
from loopwarden.supervision.policy._probes import Probe, ProbeAnswer, judge_health
from loopwarden.supervision.policy._stall import StallPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from loopwarden.actors import ControlRef

__all__ = ["Prober"]

#: A stall threshold in seconds that no worker reaches: thirty years.
NEVER = 1e9


@final
class Prober:
    """Asks the loops themselves, with every probe; once the startup probe has succeeded, it always does.

    Any number of threads may ask at once. An actor must not, because `answer` blocks.

    >>> from loopwarden.supervision import Supervisor
    >>> with Supervisor.open("jobs") as jobs:
    ...     Prober([jobs]).answer(Probe.READY).ok
    True

    Args:
        refs: The refs of loops and supervisors.
        is_closing: Says whether a shutdown has begun; called with each probe.
        stall_threshold: That of the watchdog; None if there is no watchdog, and no silence is too long.
        policies: Those of the watchdog.
        timeout: Seconds for the answers of all loops; a loop that gives none is named in the reasons.
        clock: The time.
    """

    def __init__(
        self,
        refs: Iterable[ControlRef],
        *,
        is_closing: Callable[[], bool] = lambda: False,
        stall_threshold: float | None = 720.0,
        policies: Mapping[str, StallPolicy] | None = None,
        timeout: float = CENSUS_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        self._refs = tuple(refs)
        self._is_closing = is_closing
        self._policy = StallPolicy(threshold=NEVER if stall_threshold is None else float(stall_threshold))
        self._policies = dict(policies or {})
        self._timeout = timeout
        self._clock = clock
        self._has_started = False

    def answer(self, probe: Probe) -> ProbeAnswer:
        """Ask all loops, and judge their answers."""
        census = take_census(self._refs, self._timeout, self._clock)
        answer = judge_health(
            probe,
            census.loops,
            now=self._clock.monotonic(),
            is_closing=self._is_closing(),
            missing=census.missing,
            policies=self._policies,
            policy=self._policy,
        )
        if probe is not Probe.STARTUP:
            return answer
        self._has_started = self._has_started or answer.ok
        return answer.model_copy(update={"ok": True, "reasons": ()}) if self._has_started else answer

    def __repr__(self) -> str:
        return f"<Prober, {len(self._refs)} refs, {'started' if self._has_started else 'not started'}>"
