"""The health of all loops, reduced to a yes or a no by a pure function."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from pydantic import BaseModel, ConfigDict

from loopwarden.actors import Activity, LoopState
from loopwarden.supervision.policy._stall import StallPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loopwarden.actors import HealthStatus, WorkerStatus

__all__ = ["Probe", "ProbeAnswer", "judge_health"]

#: Multiples of its policy's grace that a worker is silent, after the threshold, before the ladder has failed: two until
#: its last step, and one more for that step to help.
STEPS = 3

_POLICY = StallPolicy()

_AT_REST = frozenset({Activity.PAUSED, Activity.DRAINING, Activity.BACKING_OFF})

_WATCHED = frozenset({LoopState.STARTING, LoopState.RUNNING})

_NOT_UP = {
    LoopState.IDLE: "is not started yet",
    LoopState.STARTING: "is starting",
    LoopState.STOPPING: "is stopping",
    LoopState.FAILED: "has failed",
}


class Probe(StrEnum):
    """A question about a whole process."""

    LIVE = "live"  # does it make progress? if not, only a new process helps
    READY = "ready"  # is it willing to work?
    STARTUP = "startup"  # has each loop polled once?


class ProbeAnswer(BaseModel):
    """The answer to a probe, with the reasons if it is no."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    probe: Probe
    ok: bool
    #: A sentence for each thing that is in the way; none if ``ok``. They contain no text of an exception, because
    #: every client that reaches the port may read them.
    reasons: tuple[str, ...]
    #: How many loops have answered.
    loops: int


def judge_health(
    probe: Probe,
    statuses: Sequence[HealthStatus],
    *,
    now: float,
    is_closing: bool,
    missing: Sequence[str] = (),
    policies: Mapping[str, StallPolicy] | None = None,
    policy: StallPolicy = _POLICY,
) -> ProbeAnswer:
    """Answer a probe from what the loops have answered.

    Live fails only when a worker is silent although the watchdog has taken all its steps: not because a mailbox is
    unavailable, nor because of a crash, a back-off, a pause or a shutdown. Ready fails for each of those. A loop that
    has ended by itself, or was stopped on request, fails no probe.

    Args:
        probe: The question.
        statuses: The health of each loop; supervisors are not among them.
        now: The time, in the clock's monotonic seconds.
        is_closing: True from the first request for a shutdown on.
        missing: The names of loops and supervisors that did not answer.
        policies: For loops by name, as the watchdog has them.
        policy: For all other loops.
    """
    known = policies or {}
    match probe:
        case Probe.LIVE:
            # The process ends anyway, within a deadline of its own.
            judged = () if is_closing else tuple(statuses)
            reasons = [text for each in judged for text in _hangs(each, known.get(each.loop_name, policy))]
        case Probe.READY:
            reasons = ["it is shutting down"] if is_closing else []
            reasons += _absences(missing)
            judged_one_by_one = (_unwilling(each, known.get(each.loop_name, policy), now) for each in statuses)
            reasons += [text for text in judged_one_by_one if text is not None]
        case Probe.STARTUP:
            reasons = [] if is_closing else _absences(missing)
            reasons += [
                f"loop {each.loop_name!r} has not polled yet"
                for each in statuses
                if not each.polled and each.state is not LoopState.STOPPED
            ]
        case _:
            assert_never(probe)
    return ProbeAnswer(probe=probe, ok=not reasons, reasons=tuple(reasons), loops=len(statuses))


def _absences(missing: Sequence[str]) -> list[str]:
    return [f"no answer from {name!r}" for name in missing]


def _hangs(status: HealthStatus, policy: StallPolicy) -> Iterator[str]:
    if status.state not in _WATCHED or status.activity in _AT_REST:
        return
    for worker in status.workers:
        silence = _silence(worker)
        if silence < policy.threshold + STEPS * policy.grace:
            continue
        if status.starting_since is not None:
            yield f"loop {status.loop_name!r} has been starting for {silence:.1f} s longer than allowed"
        else:
            yield f"loop {status.loop_name!r}: worker {worker.worker} has given no sign of life for {silence:.1f} s"


def _unwilling(status: HealthStatus, policy: StallPolicy, now: float) -> str | None:
    loop = f"loop {status.loop_name!r}"
    if status.activity is Activity.BACKING_OFF:
        if status.retry_at is None or status.retry_at <= now:
            return f"{loop} is backing off until its restart"
        return f"{loop} is backing off; it will be restarted in {status.retry_at - now:.1f} s"
    if status.starting_since is not None:
        return f"{loop} has been starting for {max(0.0, now - status.starting_since):.1f} s"
    if status.state is not LoopState.RUNNING:
        return None if status.state is LoopState.STOPPED else f"{loop} {_NOT_UP[status.state]}"
    trouble = _trouble(status, policy, now)
    return None if trouble is None else loop + trouble


def _trouble(status: HealthStatus, policy: StallPolicy, now: float) -> str | None:
    """Return what keeps a loop from working although it is up."""
    if status.activity in _AT_REST:
        return f" is {status.activity}"
    silence = max(map(_silence, status.workers), default=0.0)
    if status.activity is Activity.STALLED or silence >= policy.threshold:
        return f" is stalled: it has given no sign of life for {silence:.1f} s"
    if status.failures_in_a_row:
        return f" takes no messages: {status.failures_in_a_row} have failed in a row, and none has succeeded"
    away_since = _away_since(status, now)
    if away_since is not None:
        return f": its mailbox has been unavailable for {max(0.0, now - away_since):.1f} s"
    return None


def _silence(worker: WorkerStatus) -> float:
    """Return the seconds for which a worker has been silent without an excuse."""
    is_excused = worker.activity is Activity.DEGRADED or worker.activity in _AT_REST
    return 0.0 if is_excused or worker.silent_for is None else worker.silent_for


def _away_since(status: HealthStatus, now: float) -> float | None:
    """Return since when the mailbox is unavailable, for the worker that has known it for longest."""
    doing = [(each.activity, each.activity_since) for each in status.workers]
    doing.append((status.activity, status.activity_since))
    return min((now if since is None else since for each, since in doing if each is Activity.DEGRADED), default=None)
